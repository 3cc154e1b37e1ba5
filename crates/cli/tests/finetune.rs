//! Training from weights: another resolution, other classes, other attention, a teacher. The flows of `configs/small` and what users make
//! of them.

mod support;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use manyheads_trainer::checkpoint::read_tensors;
use support::{Place, last, metrics};

/// A file of `configs/small`.
fn small(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/small").join(name);
    path.to_str().expect("UTF-8").to_owned()
}

fn top1(done: &support::Done) -> f64 {
    done.json()["top1"].as_f64().expect("a percentage")
}

/// The tensors of a run's last checkpoint: values by name.
fn tensors(run: &Path) -> HashMap<String, (Vec<usize>, Vec<f32>)> {
    let path = run.join("checkpoints/last/model.safetensors");
    let read = read_tensors(&fs::read(&path).expect("weights"), &path).expect("sound weights");
    read.into_iter().map(|(name, tensor)| (name, (tensor.shape, tensor.values))).collect()
}

/// What ImageNet's models do from 224 to 384 pixels, at a small size and shortened: the weights lose at the new resolution, and training
/// wins it back.
#[test]
fn a_network_is_fine_tuned_to_a_higher_resolution() {
    let place = Place::new();
    let train = |config: &str, epochs: &str| {
        let epochs = format!("train.epochs={epochs}");
        place.run(&["train", &small(config), "--device", "cpu", "--json", "--set", &epochs]).expect(0)
    };
    let base = top1(&train("base-20.toml", "2"));
    let config = small("finetune-28.toml");
    let eval = ["eval", &config, "--weights", "runs/small-base-20/checkpoints/last", "--json"];
    let start = place.run(&eval).expect(0).says(&["pos_embed [1, 26, 64] to [1, 50, 64]"]);
    let done = train("finetune-28.toml", "1").says(&["starting from", "pos_embed [1, 26, 64] to [1, 50, 64]"]);
    println!("base {base} %, its weights at 28 pixels {} %, fine-tuned {} %", top1(&start), top1(&done));
    assert!(base > 60.0, "{base}");
    assert!(top1(&done) > top1(&start) + 5.0, "from {} to {}", top1(&start), top1(&done));
}

/// A student with a distillation token learns from a finished run, shortened.
#[test]
fn a_student_is_distilled_from_a_teachers_run() {
    let place = Place::new();
    let train = |config: &str, epochs: &str| {
        let epochs = format!("train.epochs={epochs}");
        place.run(&["train", &small(config), "--device", "cpu", "--json", "--set", &epochs])
    };
    train("student.toml", "1").expect(1).says(&["small-teacher", "cannot open"]);
    train("teacher.toml", "2").expect(0);
    let done = train("student.toml", "2").expect(0).says(&["teacher", "runs/small-teacher"]);
    let scores: Vec<f64> = metrics(&place.path("runs/small-student")).iter().filter_map(|line| line["top1"].as_f64()).collect();
    println!("student after each epoch: {scores:?}");
    assert_eq!(scores.len(), 2);
    assert!(scores[1] > scores[0] && top1(&done) > 50.0, "{scores:?}");
    // A second head, which knows more than nothing by itself: it was taught.
    let student = tensors(&place.path("runs/small-student"));
    assert!(student["head_dist.weight"].1 != student["head.weight"].1);
    assert_eq!(student["dist_token"].0, [1, 1, 32]);
}

/// A base run of 16 features in softmax attention, at 28 pixels with ten classes.
fn base() -> (Place, PathBuf) {
    let place = Place::new();
    place.images(8, 2);
    let plain = support::TINY.split("[[model.attention").next().unwrap().to_owned();
    let rest = support::TINY.split("[data]").nth(1).unwrap();
    let train = "[train]\nepochs = 1\nbatch_size = 16\naccumulate = 1\n[log]\nevery_steps = 1\n";
    place.write("base.toml", &format!("{plain}[data]{rest}{train}"));
    place.run(&["train", "base.toml", "--device", "cpu", "--out", "base"]).expect(0);
    let run = place.path("base");
    (place, run)
}

/// With all frozen but the head, what was loaded can be told from what began anew.
const HEAD_ALONE: &str = "optimizer.groups=[{pattern = \"*\", freeze = true}, {pattern = \"head.*\"}]";

#[test]
fn other_classes_begin_a_new_head_and_keep_the_rest() {
    let (place, run) = base();
    for half in ["train", "val"] {
        for class in 3..10 {
            fs::remove_dir_all(place.path(half).join(format!("class{class}"))).unwrap();
        }
    }
    let args = ["train", "base.toml", "--device", "cpu", "--weights", "base", "--out", "three", "--set", "model.classes=3"];
    let frozen = [&args[..], &["--set", HEAD_ALONE]].concat();
    place.run(&frozen).expect(0).says(&["starting from", "head.weight", "the head for 3 classes begins anew"]);
    let (before, after) = (tensors(&run), tensors(&place.path("three")));
    assert_eq!(after["head.weight"].0, [3, 16]);
    for (name, (_, values)) in &before {
        if !name.starts_with("head.") {
            assert!(after[name].1 == *values, "{name} was frozen");
        }
    }
    // The classes that the configuration forgot are told before anything is written.
    let forgotten = ["train", "base.toml", "--device", "cpu", "--weights", "base", "--out", "x"];
    place.run(&forgotten).expect(2).says(&["model.classes = 3"]);
    assert!(!place.path("x").exists());
}

