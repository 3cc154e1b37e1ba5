//! The same runs on wgpu. A machine without any adapter fails here: `mesa-vulkan-drivers` brings a software one.
#![cfg(feature = "wgpu")]

mod support;

use std::path::Path;

use support::{Done, Place, losses, metrics};

/// Seeking the fastest kernels takes minutes on a software adapter and changes no result beyond rounding.
const QUICK: [(&str, &str); 1] = [("CUBECL_AUTOTUNE_LEVEL", "0")];

/// Trains on the CPU and on wgpu and compares every step's loss.
#[track_caller]
fn agree(place: &Place, args: &[&str], steps: usize) {
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
    for (step, (a, b)) in cpu.iter().zip(&wgpu).enumerate() {
        assert!((a / b - 1.0).abs() < 1e-3, "step {step}: {a} on the CPU, {b} on wgpu");
    }
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
    agree(&place, &args, 20);
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
    agree(&place, &["tiny.toml", "--set", "model.heads=16"], 10);
}
