//! Train, then evaluate: the figures agree, equal runs are equal, and the loader's threads change nothing.

mod support;

use support::{Done, Place, assert_same_end, losses, metrics, steps};

#[test]
fn a_run_trains_evaluates_and_leaves_what_it_promises() {
    let place = Place::new();
    place.images(12, 6);
    place.config("[train]\nepochs = 3\nbatch_size = 16\naccumulate = 2\n[log]\nevery_steps = 2\n");
    let done = place.run(&["train", "tiny.toml", "--device", "cpu", "--json"]).expect(0);
    let result = done.json();
    assert_eq!(result["finished"], true);
    assert_eq!(result["n"], 60);
    let run = place.path("runs/tiny");
    for file in [
        "config.toml",
        "environment.json",
        "metrics.jsonl",
        "checkpoints/last/manifest.json",
        "checkpoints/best/model.safetensors",
    ] {
        assert!(run.join(file).exists(), "{file}");
    }
    // 120 images in batches of 16: 7 batches, so 4 steps an epoch.
    assert_eq!(steps(&run).last().map(String::as_str), Some("step-00000012"));

    let eval = place.run(&["eval", "runs/tiny", "--json", "--device", "cpu"]).expect(0).json();
    for key in ["top1", "top5", "loss", "n"] {
        assert_eq!(eval[key], result[key], "{key}");
    }
    let best = place.run(&["eval", "runs/tiny", "--json", "--checkpoint", "best"]).expect(0).json();
    assert_eq!(best["top1"], result["best"]["top1"]);
    // The same weights as a file, under the resolved configuration; and in batches of another size, whose last is partial.
    let weights = run.join("checkpoints/last/model.safetensors");
    let config = run.join("config.toml");
    let args = ["eval", config.to_str().unwrap(), "--weights", weights.to_str().unwrap(), "--json", "--set", "eval.batch_size=7"];
    let file = place.run(&args).expect(0).json();
    assert_eq!(file["top1"], eval["top1"]);
    assert_eq!(file["n"], 60);
    assert!((file["loss"].as_f64().unwrap() / eval["loss"].as_f64().unwrap() - 1.0).abs() < 1e-5);

    let text = place.run(&["eval", "runs/tiny"]).expect(0);
    assert!(text.stdout.starts_with(&format!("top-1 {:.2} %", eval["top1"].as_f64().unwrap())), "{}", text.stdout);
    // A second run of the same name does not touch the first.
    place.run(&["train", "tiny.toml", "--set", "train.epochs=1", "--json"]).expect(0);
    assert!(place.path("runs/tiny-2/metrics.jsonl").exists());
    place.run(&["train", "tiny.toml", "--out", "runs/tiny"]).expect(2).says(&["already holds a run", "resume"]);
}

#[test]
fn equal_runs_are_equal_with_any_number_of_loader_threads() {
    let place = Place::new();
    place.images(12, 4);
    place.config("[train]\nepochs = 3\nbatch_size = 16\naccumulate = 1\n[log]\nevery_steps = 1\n");
    for (out, workers) in [("a", "1"), ("b", "2"), ("c", "0"), ("d", "5")] {
        let set = format!("data.workers={workers}");
        place.run(&["train", "tiny.toml", "--device", "cpu", "--out", out, "--set", &set]).expect(0);
    }
    for other in ["b", "c", "d"] {
        assert_same_end(&place.path("a"), &place.path(other));
    }
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "e", "--set", "run.seed=1"]).expect(0);
    assert_ne!(losses(&place.path("a")), losses(&place.path("e")), "another seed is another run");
}

/// Every sum is taken in an order that follows from the shapes alone.
#[test]
fn the_number_of_computing_threads_changes_no_bit() {
    let place = Place::new();
    place.images(12, 4);
    // Products large enough that they are shared out among threads, and a batch that no number of threads divides.
    place.config("[train]\nepochs = 1\nbatch_size = 37\naccumulate = 1\n[log]\nevery_steps = 1\n[ema]\nenabled = true\n");
    for ops in ["fused", "plain"] {
        let runs = ["1", "2", "5"].map(|threads| format!("{ops}-{threads}"));
        for run in &runs {
            let (_, threads) = run.split_once('-').expect("a form and a number");
            let sets = ["model.width=96".to_owned(), format!("run.ops={ops}")];
            let mut args = vec!["train", "tiny.toml", "--device", "cpu", "--out", run];
            args.extend(sets.iter().flat_map(|set| ["--set", set]));
            Done::from(place.command(&args).env("RAYON_NUM_THREADS", threads).output().unwrap()).expect(0);
        }
        for other in &runs[1..] {
            assert_same_end(&place.path(&runs[0]), &place.path(other));
        }
    }
}

#[test]
fn a_tar_of_the_folder_trains_the_same_run() {
    let place = Place::new();
    place.images(6, 3);
    place.config("[train]\nepochs = 1\nbatch_size = 16\naccumulate = 1\n[log]\nevery_steps = 1\n");
    for half in ["train", "val"] {
        let file = std::fs::File::create(place.path(&format!("{half}.tar"))).unwrap();
        let mut tar = tar::Builder::new(file);
        tar.append_dir_all(".", place.path(half)).unwrap();
        tar.finish().unwrap();
    }
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "folder"]).expect(0);
    let sets = ["data.source=tar", "data.train=train.tar", "data.val=val.tar"];
    let mut args = vec!["train", "tiny.toml", "--device", "cpu", "--out", "tar"];
    args.extend(sets.iter().flat_map(|set| ["--set", set]));
    place.run(&args).expect(0);
    assert_same_end(&place.path("folder"), &place.path("tar"));
}

/// Four batches of 8 make the step of one batch of 32, and a smaller last window counts by its images.
#[test]
fn accumulation_equals_the_large_batch() {
    let place = Place::new();
    place.images(33, 2); // 330 images: 10 windows of 32, and one of 10 images in batches of 8 and 2.
    place.config("[train]\nepochs = 1\ndrop_last = false\n[log]\nevery_steps = 1\n");
    for (out, batch, accumulate) in [("split", "8", "4"), ("whole", "32", "1")] {
        let (batch, accumulate) = (format!("train.batch_size={batch}"), format!("train.accumulate={accumulate}"));
        place.run(&["train", "tiny.toml", "--device", "cpu", "--out", out, "--set", &batch, "--set", &accumulate]).expect(0);
    }
    let (split, whole) = (losses(&place.path("split")), losses(&place.path("whole")));
    assert_eq!((split.len(), whole.len()), (11, 11));
    let images = |run: &str| metrics(&place.path(run)).iter().filter_map(|line| line["images"].as_u64()).collect::<Vec<_>>();
    assert_eq!(images("split"), [32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 10]);
    assert_eq!(images("split"), images("whole"));
    for (step, (a, b)) in split.iter().zip(&whole).enumerate() {
        assert!((a / b - 1.0).abs() < 1e-5, "step {step}: {a} and {b}");
    }
    let (a, b) = (weights(&place, "split"), weights(&place, "whole"));
    for (name, values) in &a {
        let largest = values.iter().zip(&b[name]).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(largest < 1e-5, "{name} differs by {largest}");
    }
}

fn weights(place: &Place, run: &str) -> std::collections::HashMap<String, Vec<f32>> {
    let path = place.path(run).join("checkpoints/last/model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let tensors = manyheads_trainer::checkpoint::read_tensors(&bytes, &path).unwrap();
    tensors.into_iter().map(|(name, tensor)| (name, tensor.values)).collect()
}
