//! DeiT's recipe end to end: everything on at once, resumed, accumulated, distilled.

mod support;

use std::fs;
use std::time::{Duration, Instant};

use support::{Place, assert_same_end, last, losses, metrics};

/// Augmentation, mixing, dropout, an average and repeated augmentation at once.
const EVERYTHING: &str = r#"
[model.dropout]
head = 0.1
positions = 0.1
patches = 0.25
projections = 0.1
[augment]
auto = "rand-m9-mstd0.5-inc1"
erasing = 0.25
repeats = 3
[mix]
mixup = 0.8
cutmix = 1.0
group = 4
[ema]
enabled = true
decay = 0.9
warmup = true
[train]
epochs = 6
batch_size = 16
accumulate = 2
drop_last = false
[checkpoint]
every_steps = 2
every_epochs = 0
keep = 3
[log]
every_steps = 1
"#;

/// What goes before a section's keys in the small configuration.
fn with(sections: &str, optimizer: &str) -> String {
    let tiny = support::TINY.replace("[optimizer]\n", &format!("[optimizer]\n{optimizer}\n"));
    format!("{tiny}{sections}")
}

/// A teacher: a run `teacher`, and its logits of the training images in `logits.safetensors`.
fn teach(place: &Place) {
    let train = "[train]\nepochs = 2\nbatch_size = 20\naccumulate = 1\n";
    place.write("teacher.toml", &with(train, ""));
    place.run(&["train", "teacher.toml", "--device", "cpu", "--out", "teacher"]).expect(0);
    let logits = ["eval", "teacher", "--data", "train", "--logits", "logits.safetensors", "--set", "eval.crop_pct=1.0"];
    place.run(&logits).expect(0);
}

/// Trains `tiny.toml` to its end as the run `whole`, and once more as `broken`, killed at five steps that `seed` draws and resumed each
/// time; both end alike to the last bit.
fn killed_it_ends_as_unbroken(place: &Place, seed: u64) {
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "whole"]).expect(0);
    let lines = metrics(&place.path("whole")).len();
    let mut random = seed;
    let mut at: Vec<usize> = (0..5)
        .map(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            1 + (random >> 33) as usize % (lines - 12)
        })
        .collect();
    at.sort_unstable();
    let mut args = vec!["train", "tiny.toml", "--device", "cpu", "--out", "broken"];
    for lines in at {
        let child = place.start(&args);
        let start = Instant::now();
        while fs::read_to_string(place.path("broken/metrics.jsonl")).map_or(0, |text| text.lines().count()) < lines {
            assert!(start.elapsed() < Duration::from_secs(120), "the run writes no metrics");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(std::process::Command::new("kill").arg("-KILL").arg(child.id().to_string()).status().unwrap().success());
        assert!(!child.wait_with_output().unwrap().status.success(), "the run had ended before it was killed");
        args = vec!["resume", "broken", "--device", "cpu"];
    }
    place.run(&args).expect(0);
    assert_same_end(&place.path("whole"), &place.path("broken"));
    assert_eq!(last(&place.path("whole"), "ema.safetensors"), last(&place.path("broken"), "ema.safetensors"));
}

#[test]
fn a_run_with_everything_on_goes_on_bit_for_bit_after_signals() {
    let place = Place::new();
    place.images(13, 4);
    teach(&place);
    let groups = "layer_decay = 0.8\ngroups = [{pattern = \"patch_embed.*\", freeze = true}, {pattern = \"head.*\", rate = 2.0}]";
    let taught = "[distillation]\nkind = \"hard\"\nteacher = \"teacher\"\n";
    let config = with(&format!("{EVERYTHING}{taught}"), groups).replace("[model]\n", "[model]\ndistilled = true\n");
    place.write("tiny.toml", &config);
    killed_it_ends_as_unbroken(&place, 5);
    let evaluations: Vec<_> = metrics(&place.path("whole")).into_iter().filter(|line| line["kind"] == "eval").collect();
    assert_eq!(evaluations.len(), 6);
    assert!(evaluations.iter().all(|line| line["ema_top1"].is_number() && line["ema_loss"] != line["loss"]), "{evaluations:?}");

    let average = last(&place.path("whole"), "ema.safetensors");
    assert_ne!(average, last(&place.path("whole"), "model.safetensors"));
    // What was frozen is as it was initialised, what was trained is not.
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "short", "--set", "train.epochs=1"]).expect(0);
    let tensor = |run: &str, name: &str| {
        let path = place.path(run).join("checkpoints/last/model.safetensors");
        let bytes = fs::read(&path).unwrap();
        manyheads_trainer::checkpoint::read_tensors(&bytes, &path).unwrap().remove(name).unwrap().values
    };
    assert_eq!(tensor("whole", "patch_embed.proj.weight"), tensor("short", "patch_embed.proj.weight"));
    assert_ne!(tensor("whole", "head.weight"), tensor("short", "head.weight"));

    let (own, averaged) = (["eval", "whole", "--json"], ["eval", "whole", "--json", "--ema"]);
    let (own, averaged) = (place.run(&own).expect(0).json(), place.run(&averaged).expect(0).json());
    let end = evaluations.last().unwrap();
    assert_eq!((&own["top1"], &averaged["top1"]), (&end["top1"], &end["ema_top1"]));
    assert_eq!(averaged["loss"], end["ema_loss"]);
    // The average can leave too.
    place.run(&["weights", "convert", "whole", "--ema", "--to", "timm", "--out", "average.safetensors"]).expect(0);
    place.run(&["weights", "inspect", "whole", "--ema"]).expect(0);
    let values = |path: std::path::PathBuf| {
        let bytes = fs::read(&path).unwrap();
        manyheads_trainer::checkpoint::read_tensors(&bytes, &path).unwrap().remove("head.weight").unwrap().values
    };
    assert_eq!(values(place.path("average.safetensors")), values(place.path("whole/checkpoints/last/ema.safetensors")));
    // deit#173: an average that is gone is an error, not a fresh start.
    for step in support::steps(&place.path("broken")) {
        fs::remove_file(place.path("broken/checkpoints").join(step).join("ema.safetensors")).unwrap();
    }
    place.run(&["resume", "broken", "--device", "cpu"]).expect(1).says(&["ema.safetensors", "missing"]);
}

