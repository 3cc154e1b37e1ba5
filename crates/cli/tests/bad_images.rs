//! Files that are no images: an error by name, or counted and listed where the configuration says so.

mod support;

use std::fs;

use support::{Place, losses, metrics};

const RUN: &str = "[train]\nepochs = 2\nbatch_size = 8\naccumulate = 2\n[log]\nevery_steps = 1\n";

fn truncate(place: &Place, file: &str) {
    let path = place.path(file);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
}

#[test]
fn one_broken_image_fails_by_name_or_is_left_out_counted_and_listed() {
    let place = Place::new();
    place.images(8, 2);
    truncate(&place, "train/class3/0002.png");
    place.config(RUN);
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "a"]).expect(1).says(&[
        "class3/0002.png",
        "bad_image",
        "manyheads resume a",
    ]);
    // The run can go on from there, with the image left out.
    let config = place.path("a/config.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("bad_image = \"fail\"", "bad_image = \"skip\"")).unwrap();
    place.run(&["resume", "a", "--device", "cpu"]).expect(0);
    let skip = |out: &str, workers: &str| {
        let workers = format!("data.workers={workers}");
        let args =
            ["train", "tiny.toml", "--device", "cpu", "--out", out, "--set", "data.bad_image=skip", "--set", &workers, "--json"];
        place.run(&args).expect(0).json()
    };
    let result = skip("b", "2");
    assert_eq!(result["skipped"], 2, "once an epoch");
    let lines = metrics(&place.path("b"));
    let events: Vec<_> = lines.iter().filter(|line| line["kind"] == "event").collect();
    assert_eq!(events.len(), 2);
    for event in events {
        assert_eq!(event["event"], "bad-image");
        assert!(event["path"].as_str().unwrap().ends_with("class3/0002.png"));
        assert!(event["reason"].as_str().unwrap().len() > 5);
    }
    let images: u64 = lines.iter().filter(|line| line["kind"] == "train").map(|line| line["images"].as_u64().unwrap()).sum();
    assert_eq!(images, 2 * 79);
    skip("c", "0");
    support::assert_same_end(&place.path("a"), &place.path("b"));
    support::assert_same_end(&place.path("b"), &place.path("c"));
}

/// The evaluation counts what it saw and says what it did not see.
#[test]
fn a_broken_held_out_image_is_not_counted_and_is_told() {
    let place = Place::new();
    place.images(4, 3);
    place.config("[train]\nepochs = 1\nbatch_size = 8\naccumulate = 1\n");
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "run"]).expect(0);
    truncate(&place, "val/class0/0001.png");
    fs::write(place.path("val/class1/0001.png"), "not an image").unwrap();
    place.run(&["eval", "run"]).expect(1).says(&["val/class0/0001.png"]);
    let done = place.run(&["eval", "run", "--set", "data.bad_image=skip", "--json"]).expect(0);
    assert_eq!((&done.json()["n"], &done.json()["skipped"]), (&28.into(), &2.into()));
    done.says(&["class0/0001.png", "class1/0001.png"]);
}

/// timm#1081: labels of a flat folder are noise.
#[test]
fn wrong_folders_are_explained() {
    let place = Place::new();
    place.images(2, 2);
    place.config(RUN);
    place.run(&["train", "tiny.toml", "--set", "data.val=train/class0"]).expect(1).says(&["train/class0", "sub-folder"]);
    place.run(&["train", "tiny.toml", "--set", "data.train=nowhere"]).expect(1).says(&["nowhere"]);
    fs::rename(place.path("val/class9"), place.path("val/classX")).unwrap();
    place.run(&["train", "tiny.toml"]).expect(1).says(&["class9", "classX"]);
    assert!(!place.path("runs").exists());
}

