//! Wrong configurations are found before anything runs, at their line; right ones are told in full.

mod support;

use std::fs;

use support::Place;

/// The whole of timm's and others' silent configuration mistakes: unknown keys vanish there.
#[test]
fn a_misspelt_key_exits_2_with_line_and_nearest_name() {
    let place = Place::new();
    place.write("c.toml", "[data]\nsource = \"embedded\"\n\n[optimizer]\nlerning_rate = 1\n");
    for command in ["train", "info"] {
        let done = place.run(&[command, "c.toml"]).expect(2);
        let expected = "error: unknown key `lerning_rate` in [optimizer]\n --> c.toml:5:1\n  |\n5 | lerning_rate = 1\n  | ^^^^^^^^^^^^\n  = help: did you mean `learning_rate`?\n";
        assert_eq!(done.stderr, expected);
    }
    assert!(!place.path("runs").exists(), "nothing was started");
}

/// Each wrong text, and what the error must say. The column of the caret is checked through the line number.
#[test]
fn wrong_configurations_are_explained() {
    let cases: &[(&str, &[&str])] = &[
        ("epochs = 3\n", &["unknown key `epochs`", "c.toml:1:1", "train.epochs"]),
        ("[model]\nepochs = 3\n", &["unknown key `epochs` in [model]", "c.toml:2:1", "train.epochs"]),
        ("[modle]\n", &["unknown key `modle`", "`model`"]),
        ("[train]\nepochs = \"ten\"\n", &["c.toml:2:10", "invalid type", "string"]),
        ("[train]\nepochs = -1\n", &["c.toml:2:10"]),
        ("[train]\nepochs = 1.5\n", &["c.toml:2:10"]),
        ("[train\n", &["not valid TOML", "c.toml:1"]),
        ("[train]\nepochs = 3\nepochs = 4\n", &["not valid TOML", "c.toml:3:1", "duplicate"]),
        ("[data]\nsource = \"embeded\"\n", &["unknown value `embeded`", "`embedded`", "c.toml:2:10"]),
        ("[model.attention]\nkind = \"hidra\"\n", &["unknown value `hidra`", "`hydra`"]),
        ("[model]\npreset = \"huge\"\n", &["c.toml:2:10", "no preset is named \"huge\"", "large"]),
        // PaddleViT#74: heads that do not divide the width were rounded down.
        ("[model]\nwidth = 192\nheads = 7\n", &["c.toml:3:1", "7", "192"]),
        ("[model]\nimage_size = 225\n", &["c.toml:2:1", "225", "16"]),
        ("[model.attention]\nkernel = \"cosine\"\n", &["c.toml:2:1", "softmax"]),
        ("[[model.attention.overrides]]\nkind = \"hydra\"\nplace = \"back\"\ncount = 13\n", &["c.toml:4:1", "13", "12"]),
        ("[data]\ntrain = \"x\"\n", &["data.val", "missing"]),
        ("[data]\nsource = \"embedded\"\ntrain = \"x\"\n", &["c.toml:3:1", "unused"]),
        ("[data]\nsource = \"embedded\"\nmean = [0.5]\n", &["c.toml:3:1", "3 channels"]),
        ("[data]\nsource = \"embedded\"\n[augment]\ncrop = \"none\"\nscale = [0.5, 1.0]\n", &["c.toml:5:1", "unused"]),
        (
            "[data]\nsource = \"embedded\"\n[schedule]\nwarmup_epochs = 5\n[train]\nepochs = 5\n",
            &["c.toml:4:1", "5 epochs of warm-up"],
        ),
        (
            "[data]\nsource = \"embedded\"\n[schedule]\nmin_learning_rate = 1.0\n",
            &["c.toml:4:1", "0.0005 × (128 × 8) / 512 = 0.001"],
        ),
        ("[data]\nsource = \"embedded\"\n[run]\ndevice = \"gpu\"\n", &["c.toml:4:1", "wgpu:N"]),
        ("[data]\nsource = \"embedded\"\n[run]\nname = \"a/b\"\n", &["c.toml:4:1", "slash"]),
        ("[data]\nsource = \"embedded\"\n[train]\nlabel_smoothing = 1.5\n", &["c.toml:4:1", "below 1"]),
        ("[data]\nsource = \"embedded\"\n[checkpoint]\nkeep = 0\n", &["c.toml:4:1", "at least 1"]),
        ("[data]\nsource = \"embedded\"\n[train]\nepochs = 3074457345618258603\n", &["c.toml:4:1", "1,048,576"]),
        ("[data]\nsource = \"embedded\"\n[eval]\nbatch_size = 9223372036854775807\n", &["c.toml:4:1", "1,048,576"]),
        ("[data]\nsource = \"embedded\"\n[model]\nimage_size = 16416\npatch_size = 96\n", &["c.toml:4:1", "16384"]),
        ("[data]\ntrain = \"\"\nval = \"x\"\n", &["c.toml:2:1", "empty"]),
        ("[optimizer]\nbetas = [0.9, 0.9, 0.9]\n", &["c.toml", "betas"]),
        // Those that need the dataset.
        ("[data]\nsource = \"embedded\"\n", &["model.classes", "1000 classes", "the dataset 10"]),
        (
            "[model]\nclasses = 10\n[data]\nsource = \"embedded\"\n[train]\nbatch_size = 100000\n",
            &["c.toml:6:1", "do not fill one batch"],
        ),
        (
            "[model]\nclasses = 10\n[data]\nsource = \"embedded\"\n[train]\naccumulate = 100000\n",
            &["c.toml:6:1", "an epoch has only"],
        ),
    ];
    let place = Place::new();
    for (text, words) in cases {
        place.write("c.toml", text);
        let done = place.run(&["train", "c.toml", "--device", "cpu"]);
        assert_eq!(done.code, Some(2), "{text}\n{}", done.stderr);
        for word in *words {
            assert!(done.stderr.contains(word), "`{word}` is not in the error of\n{text}\n{}", done.stderr);
        }
        assert!(!place.path("runs").exists(), "nothing was started by\n{text}");
    }
}