/// The same in bf16, with blocks that are computed again.
#[test]
fn bf16_with_recomputed_blocks_goes_on_bit_for_bit() {
    let place = Place::new();
    place.images(13, 4);
    teach(&place);
    let taught = "[distillation]\nkind = \"soft\"\nteacher = \"teacher\"\n";
    let everything = EVERYTHING.replace("[train]\n", "[train]\nprecision = \"bf16\"\nrecompute = true\n");
    place.write("tiny.toml", &with(&format!("{everything}{taught}"), ""));
    killed_it_ends_as_unbroken(&place, 11);
}

/// The other half of the recipe: LAMB, binary cross-entropy, LayerScale, attention maps that drop entries, a teacher's stored logits.
#[test]
fn lamb_with_stored_logits_and_dropped_attention_goes_on_bit_for_bit() {
    let place = Place::new();
    place.images(13, 4);
    teach(&place);
    let more = "[distillation]\nkind = \"soft\"\ntemperature = 3.0\nlogits = \"logits.safetensors\"\n";
    let everything = EVERYTHING.replace("[model.dropout]\n", "[model.dropout]\nattention = 0.1\n");
    let everything = everything.replace("[train]\n", "[train]\nloss = \"bce\"\nlabel_smoothing = 0.0\n");
    let config = with(&format!("{everything}{more}"), "kind = \"lamb\"").replace("clip_norm = 1.0", "clip_norm = 0.5");
    let config = config.replace("[model]\n", "[model]\nlayer_scale = 1e-4\nstochastic_depth_mode = \"constant\"\n");
    // Softmax in every layer: the others have no map.
    let (model, rest) = config.split_once("[[model.attention.overrides]]").unwrap();
    let (_, rest) = rest.split_once("[data]").unwrap();
    place.write("tiny.toml", &format!("{model}[data]{rest}"));
    killed_it_ends_as_unbroken(&place, 8);
}