#[test]
fn softmax_weights_go_into_hydra_layers_and_learn_at_their_own_rates() {
    let (place, run) = base();
    let hydra = "model.attention.overrides=[{kind = \"hydra\", place = \"back\", count = 2}]";
    let args = ["train", "base.toml", "--device", "cpu", "--weights", "base", "--set", hydra];
    let frozen = [&args[..], &["--out", "frozen", "--set", HEAD_ALONE]].concat();
    place.run(&frozen).expect(0).says(&["1 × softmax + 2 × hydra", "tensors loaded"]);
    let (before, after) = (tensors(&run), tensors(&place.path("frozen")));
    assert!(before.iter().all(|(name, tensor)| name.starts_with("head.") || after[name] == *tensor), "all of it was taken over");

    // Layer decay: what lies lower moves less, in steps of one length for all (SGD without momentum, one step, no decay of weights).
    let decay = ["optimizer.layer_decay=0.1", "optimizer.kind=sgd", "optimizer.momentum=0", "optimizer.nesterov=false"];
    let mut slow = [&args[..], &["--out", "slow", "--set", "train.batch_size=80", "--set", "schedule.warmup_epochs=0"]].concat();
    slow.extend(decay.iter().chain(&["optimizer.weight_decay=0", "optimizer.clip_norm=0"]).flat_map(|set| ["--set", set]));
    place.run(&slow).expect(0);
    let mut even: Vec<&str> = slow.iter().map(|arg| if *arg == "slow" { "even" } else { *arg }).collect();
    even.extend(["--set", "optimizer.layer_decay=1"]);
    place.run(&even).expect(0);
    let (slow, even) = (tensors(&place.path("slow")), tensors(&place.path("even")));
    let moved = |after: &HashMap<String, (Vec<usize>, Vec<f32>)>, name: &str| -> f64 {
        let pairs = after[name].1.iter().zip(&before[name].1);
        pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
    };
    // Three blocks: the head has the whole rate, block 2 a tenth of it, block 0 a thousandth.
    for (name, factor) in [("head.weight", 1.0), ("blocks.2.mlp.fc2.weight", 0.1), ("blocks.1.mlp.fc2.weight", 0.01)] {
        let ratio = moved(&slow, name) / moved(&even, name);
        assert!((ratio / factor - 1.0).abs() < 0.05, "{name} moved {ratio} times as far");
    }
}

/// Weights begin a network at another resolution. Those of a network with another width, or without the student's distillation token, are
/// refused before a run begins.
#[test]
fn weights_begin_another_resolution_and_no_other_network() {
    let (place, _run) = base();
    let args = ["train", "base.toml", "--device", "cpu", "--weights", "base", "--set"];
    let student = [&args[..], &["model.distilled=true", "--out", "student", "--set", "distillation.kind=soft"]].concat();
    let student = [&student[..], &["--set", "distillation.teacher=base"]].concat();
    place.run(&student).expect(1).says(&["pos_embed", "compare class_token, distilled"]);

    let larger = [&args[..], &["model.image_size=56", "--out", "larger"]].concat();
    place.run(&larger).expect(0).says(&["pos_embed [1, 17, 16] to [1, 65, 16]"]);

    let wider = [&args[..], &["model.width=32", "--out", "wider"]].concat();
    place.run(&wider).expect(2).says(&["train.weights", "width is 16 in the file and not 32"]);
    assert!(!place.path("wider").exists() && !place.path("student").exists());
}

/// `--weights` begins a new run and leaves the old one alone; `resume` continues a run and has no use for the weights it began with.
#[test]
fn weights_and_resume_are_two_things() {
    let (place, run) = base();
    let old = metrics(&run);
    let args = ["train", "base.toml", "--device", "cpu", "--weights", "base", "--out", "new", "--set", "train.epochs=2"];
    place.run(&args).expect(0);
    assert_eq!(metrics(&run), old, "the old run is as it was");
    let lines = metrics(&place.path("new"));
    assert_eq!((&lines[0]["step"], &lines[0]["epoch"]), (&1.into(), &0.into()), "a new run counts from the start");
    let config = fs::read_to_string(place.path("new/config.toml")).unwrap();
    assert!(config.contains("weights_sha256 = ") && config.contains("/base\""), "{config}");
    place.run(&["resume", "base", "--weights", "new"]).expect(2).says(&["--weights"]);
    // Cut short, with the weights gone: the checkpoint is enough.
    let end = last(&place.path("new"), "model.safetensors");
    fs::remove_dir_all(&run).unwrap();
    for name in support::steps(&place.path("new")).iter().skip(1) {
        fs::remove_dir_all(place.path("new/checkpoints").join(name)).unwrap();
    }
    place.run(&["resume", "new", "--device", "cpu"]).expect(0).says(&["continuing from"]);
    assert!(last(&place.path("new"), "model.safetensors") == end, "bit for bit");
    // A new run of the same configuration needs them.
    place.run(&["train", "new/config.toml", "--device", "cpu", "--out", "again"]).expect(1).says(&["base"]);
}
