//! The same run on wgpu. A machine without any adapter fails here: `mesa-vulkan-drivers` brings a software one.
#![cfg(feature = "wgpu")]

mod support;

use support::{Place, losses, metrics};

/// Autotuning on a software adapter takes minutes and changes no result beyond rounding.
const QUICK: [(&str, &str); 1] = [("CUBECL_AUTOTUNE_LEVEL", "0")];

#[test]
fn the_first_twenty_losses_agree_with_the_cpu() {
    let place = Place::new();
    place.images(40, 4);
    place.config("[train]\nepochs = 2\nbatch_size = 20\naccumulate = 2\n[log]\nevery_steps = 1\n");
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "cpu"]).expect(0);
    let mut command = place.command(&["train", "tiny.toml", "--device", "wgpu", "--out", "wgpu"]);
    let done = support::Done::from(command.envs(QUICK).output().unwrap()).expect(0);
    assert!(done.stderr.contains("device wgpu:0"), "{}", done.stderr);
    let (cpu, wgpu) = (losses(&place.path("cpu")), losses(&place.path("wgpu")));
    assert_eq!((cpu.len(), wgpu.len()), (20, 20));
    for (step, (a, b)) in cpu.iter().zip(&wgpu).enumerate() {
        assert!((a / b - 1.0).abs() < 1e-3, "step {step}: {a} on the CPU, {b} on wgpu");
    }
    assert!(cpu[19] < cpu[0], "it learns");
    let n = |run: &str| metrics(&place.path(run)).iter().filter_map(|line| line["n"].as_u64()).collect::<Vec<_>>();
    assert_eq!(n("cpu"), n("wgpu"));
    let mut eval = place.command(&["eval", "wgpu", "--device", "wgpu", "--json"]);
    let eval = support::Done::from(eval.envs(QUICK).output().unwrap()).expect(0).json();
    assert_eq!(eval["n"], 40);
    // A software adapter is taken only when named.
    let done = place.run(&["eval", "wgpu", "--device", "auto", "--json"]).expect(0).says(&["device cpu"]);
    assert!((done.json()["loss"].as_f64().unwrap() / eval["loss"].as_f64().unwrap() - 1.0).abs() < 1e-3);
    place.run(&["eval", "wgpu", "--device", "wgpu:99"]).expect(1).says(&["wgpu:99", "numbered from 0"]);
}
