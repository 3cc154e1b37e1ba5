//! `manyheads bench train` and `bench infer`.

mod support;

use serde_json::Value;
use support::Place;

/// A network that takes milliseconds.
const SMALL: [&str; 12] = [
    "--batch",
    "4",
    "--steps",
    "3",
    "--warmup",
    "1",
    "--device",
    "cpu",
    "--set",
    "model.image_size=32",
    "--set",
    "model.depth=2",
];

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} is a number in {value}"))
}

#[test]
fn a_profile_splits_the_step_by_kind_of_operation() {
    let place = Place::new();
    for (command, attention, ops) in [("train", "softmax", "fused"), ("train", "hydra", "plain"), ("infer", "linear", "fused")] {
        let mut args = vec!["bench", command, "--profile", "--json", "--attention", attention, "--ops", ops];
        args.extend(SMALL);
        let report = place.run(&args).expect(0).json();
        let profile = &report["profile"];
        let kinds = profile["kinds"].as_array().expect("a list");
        let names: Vec<&str> = kinds.iter().map(|kind| kind["kind"].as_str().expect("a name")).collect();
        let all = ["data", "transfers", "matrix_products", "attention", "norms", "element_wise", "loss", "optimizer"];
        assert_eq!(names, all);

        let sum = |key: &str| kinds.iter().map(|kind| number(kind, key)).sum::<f64>();
        assert!((sum("share") - 1.0).abs() < 1e-9, "{profile}");
        let step = number(profile, "seconds_per_step");
        assert!((sum("seconds") / step - 1.0).abs() < 1e-9, "{profile}");
        let apart = kinds.iter().flat_map(|kind| [&kind["forward_seconds"], &kind["backward_seconds"]]);
        let passes: f64 = apart.filter_map(Value::as_f64).sum();
        let whole: f64 = kinds.iter().filter(|kind| !kind["forward_seconds"].is_null()).map(|kind| number(kind, "seconds")).sum();
        assert!((passes / whole - 1.0).abs() < 1e-9, "{profile}");

        // Whatever is slow, the products of a ViT are most of its operations, and no kind of its own takes no time.
        let training = command == "train";
        for kind in kinds {
            let name = kind["kind"].as_str().expect("a name");
            let forward = kind["forward_seconds"].as_f64();
            let backward = kind["backward_seconds"].as_f64();
            match name {
                "data" | "transfers" | "optimizer" => assert_eq!((forward, backward), (None, None), "{kind}"),
                "loss" if !training => assert_eq!(number(kind, "seconds"), 0.0, "{kind}"),
                _ => {
                    assert!(forward.is_some_and(|seconds| seconds > 0.0), "{command} {kind}");
                    assert_eq!(backward.is_some_and(|seconds| seconds > 0.0), training, "{command} {kind}");
                }
            }
            assert_eq!(kind["flops_per_second"].is_null(), !["matrix_products", "attention"].contains(&name), "{kind}");
        }
        assert_eq!(number(&kinds[0], "seconds") > 0.0, training, "stochastic depth is drawn: {profile}");
        assert_eq!(number(&kinds[7], "seconds") > 0.0, training, "{profile}");
        assert!(number(&kinds[2], "share") > 0.1, "{profile}");

        // The slowdown is that of the mean step, which no step's time can be under.
        assert!(step / number(profile, "slowdown") > 0.999 * number(&report, "fastest_step"), "{report}");
        assert_eq!(report["peak"]["source"], "measured");
        let mfu = number(&report, "flops_per_second") / number(&report["peak"], "flops_per_second");
        assert!((number(&report, "mfu") / mfu - 1.0).abs() < 1e-9 && mfu > 0.0, "{report}");
        assert!(number(&report, "images_per_second") > 0.0);
    }
}

#[test]
fn without_a_profile_nothing_is_said_of_it() {
    let place = Place::new();
    let mut args = vec!["bench", "train", "--json"];
    args.extend(SMALL);
    let report = place.run(&args).expect(0).json();
    assert!(report.get("profile").is_none() && report["mfu"].is_null() && report["precision"] == "f32", "{report}");

    args[2] = "--profile";
    let text = place.run(&args).expect(0).stdout;
    for word in ["images/s", "matrix products", "element-wise", "of the peak (MFU)", "measured: a product of matrices", "100.0 %"]
    {
        assert!(text.contains(word), "`{word}` is not in:\n{text}");
    }
}

/// The CPU held against itself: every part of the check works, with the fused forms against the plain ones.
#[test]
fn the_check_of_a_device_agrees_with_the_cpu() {
    let place = Place::new();
    let done = place.run(&["bench", "gpu", "--device", "cpu", "--tiny", "--out", "check.json"]).expect(0);
    for word in [
        "## Agreement with the CPU",
        "| odd, tiny | softmax | f32 | fused |",
        "comparisons agree.",
        "| odd, tiny | Hydra | inference |",
    ] {
        assert!(done.stdout.contains(word), "`{word}` is not in:\n{}", done.stdout);
    }
    let text = std::fs::read_to_string(place.path("check.json")).expect("a file");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&report["agreed"], &report["device"]["f32_products"]), (&Value::from(true), &Value::from("f32")));
    let agreement = report["agreement"].as_array().expect("a list");
    for one in agreement.iter().filter(|one| one["precision"] == "f32") {
        let found = &one["found"]["ok"];
        let exact = one["ops"] == "plain";
        for key in ["logits", "gradient", "loss"] {
            assert_eq!(number(found, key) == 0.0, exact, "{one}");
        }
    }
    for one in report["speed"].as_array().expect("a list") {
        assert!(number(&one["manyheads"]["ok"], "images_per_second") > 0.0 && number(one, "mfu") > 0.0, "{one}");
    }
    place.run(&["bench", "gpu", "--seconds", "-1"]).expect(2);
    place.run(&["bench", "gpu", "--device", "gpu"]).expect(2).says(&["unknown device `gpu`"]);
    place.run(&["bench", "gpu", "--device", "wgpu:99"]).expect(1).says(&["wgpu:99"]);
    // A software renderer is no GPU, and the CPU is not checked unasked.
    let done = place.run(&["bench", "gpu", "--tiny", "--seconds", "20"]);
    assert!(done.code == Some(0) || done.stderr.contains("no GPU was found"), "{}", done.stderr);
}
