//! The same runs on wgpu. A machine without any adapter fails here: `mesa-vulkan-drivers` brings a software one.
#![cfg(feature = "wgpu")]

mod support;

use std::path::Path;

use support::{Done, Place, losses, metrics};

/// How far losses may be apart: over some steps rounding alone, over hundreds what training makes of it.
const ROUNDING: f64 = 1e-3;
const TRAINED: f64 = 1e-2;

/// Seeking the fastest kernels takes minutes on a software adapter and changes no result beyond rounding.
const QUICK: [(&str, &str); 1] = [("CUBECL_AUTOTUNE_LEVEL", "0")];

/// Trains on the CPU and on wgpu and compares every step's loss.
#[track_caller]
fn agree(place: &Place, args: &[&str], steps: usize, limit: f64) {
    let run = |device: &str| {
        let mut all = vec!["train"];
        all.extend(args);
        all.extend(["--device", device, "--out", device, "--set", "log.every_steps=1"]);
        Done::from(place.command(&all).envs(QUICK).output().unwrap()).expect(0)
    };
    run("cpu");
    let done = run("wgpu");
    assert!(done.stderr.contains("device wgpu:0"), "{}", done.stderr);
    // Whoever names a software adapter is told what it is.
    assert_eq!(done.stderr.contains("llvmpipe"), done.stderr.contains("software renderer"), "{}", done.stderr);
    assert!(!done.stderr.contains("XDG_RUNTIME_DIR"), "{}", done.stderr);
    let (cpu, wgpu) = (losses(&place.path("cpu")), losses(&place.path("wgpu")));
    assert_eq!((cpu.len(), wgpu.len()), (steps, steps));
    let mut furthest = 0.0f64;
    for (step, (a, b)) in cpu.iter().zip(&wgpu).enumerate() {
        let apart = (a / b - 1.0).abs();
        assert!(apart < limit, "step {step}: {a} on the CPU, {b} on wgpu");
        furthest = furthest.max(apart);
    }
    println!("{args:?}: losses of {steps} steps up to {furthest:.1e} apart");
    let n = |run: &str| metrics(&place.path(run)).iter().filter_map(|line| line["n"].as_u64()).collect::<Vec<_>>();
    assert_eq!(n("cpu"), n("wgpu"));
}

#[test]
fn the_quickstarts_model_has_the_cpus_losses_for_twenty_steps() {
    let place = Place::new();
    place.images(64, 2);
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/quickstart.toml");
    let mut args = vec![config.to_str().unwrap()];
    let sets = ["data.source=folder", "data.train=train", "data.val=val", "train.epochs=1", "train.batch_size=32"];
    args.extend(sets.iter().flat_map(|set| ["--set", set]));
    agree(&place, &args, 20, ROUNDING);
    let losses = losses(&place.path("wgpu"));
    assert!(losses[19] < losses[0] - 0.1, "it learns: {losses:?}");

    // A software adapter is taken only when named, and the weights mean the same on either device.
    let done = place.run(&["eval", "wgpu", "--device", "auto", "--json"]).expect(0).says(&["device cpu"]);
    let loss = done.json()["loss"].as_f64().unwrap();
    let lines = metrics(&place.path("wgpu"));
    let on_wgpu = lines.iter().find_map(|line| (line["kind"] == "eval").then(|| line["loss"].as_f64().unwrap())).unwrap();
    assert!((loss / on_wgpu - 1.0).abs() < 1e-3, "{loss} on the CPU, {on_wgpu} on wgpu");
    place.run(&["eval", "wgpu", "--device", "wgpu:99"]).expect(1).says(&["wgpu:99", "numbered from 0"]);
}

/// Every kind of attention with heads of one feature, where burn#5122 has matrix-vector products go wrong, with accumulation and
/// stochastic depth; and burn#5162, where gradients of parameters alone are not finite on wgpu.
#[test]
fn every_attention_with_heads_of_one_feature_has_the_cpus_losses() {
    let place = Place::new();
    place.images(16, 1);
    place.config("[train]\nepochs = 1\nbatch_size = 8\naccumulate = 2\n");
    agree(&place, &["tiny.toml", "--set", "model.heads=16"], 10, ROUNDING);
}

