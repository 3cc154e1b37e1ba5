//! Training in bf16 and with recomputed blocks, from the outside.

mod support;

use support::{Place, assert_same_end, losses, metrics};

const TRAIN: &str = "[train]\nepochs = 2\nbatch_size = 16\naccumulate = 2\n[log]\nevery_steps = 1\n";

#[test]
fn info_lists_what_runs_in_which_type() {
    let place = Place::new();
    place.images(2, 1);
    place.config("[train]\nepochs = 1\nbatch_size = 4\naccumulate = 1\n");
    let table = |sets: &[&str]| {
        let mut args = vec!["info", "tiny.toml", "--json"];
        args.extend(sets.iter().flat_map(|set| ["--set", set]));
        let rows = place.run(&args).expect(0).json()["precision"].clone();
        let rows = rows.as_array().expect("a list").clone();
        let row = |operation: &str| {
            let row = rows.iter().find(|row| row["operation"] == operation).unwrap_or_else(|| panic!("{operation} in {rows:?}"));
            (row["forward"].as_str().map(str::to_owned), row["backward"].as_str().map(str::to_owned))
        };
        let kinds: Vec<&str> = rows.iter().map(|row| row["operation"].as_str().expect("a text")).collect();
        (row("products with weights"), row("products of evaluations"), row("layer norms"), kinds.len())
    };
    let pair = |forward: &str, backward: &str| (Some(forward.to_owned()), Some(backward.to_owned()));
    let f32s = (pair("f32", "f32"), (Some("f32".to_owned()), None), pair("f32", "f32"), 12);
    assert_eq!(table(&[]), f32s);
    let half = (pair("bf16", "bf16"), (Some("bf16".to_owned()), None), pair("f32", "f32"), 12);
    assert_eq!(table(&["train.precision=bf16", "eval.precision=bf16"]), half);
    // What a network has not is not listed.
    let hydra = ["model.attention.kind=hydra", "model.attention.overrides=[]"];
    assert_eq!(table(&hydra).3, 10);

    let text = place.run(&["info", "tiny.toml", "--set", "train.precision=bf16"]).expect(0).stdout;
    let line = text.lines().find(|line| line.starts_with("# products with weights")).expect("a row of the table");
    assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["#", "products", "with", "weights", "bf16", "bf16"]);
    place.run(&["info", "tiny.toml", "--set", "train.precision=fp16"]).expect(2).says(&["unknown value `fp16`", "bf16"]);
}

#[test]
fn info_reckons_with_what_recomputed_blocks_do_not_keep() {
    let place = Place::new();
    place.images(2, 1);
    place.config("[train]\nepochs = 1\nbatch_size = 4\naccumulate = 1\n");
    let activations = |set: &str| {
        let json = place.run(&["info", "tiny.toml", "--json", "--set", "model.depth=12", "--set", set]).expect(0).json();
        json["memory"]["activations"].as_u64().expect("a number")
    };
    let (all, half, recomputed) =
        (activations("train.recompute=false"), activations("train.precision=bf16"), activations("train.recompute=true"));
    assert!(half < all && recomputed < half, "{all}, {half}, {recomputed}");
}

/// The precision makes other steps and is part of the run; recomputation makes the same steps and may change at any time.
#[test]
fn another_precision_is_another_run_and_recomputation_is_the_same() {
    let place = Place::new();
    place.images(8, 2);
    place.config(TRAIN);
    let train = |out: &str, sets: &[&str]| {
        let mut args = vec!["train", "tiny.toml", "--device", "cpu", "--out", out];
        args.extend(sets.iter().flat_map(|set| ["--set", set]));
        place.run(&args).expect(0);
    };
    train("exact", &[]);
    train("half", &["train.precision=bf16"]);
    train("again", &["train.precision=bf16", "train.recompute=true"]);
    assert_ne!(losses(&place.path("exact")), losses(&place.path("half")));
    assert_same_end(&place.path("half"), &place.path("again"));

    let longer = ["--set", "train.epochs=3", "--allow", "train.epochs"];
    let resume = |run: &str, more: &[&str]| place.run(&[&["resume", run, "--device", "cpu"][..], &longer, more].concat());
    resume("half", &["--set", "train.precision=f32"])
        .expect(2)
        .says(&["train.precision: \"bf16\" in the checkpoint, \"f32\" in the configuration", "--allow train.precision"]);
    resume("half", &["--set", "train.recompute=true"]).expect(0);
    resume("again", &["--set", "train.recompute=false"]).expect(0);
    assert_same_end(&place.path("half"), &place.path("again"));
    resume("exact", &["--set", "train.precision=bf16", "--allow", "train.precision"]).expect(0);
    let lines = metrics(&place.path("exact"));
    let changed: Vec<_> = lines.iter().filter(|line| line["event"] == "changed").map(|line| line["path"].clone()).collect();
    assert_eq!(changed, ["train.epochs", "train.precision"]);
}

/// An evaluation during the training computes as one from the outside does.
#[test]
fn evaluations_of_a_training_have_their_own_precision() {
    let place = Place::new();
    place.images(4, 4);
    place.config(TRAIN);
    let loss = |line: &serde_json::Value| line["loss"].as_f64().expect("a number");
    let mut found = Vec::new();
    for (out, precision) in [("f32", "f32"), ("bf16", "bf16")] {
        let set = format!("eval.precision={precision}");
        place.run(&["train", "tiny.toml", "--device", "cpu", "--out", out, "--set", &set, "--set", "ema.enabled=true"]).expect(0);
        let lines = metrics(&place.path(out));
        let within = loss(lines.iter().rfind(|line| line["kind"] == "eval").expect("an evaluation"));
        let outside = loss(&place.run(&["eval", out, "--json", "--device", "cpu"]).expect(0).json());
        assert_eq!(within, outside, "{precision}");
        found.push(within);
    }
    assert_eq!(losses(&place.path("f32")), losses(&place.path("bf16")), "training does not depend on it");
    assert!(found[0] != found[1] && (found[0] / found[1] - 1.0).abs() < 1e-2, "{found:?}");
}