/// Batches of whole groups of mixing add up to the large batch, for every loss; the last window counts by its images.
#[test]
fn accumulation_equals_the_large_batch_with_mixing_and_every_loss() {
    let place = Place::new();
    place.images(10, 2);
    teach(&place);
    let (teacher, logits) = ("distillation.teacher=teacher", "distillation.logits=logits.safetensors");
    for (name, sets) in [
        ("ce", &["train.label_smoothing=0.1", "model.dropout.projections=0.1", "model.dropout.patches=0.25"][..]),
        ("bce", &["train.loss=bce", "train.label_smoothing=0"]),
        ("lamb", &["optimizer.kind=lamb", "optimizer.clip_norm=0"]),
        ("sgd", &["optimizer.kind=sgd"]),
        ("hard", &["distillation.kind=hard", "model.distilled=true", teacher]),
        ("soft", &["distillation.kind=soft", "distillation.temperature=3.0", "model.distilled=true", teacher]),
        ("hard-stored", &["distillation.kind=hard", "model.distilled=true", logits]),
        ("soft-stored", &["distillation.kind=soft", "train.loss=bce", "train.label_smoothing=0", logits]),
    ] {
        let mix = "[mix]\nmixup = 0.8\ncutmix = 1.0\ngroup = 4\n[train]\nepochs = 2\ndrop_last = false\n[log]\nevery_steps = 1\n";
        place.write("tiny.toml", &with(mix, ""));
        for (out, batch, accumulate) in [("split", "8", "4"), ("whole", "32", "1")] {
            let out = format!("{name}-{out}");
            let (batch, accumulate) = (format!("train.batch_size={batch}"), format!("train.accumulate={accumulate}"));
            let mut args = vec!["train", "tiny.toml", "--device", "cpu", "--out", &out, "--set", &batch, "--set", &accumulate];
            args.extend(sets.iter().flat_map(|set| ["--set", set]));
            place.run(&args).expect(0);
        }
        let (split, whole) = (losses(&place.path(&format!("{name}-split"))), losses(&place.path(&format!("{name}-whole"))));
        assert_eq!((split.len(), whole.len()), (8, 8), "100 images: three steps of 32 and one of 4, twice");
        for (step, (a, b)) in split.iter().zip(&whole).enumerate() {
            assert!((a / b - 1.0).abs() < 1e-5, "{name} step {step}: {a} and {b}");
        }
        let norms = |run: &str| -> Vec<f64> {
            metrics(&place.path(&format!("{name}-{run}"))).iter().filter_map(|line| line["gradient_norm"].as_f64()).collect()
        };
        for (step, (a, b)) in norms("split").iter().zip(norms("whole")).enumerate() {
            assert!((a / b - 1.0).abs() < 1e-5, "{name} step {step}: gradients of length {a} and {b}");
        }
    }
}

/// A student with a distillation token learns from a run, and from that run's stored logits alike where nothing is random.
#[test]
fn a_student_learns_from_a_teacher_run_and_from_its_stored_logits() {
    let place = Place::new();
    place.images(12, 6);
    let train = "[train]\nepochs = 4\nbatch_size = 20\naccumulate = 1\n[log]\nevery_steps = 1\n";
    let plain = "[augment]\ncrop = \"none\"\nhorizontal_flip = 0.0\n";
    place.write("teacher.toml", &with(&format!("{plain}{train}"), ""));
    place.run(&["train", "teacher.toml", "--device", "cpu", "--out", "teacher"]).expect(0);
    let logits = ["eval", "teacher", "--data", "train", "--logits", "logits.safetensors", "--set", "eval.crop_pct=1.0"];
    place.run(&logits).expect(0);

    let student = with(&format!("{plain}{train}"), "").replace("[model]\n", "[model]\ndistilled = true\n");
    place.write("student.toml", &student);
    place.run(&["train", "student.toml", "--device", "cpu", "--out", "x"]).expect(2).says(&["model.distilled", "teacher"]);
    for kind in ["hard", "soft"] {
        let set = format!("distillation.kind={kind}");
        let run = |out: &str, teacher: &str| {
            let args = ["train", "student.toml", "--device", "cpu", "--out", out, "--set", &set, "--set", teacher];
            place.run(&[&args[..], &["--set", "distillation.temperature=2.0"]].concat()).expect(0).says(&["teacher"]);
            losses(&place.path(out))
        };
        let live = run(&format!("{kind}-live"), "distillation.teacher=teacher");
        let stored = run(&format!("{kind}-stored"), "distillation.logits=logits.safetensors");
        assert_eq!(live.len(), 24);
        for (a, b) in live.iter().zip(&stored) {
            assert!((a / b - 1.0).abs() < 1e-3, "{kind}: {live:?} {stored:?}");
        }
        assert!(live[20..].iter().sum::<f64>() < live[..4].iter().sum::<f64>(), "{live:?}");
    }
    let parameters = place.run(&["weights", "inspect", "hard-live", "--json"]).expect(0).json();
    assert!(parameters["tensors"].as_array().unwrap().iter().any(|tensor| tensor["name"] == "head_dist.weight"));

    // A file of other images, a teacher of other classes and a forgotten teacher are told.
    fs::remove_file(place.path("train/class0/0000.png")).unwrap();
    let args = ["train", "student.toml", "--device", "cpu", "--out", "y", "--set", "distillation.kind=hard"];
    place.run(&args).expect(2).says(&["who is the teacher"]);
    let stale = [&args[..], &["--set", "distillation.logits=logits.safetensors"]].concat();
    place.run(&stale).expect(1).says(&["distillation.logits: ", "logits.safetensors", "120 images", "119"]);
    let absent = [&args[..], &["--set", "distillation.teacher=nowhere"]].concat();
    place.run(&absent).expect(1).says(&["distillation.teacher: ", "nowhere"]);
    let other = [&args[..], &["--set", "distillation.teacher=teacher", "--set", "model.image_size=56"]].concat();
    place.run(&other).expect(2).says(&["distillation.teacher", "[28, 28]", "[56, 56]"]);
}