/// A GPU gets bytes and erases and mixes them itself: rectangles over each other, filled with noise, and groups mixed after that.
#[test]
fn erased_and_mixed_images_have_the_cpus_losses() {
    let place = Place::new();
    place.images(16, 1);
    place.config("[train]\nepochs = 1\nbatch_size = 16\naccumulate = 1\n[augment]\nerasing = 0.9\nerasing_count = 3\n[mix]\nmixup = 0.8\ncutmix = 1.0\n");
    agree(&place, &["tiny.toml"], 10, ROUNDING);
}

#[test]
fn recomputed_blocks_have_the_cpus_losses() {
    let place = Place::new();
    place.images(16, 1);
    place.config("[train]\nepochs = 1\nbatch_size = 8\naccumulate = 2\nrecompute = true\n[model.dropout]\nprojections = 0.1\n");
    agree(&place, &["tiny.toml"], 10, ROUNDING);
}

/// Two hundred steps of one kind of attention in every layer.
fn two_hundred_steps(kind: &str) {
    let place = Place::new();
    place.images(32, 1);
    place.config("[train]\nepochs = 10\nbatch_size = 16\naccumulate = 1\n[eval]\nevery_epochs = 10\n");
    let kind = format!("model.attention.kind={kind}");
    // A rate at which rounding does not grow from step to step.
    let sets = [&kind, "model.attention.overrides=[]", "ema.enabled=true", "optimizer.learning_rate=1e-3"];
    let args: Vec<&str> = std::iter::once("tiny.toml").chain(sets.iter().flat_map(|set| ["--set", set])).collect();
    agree(&place, &args, 200, TRAINED);
    let losses = losses(&place.path("wgpu"));
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(mean(&losses[180..]) < mean(&losses[..20]) - 0.1, "it learns: {losses:?}");
}

#[test]
fn softmax_attention_has_the_cpus_losses_for_two_hundred_steps() {
    two_hundred_steps("softmax");
}

#[test]
fn linear_attention_has_the_cpus_losses_for_two_hundred_steps() {
    two_hundred_steps("linear");
}

#[test]
fn hydra_attention_has_the_cpus_losses_for_two_hundred_steps() {
    two_hundred_steps("hydra");
}

/// WGSL has no bf16. Whoever asks for it is told before anything starts.
#[test]
fn bf16_is_refused_with_the_reason() {
    let place = Place::new();
    place.images(2, 1);
    place.config("[train]\nepochs = 1\nbatch_size = 4\naccumulate = 1\n");
    for (key, more) in
        [("train.precision", &["--out", "run"][..]), ("eval.precision", &["--out", "run"]), ("train.precision", &["--dry-run"])]
    {
        let set = format!("{key}=bf16");
        let args = [&["train", "tiny.toml", "--device", "wgpu", "--set", &set][..], more].concat();
        place.run(&args).expect(1).says(&["device wgpu:0", "does not compute in bf16", &format!("set {key} = \"f32\"")]);
        assert!(!place.path("run").exists(), "nothing is left behind");
    }
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "run", "--set", "train.precision=bf16"]).expect(0);
    place.run(&["resume", "run", "--device", "wgpu"]).expect(1).says(&["does not compute in bf16"]);
    let eval = ["eval", "run", "--device", "wgpu", "--set", "eval.precision=bf16"];
    place.run(&eval).expect(1).says(&["does not compute in bf16", "eval.precision"]);
}

/// Marks in autodiff's graph go through the fusion of operations, too.
#[test]
fn a_profile_splits_a_step() {
    let place = Place::new();
    let sizes =
        ["model.image_size=16", "model.patch_size=8", "model.width=16", "model.heads=2", "model.depth=1", "model.classes=4"];
    let mut args = vec!["bench", "train", "--profile", "--json", "--device", "wgpu", "--attention", "linear"];
    args.extend(["--batch", "2", "--steps", "1", "--warmup", "0"]);
    args.extend(sizes.iter().flat_map(|set| ["--set", set]));
    let report = Done::from(place.command(&args).envs(QUICK).output().unwrap()).expect(0).json();
    let kinds = report["profile"]["kinds"].as_array().unwrap();
    let shares: f64 = kinds.iter().map(|kind| kind["share"].as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{report}");
    for kind in kinds.iter().filter(|kind| !kind["forward_seconds"].is_null()) {
        for pass in ["forward_seconds", "backward_seconds"] {
            assert!(kind[pass].as_f64().is_some_and(|seconds| seconds > 0.0), "{pass}: {kind}");
        }
    }
    assert!(report["device_memory_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{report}");
}
