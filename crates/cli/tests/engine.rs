//! A run stops before it breaks its weights, says what it waits for, and does not start what cannot fit.

mod support;

use std::fs;
use std::path::Path;

use manyheads_trainer::checkpoint::Store;
use support::{Place, metrics, steps};

/// A learning rate of 1e3 behind one harmless step; a checkpoint after every step.
const EXPLODING: &str = r#"
[optimizer]
learning_rate = 1e3
reference_batch = 0

[train]
epochs = 40
batch_size = 8
accumulate = 2

[checkpoint]
every_steps = 1
every_epochs = 0
keep = 400
keep_best = false

[eval]
every_epochs = 0

[log]
every_steps = 1
"#;

fn place() -> Place {
    let place = Place::new();
    place.images(13, 4);
    // The tiny configuration's own section of the optimizer gives way.
    let tiny = support::TINY.replace("[optimizer]\nlearning_rate = 2e-3\nreference_batch = 0\nclip_norm = 1.0\n", "");
    place.write("exploding.toml", &format!("{tiny}{EXPLODING}"));
    place.config("[train]\nepochs = 3\nbatch_size = 8\naccumulate = 2\n[log]\nevery_steps = 2\n");
    place
}

/// The number behind `word` in a text.
fn number_after(text: &str, word: &str) -> u64 {
    let rest = &text[text.find(word).unwrap_or_else(|| panic!("`{word}` is not in {text}")) + word.len()..];
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a number follows")
}

fn events(run: &Path, event: &str) -> Vec<serde_json::Value> {
    metrics(run).into_iter().filter(|line| line["event"] == event).collect()
}

#[test]
fn a_learning_rate_of_1000_stops_by_name_before_the_weights_are_touched() {
    let place = place();
    let done = place.run(&["train", "exploding.toml", "--device", "cpu", "--out", "run"]).expect(1).says(&[
        "so training stops before the weights are touched",
        "the last good state is checkpoint step-",
        "Images of the step: ",
        "train/class",
        "The largest weight is",
    ]);
    let broken = number_after(&done.stderr, "error: step ");
    let good = number_after(&done.stderr, "is checkpoint step-");
    assert_eq!(good, broken, "the state before the broken step");
    let store = Store::new(&place.path("run"));
    let last = store.load(good).expect("the last good checkpoint is sound");
    assert!(last.model.values().all(|tensor| tensor.values.iter().all(|value| value.is_finite())));
    let told = events(&place.path("run"), "not-finite");
    assert_eq!((told.len(), told[0]["step"].as_u64()), (1, Some(broken)));
    assert!(told[0]["reason"].as_str().unwrap().contains("train/class"));

    // Nothing has changed, so nothing changes.
    let again = place.run(&["resume", "run", "--device", "cpu"]).expect(1);
    assert_eq!(number_after(&again.stderr, "error: step "), broken);

    // From a state before the weights had grown, with another learning rate, the run goes on.
    for step in steps(&place.path("run")).iter().skip(1) {
        fs::remove_dir_all(place.path("run/checkpoints").join(step)).unwrap();
    }
    let changed = ["--set", "optimizer.learning_rate=1e-3", "--allow", "optimizer.learning_rate"];
    place.run(&[&["resume", "run", "--device", "cpu"][..], &changed].concat()).expect(0);
    assert_eq!(events(&place.path("run"), "changed").len(), 1);
}

#[test]
fn as_many_broken_steps_as_allowed_are_left_out_and_counted_beyond_a_resume() {
    let place = place();
    let set = ["--set", "train.skip_non_finite=3"];
    let done = place
        .run(&[&["train", "exploding.toml", "--device", "cpu", "--out", "run"][..], &set].concat())
        .expect(1)
        .says(&["it is left out, 1 of 3 that train.skip_non_finite lets pass", "3 such steps have been left out before"]);
    let broken = number_after(&done.stderr, "error: step ");
    assert_eq!(events(&place.path("run"), "skipped-step").len(), 3);
    // The weights of the steps that were left out are those before them.
    let store = Store::new(&place.path("run"));
    let [before, after] = [broken - 3, broken].map(|step| store.load(step).expect("the checkpoint is sound"));
    assert_eq!((before.manifest.skipped_steps, after.manifest.skipped_steps), (0, 3));
    assert_eq!(before.model, after.model);
    assert_eq!(before.optimizer, after.optimizer);
    let again = place.run(&["resume", "run", "--device", "cpu"]).expect(1).says(&["3 steps left out"]);
    assert_eq!(number_after(&again.stderr, "error: step "), broken);
    // More may be allowed at any time.
    let more = place.run(&["resume", "run", "--device", "cpu", "--set", "train.skip_non_finite=5"]).expect(1);
    assert_eq!(number_after(&more.stderr, "error: step "), broken + 2);
}

#[test]
fn a_layer_scaled_by_1e30_stops_at_the_first_step_and_is_named() {
    let place = place();
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "first"]).expect(0);
    let mut bytes = fs::read(place.path("first/checkpoints/last/model.safetensors")).unwrap();
    scale(&mut bytes, "head.weight", 1e30);
    fs::write(place.path("scaled.safetensors"), bytes).unwrap();
    let train = ["train", "tiny.toml", "--device", "cpu", "--out", "second", "--weights", "scaled.safetensors"];
    place.run(&train).expect(1).says(&[
        "error: step 0: the ",
        "before the weights are touched",
        "no checkpoint was written yet",
        "in head.weight",
    ]);
    assert!(steps(&place.path("second")).is_empty());
}

/// Multiplies a tensor of a safetensors file.
fn scale(bytes: &mut [u8], name: &str, factor: f32) {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let place = |end: usize| 8 + length + header[name]["data_offsets"][end].as_u64().expect("the tensor is there") as usize;
    let range = place(0)..place(1);
    for value in bytes[range].chunks_exact_mut(4) {
        let scaled = f32::from_le_bytes(value.try_into().unwrap()) * factor;
        value.copy_from_slice(&scaled.to_le_bytes());
    }
}

#[test]
fn a_stall_says_what_is_waited_for_and_ends_nothing() {
    let place = place();
    let set = ["--set", "log.stall_seconds=0.001"];
    place
        .run(&[&["train", "tiny.toml", "--device", "cpu", "--out", "run"][..], &set].concat())
        .expect(0)
        .says(&["stalled: waiting for 0 s for ", "to compute step "]);
}

#[test]
fn a_run_that_no_memory_can_hold_is_refused_before_it_starts() {
    let place = place();
    let set = ["--set", "model.width=65536", "--set", "model.depth=64", "--set", "model.attention.overrides=[]"];
    place
        .run(&[&["train", "tiny.toml", "--device", "cpu", "--out", "run"][..], &set].concat())
        .expect(1)
        .says(&["GiB of memory for weights, gradients and the optimizer's state alone", "run.check_resources = false"]);
    assert!(!place.path("run").exists(), "nothing is left behind");
}