#[test]
fn settings_win_over_files_and_files_over_what_they_extend() {
    let place = Place::new();
    place.write(
        "base.toml",
        "[model]\npreset = \"tiny\"\nclasses = 10\n[data]\nsource = \"embedded\"\n[train]\nepochs = 7\nbatch_size = 50\n",
    );
    place.write("sub/derived.toml", "extends = \"../base.toml\"\n[train]\nepochs = 9\n");
    let info = place
        .run(&["info", "sub/derived.toml", "--json", "--set", "train.accumulate=2", "--set", "run.name=a b"])
        .expect(0)
        .json();
    let train = &info["config"]["train"];
    assert_eq!((&train["epochs"], &train["batch_size"], &train["accumulate"]), (&9.into(), &50.into(), &2.into()));
    assert_eq!(info["config"]["run"]["name"], "a b");
    assert_eq!(info["effective_batch"], 100);

    place.run(&["info", "sub/derived.toml", "--set", "train.epoch=3"]).expect(2).says(&["--set train.epoch=3", "`epochs`"]);
    place.run(&["info", "sub/derived.toml", "--set", "train.epochs=x"]).expect(2).says(&["--set train.epochs=x"]);
    place.run(&["info", "sub/derived.toml", "--set", "train.epochs"]).expect(2).says(&["KEY=VALUE"]);
    place.run(&["info", "sub/derived.toml", "--set", "extends=base.toml"]).expect(2).says(&["only a file can extend"]);
    // An error in the base names the base.
    place.write("base.toml", "[train]\nepoch = 7\n");
    place.run(&["info", "sub/derived.toml"]).expect(2).says(&["base.toml:2:1", "`epochs`"]);
    place.write("loop.toml", "extends = \"loop.toml\"\n");
    place.run(&["info", "loop.toml"]).expect(2).says(&["extends itself", "loop.toml:1:1"]);
    place.write("lost.toml", "extends = \"nowhere.toml\"\n");
    place.run(&["info", "lost.toml"]).expect(2).says(&["nowhere.toml", "lost.toml:1:1"]);
    place.run(&["info", "nowhere.toml"]).expect(2).says(&["nowhere.toml"]);
}

