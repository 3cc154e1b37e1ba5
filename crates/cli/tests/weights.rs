//! Weights files as a researcher brings them: the same logits and scores as timm's, and the way back.
//!
//! `scripts/reference/evaluation_fixtures.py` makes the folder of images, the network and timm's answers.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::Place;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/evaluation")
}

fn expected() -> Value {
    serde_json::from_str(&fs::read_to_string(fixture().join("expected.json")).unwrap()).unwrap()
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// How the fixture's network sees images in timm's default mode.
const SETS: [&str; 4] = ["--heads", "2", "--set", "eval.crop_pct=0.9"];

#[test]
fn logits_from_the_file_of_an_image_are_timms_in_every_crop_mode() {
    let place = Place::new();
    for (mode, answers) in expected()["modes"].as_object().unwrap() {
        let images = answers["images"].as_array().unwrap();
        let paths: Vec<String> = images.iter().map(|image| text(&fixture().join(image["path"].as_str().unwrap()))).collect();
        let (weights, set) = (text(&fixture().join("model.safetensors")), format!("eval.crop_mode={mode}"));
        let mut args = vec!["predict", "--weights", &weights, "--json", "--logits", "--device", "cpu", "--set", &set];
        args.extend(SETS);
        args.extend(paths.iter().map(String::as_str));
        let got = place.run(&args).expect(0).json();
        let got = got["images"].as_array().unwrap();
        assert_eq!(got.len(), images.len());
        for (got, want) in got.iter().zip(images) {
            assert!(got["path"].as_str().unwrap().ends_with(want["path"].as_str().unwrap()));
            let (got_logits, want_logits) = (got["logits"].as_array().unwrap(), want["logits"].as_array().unwrap());
            assert_eq!(got_logits.len(), want_logits.len());
            for (a, b) in got_logits.iter().zip(want_logits) {
                assert!((number(a) - number(b)).abs() < 2e-4, "{mode} {}: {got_logits:?} are not {want_logits:?}", want["path"]);
            }
            let best = got_logits.iter().enumerate().max_by(|a, b| number(a.1).total_cmp(&number(b.1))).unwrap().0;
            assert_eq!(got["top5"][0]["index"], best);
            assert_eq!(got["top5"].as_array().unwrap().len(), 5);
        }
    }
}

#[test]
fn scores_of_a_folder_are_timms_count_by_count() {
    let place = Place::new();
    let (weights, images) = (text(&fixture().join("model.safetensors")), text(&fixture().join("images")));
    for (mode, answers) in expected()["modes"].as_object().unwrap() {
        let set = format!("eval.crop_mode={mode}");
        let mut args = vec!["eval", "--weights", &weights, "--data", &images, "--json", "--device", "cpu", "--set", &set];
        args.extend(SETS);
        args.extend(["--predictions", "predictions.csv", "--per-class", "classes.csv", "--csv", "results.csv"]);
        let got = place.run(&args).expect(0).json();
        assert_eq!(got["n"], 42);
        for key in ["top1", "top5"] {
            assert!((number(&got[key]) - number(&answers[key])).abs() < 1e-9, "{mode} {key}: {got}");
        }
        assert!((number(&got["loss"]) - number(&answers["loss"])).abs() < 1e-4, "{mode}: {got}");
        assert!(number(&got["images_per_second"]) > 0.0);

        let lines = fs::read_to_string(place.path("predictions.csv")).unwrap();
        let rows: Vec<Vec<&str>> = lines.lines().skip(1).map(|line| line.split(',').collect()).collect();
        assert_eq!(rows.len(), 42);
        let right = rows.iter().filter(|row| row[3] == "1").count();
        assert_eq!(right, (number(&answers["top1"]) * 0.42).round() as usize);
        assert!(rows.iter().all(|row| row.len() == 4 + 3 * 5), "{lines}");
        let classes = fs::read_to_string(place.path("classes.csv")).unwrap();
        assert_eq!(classes.lines().count(), 8, "a line for each class\n{classes}");
        assert!(classes.lines().skip(1).all(|line| line.ends_with(",6")), "{classes}");
        let results = fs::read_to_string(place.path("results.csv")).unwrap();
        assert!(
            results.starts_with("model,top1,top1_err,top5,top5_err,param_count,img_size,crop_pct,interpolation"),
            "{results}"
        );
    }
}

#[test]
fn bf16_changes_little() {
    let place = Place::new();
    let (weights, image) = (text(&fixture().join("model.safetensors")), text(&fixture().join("images/class0/00.jpg")));
    let mut args = vec!["predict", "--weights", &weights, "--json", "--logits", &image];
    args.extend(SETS);
    let full = place.run(&args).expect(0).json();
    args.extend(["--set", "eval.precision=bf16"]);
    let half = place.run(&args).expect(0).json();
    let logits = |value: &Value| value["images"][0]["logits"].as_array().unwrap().iter().map(number).collect::<Vec<f64>>();
    let (full, half) = (logits(&full), logits(&half));
    assert_ne!(full, half, "the products ran in another type");
    for (a, b) in full.iter().zip(&half) {
        assert!((a - b).abs() < 0.15, "{full:?} {half:?}");
    }
}

/// Every form that holds the same weights gives the same logits, and converting twice gives the same bytes.
#[test]
fn weights_go_out_and_come_back() {
    let place = Place::new();
    let (weights, image) = (text(&fixture().join("model.safetensors")), text(&fixture().join("images/class1/06.png")));
    place.run(&["weights", "convert", &weights, "--heads", "2", "--to", "timm", "--out", "timm.safetensors"]).expect(0);
    place.run(&["weights", "convert", &weights, "--heads", "2", "--to", "huggingface", "--out", "hf"]).expect(0);
    place.run(&["weights", "convert", "hf", "--to", "timm", "--out", "again.safetensors"]).expect(0);
    assert_eq!(fs::read(place.path("timm.safetensors")).unwrap(), fs::read(place.path("again.safetensors")).unwrap());
    let predict = |weights: &str, more: &[&str]| {
        let mut args = vec!["predict", "--weights", weights, "--json", "--logits", "--set", "eval.crop_pct=0.9", image.as_str()];
        args.extend(more);
        place.run(&args).expect(0).json()["images"][0]["logits"].clone()
    };
    let logits = predict(&weights, &["--heads", "2"]);
    // What we write says itself how many heads there are, which no tensor's shape does.
    assert_eq!(predict("timm.safetensors", &[]), logits);
    // Hugging Face's folder says itself how many heads there are.
    assert_eq!(predict("hf", &[]), logits);
    let inspected = place.run(&["weights", "inspect", "hf", "--json"]).expect(0).json();
    assert_eq!(inspected["layout"], "huggingface");
    assert_eq!(inspected["model"]["heads"], 2);
    // Nothing that is read is overwritten.
    place.run(&["weights", "convert", "hf", "--to", "huggingface", "--out", "hf"]).expect(2).says(&["files to be converted"]);
    place.run(&["weights", "convert", "hf", "--to", "timm", "--out", "hf"]).expect(2).says(&["hf"]);
    place.run(&["weights", "convert", "hf", "--to", "pytorch", "--out", "x"]).expect(2).says(&["timm", "huggingface"]);
}

/// A renamed, a missing, an extra and a wrongly shaped tensor: one line each, all at once, with the nearest names.
#[test]
fn all_that_is_wrong_with_a_file_is_said_at_once() {
    let place = Place::new();
    let weights = fixture().join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let renamed = header.remove("blocks.0.attn.qkv.weight").unwrap();
    header.insert("blocks.0.attn.kqv.weight".into(), renamed);
    // Of the same bytes: the last norm is missing, and something unknown is there.
    let missing = header.remove("norm.weight").unwrap();
    header.insert("unheard.of".into(), missing);
    header["blocks.1.mlp.fc1.weight"]["shape"] = serde_json::json!([64, 64]);
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut broken = (header.len() as u64).to_le_bytes().to_vec();
    broken.extend(header);
    broken.extend(&bytes[8 + length..]);
    fs::write(place.path("broken.safetensors"), broken).unwrap();
    let image = text(&fixture().join("images/class0/00.jpg"));
    place.write("model.toml", "[model]\nimage_size = 32\npatch_size = 8\nclasses = 7\nwidth = 32\ndepth = 2\nheads = 2\n");
    let done = place.run(&["predict", "--weights", "broken.safetensors", "--config", "model.toml", &image]).expect(1);
    let done =
        done.says(&["broken.safetensors", "blocks.0.attn.qkv.weight", "blocks.0.attn.kqv.weight", "norm.weight", "unheard.of"]);
    done.says(&["blocks.1.mlp.fc1.weight", "[64, 64]", "[128, 32]"]);
}

#[test]
fn wrong_weights_and_presets_are_refused_by_name() {
    let place = Place::new();
    let (weights, image) = (text(&fixture().join("model.safetensors")), text(&fixture().join("images/class0/00.jpg")));
    place
        .run(&["predict", "--weights", &weights, "--preset", "deit_tyni_patch16_224", &image])
        .expect(2)
        .says(&["deit_tyni_patch16_224", "deit_tiny_patch16_224"]);
    place.run(&["predict", "--weights", "nowhere.safetensors", &image]).expect(1).says(&["nowhere.safetensors"]);
    place.write("text.safetensors", "not weights");
    place.run(&["predict", "--weights", "text.safetensors", &image]).expect(1).says(&["text.safetensors"]);
    place.write("broken.jpg", "not an image");
    place.run(&["predict", "--weights", &weights, "--heads", "2", "broken.jpg"]).expect(1).says(&["broken.jpg"]);
}

/// Hugging Face's folder says how images are prepared, and what its classes are called.
#[test]
fn a_folder_of_hugging_face_brings_its_preparation_and_class_names() {
    let place = Place::new();
    let (weights, image) = (text(&fixture().join("model.safetensors")), text(&fixture().join("images/class0/00.jpg")));
    place.run(&["weights", "convert", &weights, "--heads", "2", "--to", "huggingface", "--out", "hf"]).expect(0);
    let path = place.path("hf/config.json");
    let config = fs::read_to_string(&path).unwrap();
    fs::write(&path, config.replace("LABEL_", "animal ")).unwrap();
    place.write(
        "hf/preprocessor_config.json",
        r#"{"size": {"height": 32, "width": 32}, "resample": 3, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}"#,
    );
    let logits = |args: &[&str]| {
        let done = place.run(&[&["predict", "--json", "--logits", "--weights"], args, &[&image]].concat()).expect(0);
        let image = &done.json()["images"][0];
        assert!(done.stderr.contains("images are resized to 32 × 32 by bicubic, crop squash 1"), "{}", done.stderr);
        (image["logits"].clone(), image["top5"][0]["name"].as_str().unwrap().to_owned())
    };
    let (own, name) = logits(&["hf"]);
    assert!(name.starts_with("animal "), "{name}");
    let sets = ["--heads", "2", "--set", "eval.crop_pct=1.0", "--set", "eval.crop_mode=squash"];
    assert_eq!(logits(&[&[weights.as_str()], &sets[..]].concat()).0, own);
    // Names stay when the folder is converted to its own layout again.
    place.run(&["weights", "convert", "hf", "--to", "huggingface", "--out", "hf2"]).expect(0);
    assert!(fs::read_to_string(place.path("hf2/config.json")).unwrap().contains("animal 3"));
    place.write("hf/preprocessor_config.json", r#"{"do_resize": false}"#);
    place.run(&["predict", "--weights", "hf", &image]).expect(1).says(&["preprocessor_config.json", "not resized"]);
}

/// What an evaluation leaves behind is checked before it begins, and overwrites nothing that it reads.
#[test]
fn outputs_are_checked_before_the_work() {
    let place = Place::new();
    let images = text(&fixture().join("images"));
    fs::copy(fixture().join("model.safetensors"), place.path("w.safetensors")).unwrap();
    let mut args = vec!["eval", "--weights", "w.safetensors", "--data", &images, "--device", "cpu"];
    args.extend(SETS);
    for (more, word) in [
        (&["--csv", "no/such/x.csv"][..], "no folder"),
        (&["--csv", "x.csv", "--per-class", "x.csv"], "written twice"),
        (&["--predictions", "w.safetensors"], ".csv"),
        (&["--logits", "w.safetensors"], "that are read"),
    ] {
        place.run(&[&args[..], more].concat()).expect(2).says(&[more[0], word]);
    }
    assert_eq!(fs::read(place.path("w.safetensors")).unwrap(), fs::read(fixture().join("model.safetensors")).unwrap());
}

/// A run that was killed before its first checkpoint starts again from the weights it named, or not at all.
#[test]
fn other_weights_at_the_same_path_are_refused() {
    let place = Place::new();
    place.images(3, 1);
    fs::copy(fixture().join("model.safetensors"), place.path("w.safetensors")).unwrap();
    place.write(
        "tune.toml",
        "[model]\nimage_size = 32\npatch_size = 8\nclasses = 10\nwidth = 32\ndepth = 2\nheads = 2\n[data]\ntrain = \"train\"\nval = \"val\"\n\
         [schedule]\nwarmup_epochs = 0\n[optimizer]\nreference_batch = 0\n[train]\nepochs = 1\nbatch_size = 10\naccumulate = 1\n",
    );
    place.run(&["train", "tune.toml", "--device", "cpu", "--out", "run", "--weights", "w.safetensors"]).expect(0);
    assert!(fs::read_to_string(place.path("run/config.toml")).unwrap().contains("weights_sha256"));
    for step in support::steps(&place.path("run")) {
        fs::remove_dir_all(place.path("run/checkpoints").join(step)).unwrap();
    }
    for link in ["last", "best"] {
        fs::remove_file(place.path("run/checkpoints").join(link)).unwrap();
    }
    let mut bytes = fs::read(place.path("w.safetensors")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(place.path("w.safetensors"), bytes).unwrap();
    place.run(&["resume", "run", "--device", "cpu"]).expect(2).says(&["train.weights", "weights_sha256"]);
    fs::copy(fixture().join("model.safetensors"), place.path("w.safetensors")).unwrap();
    place.run(&["resume", "run", "--device", "cpu"]).expect(0).says(&["starting from"]);
}

/// ImageNet-A's way: only the classes of the images compete, and only when that is asked for.
#[test]
fn some_of_the_classes_need_a_word_on_who_competes() {
    let place = Place::new();
    place.images(6, 4);
    place.config("[train]\nepochs = 1\nbatch_size = 20\naccumulate = 1\n");
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "run"]).expect(0);
    place.run(&["eval", "run", "--subset", "all"]).expect(2).says(&["all of the model's classes"]);
    for label in [0, 2, 4, 6, 8] {
        fs::remove_dir_all(place.path(&format!("val/class{label}"))).unwrap();
    }
    place.run(&["eval", "run", "--data", "val"]).expect(2).says(&[
        "5 of the model's 10 classes",
        "--subset restrict",
        "--subset all",
    ]);
    let all = place.run(&["eval", "run", "--data", "val", "--subset", "all", "--json"]).expect(0).json();
    let restricted = place.run(&["eval", "run", "--data", "val", "--subset", "restrict", "--json"]).expect(0).json();
    assert_eq!((&all["n"], &restricted["n"]), (&20.into(), &20.into()));
    assert_eq!(restricted["top5"], 100.0, "five classes compete");
    assert!(number(&restricted["top1"]) >= number(&all["top1"]));
    assert!(number(&restricted["loss"]) < number(&all["loss"]));
}

/// ReaL's labels: any of several is right, and images without one do not count.
#[test]
fn real_labels_judge_validation_images_by_their_number() {
    let place = Place::new();
    let mut real: Vec<Vec<u32>> = vec![Vec::new(); 50_000];
    for (number, answer) in expected()["modes"]["center"]["images"].as_array().unwrap().iter().enumerate() {
        let from = fixture().join(answer["path"].as_str().unwrap());
        let folder = from.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        let to = place.path("val").join(folder);
        fs::create_dir_all(&to).unwrap();
        fs::copy(&from, to.join(format!("ILSVRC2012_val_{:08}.JPEG", number + 1))).unwrap();
        let logits: Vec<f64> = answer["logits"].as_array().unwrap().iter().map(self::number).collect();
        let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 as u32;
        // The best class is right in every third, an impossible one in the next, none in the last.
        real[number] = [vec![(best + 1) % 7, best], vec![(best + 1) % 7], vec![]][number % 3].clone();
    }
    place.write("real.json", &serde_json::to_string(&real).unwrap());
    let weights = text(&fixture().join("model.safetensors"));
    let mut args =
        vec!["eval", "--weights", &weights, "--data", "val", "--real-labels", "real.json", "--json", "--device", "cpu"];
    args.extend(SETS);
    let got = place.run(&args).expect(0).json();
    assert_eq!(got["n"], 28);
    assert_eq!(got["labels"], "real");
    assert!((number(&got["top1"]) - 50.0).abs() < 1e-9, "{got}");
}

/// The paper's fine-tuning: pretrained softmax weights go into a model with Hydra and linear layers, at another resolution and for
/// other classes.
#[test]
fn pretrained_weights_are_trained_further_with_other_attention_resolution_and_classes() {
    let place = Place::new();
    place.images(6, 3);
    let weights = text(&fixture().join("model.safetensors"));
    place.write(
        "tune.toml",
        r#"
[model]
image_size = 48
patch_size = 8
classes = 10
width = 32
depth = 2
heads = 2
[[model.attention.overrides]]
kind = "hydra"
place = "back"
count = 1
[data]
train = "train"
val = "val"
[optimizer]
reference_batch = 0
learning_rate = 1e-4
[schedule]
interval = "step"
warmup_epochs = 0
[train]
epochs = 1
batch_size = 20
accumulate = 1
"#,
    );
    let args = ["train", "tune.toml", "--device", "cpu", "--out", "run", "--weights", &weights];
    place.run(&args).expect(0).says(&[
        "starting from",
        "reshaped pos_embed",
        "4 x 4 to 6 x 6",
        "missing as expected: head.weight, head.bias",
    ]);
    // The resolved configuration names the weights, and a run without them starts elsewhere.
    assert!(fs::read_to_string(place.path("run/config.toml")).unwrap().contains("model.safetensors"));
    place.run(&["train", "tune.toml", "--device", "cpu", "--out", "fresh"]).expect(0);
    assert_ne!(support::losses(&place.path("run")), support::losses(&place.path("fresh")));
    // Everything that was trained can leave.
    place.run(&["weights", "convert", "run", "--to", "timm", "--out", "out.safetensors"]).expect(0).says(&[
        "other outputs",
        "1 (hydra/cosine)",
        "VisionTransformer(img_size=48, patch_size=8",
    ]);
    let tensors = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        manyheads_trainer::checkpoint::read_tensors(&bytes, path).unwrap()
    };
    let last = place.path("run/checkpoints/last/model.safetensors");
    let (out, trained) = (tensors(&place.path("out.safetensors")), tensors(&last));
    assert_eq!(out.len(), trained.len());
    assert!(out.iter().all(|(name, tensor)| tensor.values == trained[name].values), "the values are the trained ones");

    // A checkpoint, its file, and what was converted from it all know that one layer is Hydra's: names and shapes do not tell it.
    let image = text(&place.path("val/class0/0000.png"));
    let of = |weights: &str| {
        let args = ["predict", "--weights", weights, "--json", "--logits", &image];
        place.run(&args).expect(0).json()["images"][0]["logits"].clone()
    };
    let whole = of("run");
    for weights in ["run/checkpoints/last", "run/checkpoints/last/model.safetensors", "out.safetensors"] {
        assert_eq!(of(weights), whole, "{weights}");
        place.run(&["weights", "convert", weights, "--to", "huggingface", "--out", "hf"]).expect(1).says(&["hydra"]);
    }
    place.run(&["weights", "convert", "run", "--to", "huggingface", "--out", "hf"]).expect(1).says(&["hydra"]);
    let inspected = place.run(&["weights", "inspect", "run"]).expect(0);
    let model = inspected.stdout.split_once("[model]").expect("a section").1;
    assert!(model.contains("kind = \"hydra\"") && model.contains("[model.attention]"), "{}", inspected.stdout);
    let score = |args: &[&str]| place.run(&[args, &["--json"]].concat()).expect(0).json()["loss"].clone();
    assert_eq!(score(&["eval", "run"]), score(&["eval", "--weights", "run/checkpoints/last", "--data", "val"]));
    assert_eq!(score(&["eval", "run"]), score(&["eval", "--weights", "run", "--data", "val"]));

    // Images of other classes are not those the run was trained on, however many there are; their order does not matter.
    fs::rename(place.path("val/class3"), place.path("val/somethingelse")).unwrap();
    place.run(&["eval", "run", "--data", "val"]).expect(1).says(&["somethingelse"]);
    // A file of another network is refused before there is a run, with what differs.
    let args = ["train", "tune.toml", "--device", "cpu", "--out", "never", "--weights", &weights, "--set", "model.depth=4"];
    fs::rename(place.path("val/somethingelse"), place.path("val/class3")).unwrap();
    place.run(&args).expect(2).says(&["depth is 2 in the file and not 4"]);
    assert!(!place.path("never").exists());
    place
        .run(&["predict", "--weights", &weights, "--preset", "deit_tiny_patch16_224", &image])
        .expect(2)
        .says(&["deit_tiny_patch16_224", "width is 32 in the file and not 192"]);
}