/// deit#29: a loss that is not finite must stop the run before it is saved.
#[test]
fn a_diverging_run_stops_naming_step_and_images() {
    let place = Place::new();
    place.images(8, 2);
    place.config(RUN);
    let sets = ["optimizer.learning_rate=1e30", "schedule.warmup_epochs=0", "optimizer.clip_norm=0", "train.epochs=20"];
    let mut args = vec!["train", "tiny.toml", "--device", "cpu", "--out", "run"];
    args.extend(sets.iter().flat_map(|set| ["--set", set]));
    place.run(&args).expect(1).says(&["step ", "Images of the step", "learning_rate"]);
    assert!(losses(&place.path("run")).iter().all(|loss| loss.is_finite()));
}

/// The weights of the last good step stay; what came out of a broken update is neither saved nor called good.
#[test]
fn weights_that_are_not_finite_are_not_saved() {
    let place = Place::new();
    place.images(8, 2);
    place.config(RUN);
    let sets = ["optimizer.learning_rate=1e39", "schedule.warmup_epochs=0", "checkpoint.every_steps=1", "checkpoint.keep=1"];
    let mut args = vec!["train", "tiny.toml", "--device", "cpu", "--out", "run"];
    args.extend(sets.iter().flat_map(|set| ["--set", set]));
    place.run(&args).expect(1).says(&["not finite", "learning_rate"]);
    assert!(support::steps(&place.path("run")).is_empty());
}

#[test]
fn a_step_without_a_readable_image_is_passed_over() {
    let place = Place::new();
    place.images(2, 2);
    truncate(&place, "train/class3/0000.png");
    place.config("[train]\nepochs = 2\nbatch_size = 1\naccumulate = 1\n[log]\nevery_steps = 1\n");
    let args = ["train", "tiny.toml", "--device", "cpu", "--out", "run", "--set", "data.bad_image=skip", "--json"];
    let result = place.run(&args).expect(0).json();
    assert_eq!((&result["step"], &result["skipped"]), (&40.into(), &2.into()));
    assert_eq!(losses(&place.path("run")).len(), 38);
}

/// An evaluation that fails must not cost the training before it.
#[test]
fn a_broken_held_out_image_costs_no_training() {
    let place = Place::new();
    place.images(8, 2);
    place.config(RUN);
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "whole"]).expect(0);
    let path = place.path("val/class3/0001.png");
    let bytes = fs::read(&path).unwrap();
    truncate(&place, "val/class3/0001.png");
    let done = place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "run"]).expect(1);
    done.says(&["class3/0001.png", "up to step 5 is saved", "manyheads resume run"]);
    fs::write(&path, bytes).unwrap();
    place.run(&["resume", "run", "--device", "cpu"]).expect(0).says(&["continuing from"]);
    support::assert_same_end(&place.path("whole"), &place.path("run"));
}

/// A pipe called like an image would be waited for for ever.
#[test]
fn pipes_devices_and_dangling_links_neither_hang_nor_pass_unseen() {
    let place = Place::new();
    place.images(4, 2);
    let pipe = place.path("train/class0/pipe.png");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::os::unix::fs::symlink("/dev/zero", place.path("train/class1/zero.png")).unwrap();
    place.config("[train]\nepochs = 1\nbatch_size = 8\naccumulate = 1\n");
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "a"]).expect(0).says(&[
        "2 ",
        "pipes, sockets and devices",
        "pipe.png",
    ]);
    std::os::unix::fs::symlink("nowhere", place.path("train/class2/dangling.png")).unwrap();
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "b"]).expect(1).says(&["dangling.png", "leads nowhere"]);
    let skip = ["train", "tiny.toml", "--device", "cpu", "--out", "c", "--set", "data.bad_image=skip"];
    place.run(&skip).expect(0);
    assert!(std::process::Command::new("mkfifo").arg(place.path("pipe.tar")).status().unwrap().success());
    let sets = ["--set", "data.source=tar", "--set", "data.train=pipe.tar", "--set", "data.val=pipe.tar"];
    place.run(&[&["train", "tiny.toml"][..], &sets].concat()).expect(1).says(&["pipe.tar", "a pipe"]);
}