/// The resolved configuration is a valid one, and resolves to itself.
#[test]
fn the_resolved_configuration_is_complete_and_resolves_to_itself() {
    let place = Place::new();
    place.images(4, 2);
    let plans = [
        "",
        "[model.attention]\nkind = \"hydra\"\nkernel = \"tanh\"\n",
        "[model.attention]\nkind = \"linear\"\n[[model.attention.overrides]]\nkind = \"softmax\"\nplace = \"interleaved\"\ncount = 2\n",
        "[augment]\ncrop = \"none\"\n",
    ];
    for plan in plans {
        place.write("c.toml", &format!("[model]\npreset = \"tiny\"\nclasses = 10\n[data]\ntrain = \"train\"\nval = \"val\"\n[train]\nbatch_size = 8\naccumulate = 2\n{plan}"));
        let info = place.run(&["info", "c.toml", "--json"]).expect(0).json();
        let text = place.run(&["info", "c.toml"]).expect(0).stdout;
        assert!(text.contains("\n# layer "), "a layer table follows");
        place.write("resolved.toml", &text);
        let again = place.run(&["info", "resolved.toml", "--json"]).expect(0).json();
        assert_eq!(info["config"], again["config"], "{text}");
        assert!(fs::read_to_string(place.path("resolved.toml")).unwrap().contains("warmup_learning_rate = "));
    }
}

/// Every key of the schema is documented, and the example files fit it.
#[test]
fn the_schema_knows_every_key_and_documents_it() {
    let place = Place::new();
    let schema = place.run(&["info", "--schema"]).expect(0).json();
    for section in ["run", "model", "data", "augment", "optimizer", "schedule", "train", "eval", "checkpoint", "log"] {
        assert!(schema["properties"][section].is_object(), "{section}");
    }
    let definitions = schema["$defs"].as_object().expect("sections are definitions");
    for (name, definition) in definitions {
        let Some(properties) = definition["properties"].as_object() else { continue };
        assert_eq!(definition["additionalProperties"], false, "{name} is strict");
        for (key, property) in properties {
            assert!(property["description"].as_str().is_some_and(|text| text.len() > 10), "{name}.{key} is not documented");
        }
    }
}

/// The figures of DeiT-B: parameters as its training log says, MACs counted as the Hydra paper counts them.
#[test]
fn info_counts_parameters_and_macs() {
    let place = Place::new();
    let count = |model: &str| {
        place.write("c.toml", &format!("[model]\npreset = \"base\"\n{model}\n[data]\ntrain = \"nowhere\"\nval = \"nowhere\"\n"));
        let info = place.run(&["info", "c.toml", "--json"]).expect(0).json();
        let giga = |key: &str| info[key].as_u64().expect("a count") as f64 / 1e9;
        assert!(info["steps"].is_null() && info["data_error"].as_str().unwrap().contains("nowhere"));
        (info["parameters"].as_u64().unwrap(), giga("macs"), giga("macs_attention"), info)
    };
    let close = |a: f64, b: f64| (a - b).abs() < 0.0005;
    let (parameters, macs, attention, info) = count("");
    assert_eq!(parameters, 86_567_656);
    assert!(close(macs, 17.564) && close(attention, 0.715), "{macs} {attention}");
    assert_eq!(info["effective_batch"], 1024);
    assert_eq!(info["learning_rate"], 1e-3);
    let sum = |key: &str| info["layers"].as_array().unwrap().iter().map(|layer| layer[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("parameters"), parameters);
    assert_eq!(sum("macs"), info["macs"].as_u64().unwrap());

    let (parameters, macs, attention, _) = count("[model.attention]\nkind = \"hydra\"");
    assert_eq!(parameters, 86_567_656);
    assert!((attention - 0.0036).abs() < 0.00005 && close(macs, 17.564 - 0.715 + 0.0036), "{macs} {attention}");
    let (_, macs, ..) = count("image_size = 384");
    assert!(close(macs, 55.484), "{macs}");
}
