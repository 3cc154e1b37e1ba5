//! A run's memory does not grow: what an epoch takes, the next ones take again.

mod support;

use support::{Done, Place, all_metrics};

/// Trains a network of `width` on `images` of each class in batches of `batch` for five epochs on `device`, and holds what the process and the device have after each from the second on
/// within 2 %. It is to be large enough that a page of the allocator, 2 MiB, is less, and as in earnest most of its memory is activations.
#[track_caller]
fn flat(device: &str, images: usize, width: usize, batch: usize) {
    let place = Place::new();
    place.images(images, 20);
    place.config("");
    let width = format!("model.width={width}");
    let batch = format!("train.batch_size={batch}");
    // A queue of batches that fills up late, on a busy machine, or a checkpoint that is written while the third epoch's steps go on, but was
    // not while the second's did, would look like a leak.
    let mut sets = vec![width.as_str(), &batch, "data.prefetch=1", "checkpoint.every_steps=1", "ema.enabled=true"];
    sets.extend(["train.epochs=5", "train.accumulate=1", "log.every_steps=5"]);
    let mut args = vec!["train", "tiny.toml", "--device", device, "--out", "run"];
    args.extend(sets.iter().flat_map(|set| ["--set", set]));
    Done::from(place.command(&args).env("CUBECL_AUTOTUNE_LEVEL", "0").output().unwrap()).expect(0);
    let lines = all_metrics(&place.path("run"));
    let epochs = |key: &str| -> Vec<f64> {
        let last = |epoch: u64| lines.iter().rev().find(|line| line["kind"] == "train" && line["epoch"] == epoch);
        (0..5).filter_map(|epoch| last(epoch)?[key].as_f64()).collect()
    };
    let level = |key: &str, values: &[f64]| {
        assert_eq!(values.len(), 5, "{key}");
        let (least, most) =
            values[1..].iter().fold((f64::MAX, 0.0f64), |(least, most), value| (least.min(*value), most.max(*value)));
        println!("{device}: {key} {values:?}");
        assert!(most / least < 1.02, "{device}: {key} after each epoch: {values:?}");
    };
    level("rate_memory_bytes", &epochs("rate_memory_bytes"));
    let pool = epochs("rate_device_memory_bytes");
    assert_eq!(pool.is_empty(), device == "cpu", "the CPU has no memory of its own: {pool:?}");
    if device != "cpu" {
        level("rate_device_memory_bytes", &pool);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_run_on_the_cpu_takes_what_its_second_epoch_takes() {
    flat("cpu", 160, 256, 160);
}

#[test]
#[cfg(all(target_os = "linux", feature = "wgpu"))]
fn a_run_on_wgpu_takes_what_its_second_epoch_takes() {
    flat("wgpu", 48, 64, 96);
}
