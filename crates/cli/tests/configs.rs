//! Every file under `configs/` as a user meets it: read, explained, and tried out.

mod support;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use manyheads_trainer::config::{self, Config};
use manyheads_trainer::recipe::schedule::Schedule;
use serde_json::Value;
use support::Place;

/// ImageNet-1k's training images.
const IMAGENET: usize = 1_281_167;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs")
}

/// All configuration files, by their path below `configs/`.
fn files() -> Vec<(String, PathBuf)> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a folder of configurations") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "toml") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&folder(), &mut found);
    found.sort();
    let name = |path: &Path| path.strip_prefix(folder()).expect("below configs").to_str().expect("UTF-8").to_owned();
    found.iter().map(|path| (name(path), path.clone())).collect()
}

fn load(name: &str) -> Config {
    config::load(&folder().join(name), &[]).unwrap_or_else(|e| panic!("{name}: {e}")).config
}

/// Number of parameters of timm 1.0.31's `create_model` of the same name, image size and classes, and optimizer steps of an epoch of
/// ImageNet.
const KNOWN: &[(&str, u64, u64)] = &[
    ("imagenet.toml", 86_567_656, 1251),
    ("deit/tiny.toml", 5_717_416, 1251),
    ("deit/small.toml", 22_050_664, 1251),
    ("deit/base.toml", 86_567_656, 1251),
    ("deit/base-384.toml", 86_859_496, 2502),
    ("deit/tiny-distilled.toml", 5_910_800, 1251),
    ("deit/small-distilled.toml", 22_436_432, 1251),
    ("deit/base-distilled.toml", 87_338_192, 1251),
    ("deit/deit3-small.toml", 22_059_496, 626),
    ("deit/deit3-small-384.toml", 22_205_416, 2503),
    ("deit/deit3-base-1-192.toml", 86_545_384, 626),
    ("deit/deit3-base-2-224.toml", 86_585_320, 2503),
    ("deit/deit3-base-3-384.toml", 86_877_160, 2503),
    ("hydra/base-last-2-224.toml", 86_567_656, 1251),
    ("hydra/base-last-7-224.toml", 86_567_656, 1251),
    ("hydra/base-last-8-224.toml", 86_567_656, 1251),
    ("hydra/base-last-12-224.toml", 86_567_656, 1251),
    ("hydra/base-last-2-384.toml", 86_859_496, 2502),
    ("hydra/base-last-7-384.toml", 86_859_496, 2502),
    ("hydra/base-last-8-384.toml", 86_859_496, 2502),
    ("hydra/base-last-12-384.toml", 86_859_496, 2502),
];

/// deit#65, #144: nobody knew which batch a rate was for, and whether accumulation counts. Here every factor is printed, and their product
/// is the rate.
#[test]
fn info_explains_every_configuration() {
    let place = Place::new();
    let mut names: HashMap<String, String> = HashMap::new();
    let all = files();
    for (name, _, _) in KNOWN {
        assert!(all.iter().any(|(file, _)| file == name), "{name} is gone");
    }
    for (file, path) in &all {
        let path = path.to_str().unwrap();
        let info = place.run(&["info", path, "--json"]).expect(0).json();
        let text = place.run(&["info", path]).expect(0).stdout;

        let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{file}: {value} is no number"));
        let (optimizer, train) = (&info["config"]["optimizer"], &info["config"]["train"]);
        let (rate, reference) = (number(&optimizer["learning_rate"]), number(&optimizer["reference_batch"]));
        let (batch, accumulate) = (number(&train["batch_size"]), number(&train["accumulate"]));
        let expected = if reference == 0.0 { rate } else { rate * (batch * accumulate) / reference };
        assert!((number(&info["learning_rate"]) / expected - 1.0).abs() < 1e-12, "{file}: {}", info["learning_rate"]);
        assert_eq!(number(&info["effective_batch"]), batch * accumulate, "{file}");
        let formula = match reference {
            0.0 => format!("{rate} as it stands (reference_batch = 0)"),
            _ => format!("{rate} × ({batch} × {accumulate}) / {reference} = {}", info["learning_rate"].as_f64().unwrap()),
        };
        assert_eq!(info["learning_rate_formula"], formula.as_str(), "{file}");
        let line =
            |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{file}: {start}\n{text}"));
        assert!(line("# learning rate ").contains(&formula), "{file}: {}", line("# learning rate "));
        assert!(line("# effective batch").contains(&format!("{batch} × {accumulate} = {}", batch * accumulate)), "{file}");
        assert!(line("# schedule ").contains(&format!("epoch {}", train["epochs"])), "{file}: {}", line("# schedule "));

        // Where the images are at hand, the steps are the epochs times the batches that fill one, gathered into steps.
        match info["train_images"].as_u64() {
            Some(images) => {
                let batch = train["batch_size"].as_u64().unwrap();
                let batches = if train["drop_last"] == true { images / batch } else { images.div_ceil(batch) };
                assert_eq!(info["config"]["augment"]["repeats"], 1, "{file}");
                let per_epoch = batches.div_ceil(train["accumulate"].as_u64().unwrap());
                assert_eq!(info["steps_per_epoch"], per_epoch, "{file}");
                assert_eq!(info["steps"], per_epoch * train["epochs"].as_u64().unwrap(), "{file}");
            }
            None => assert!(info["data_error"].as_str().is_some_and(|reason| reason.contains("data.train")), "{file}"),
        }
        if let Some((_, parameters, steps)) = KNOWN.iter().find(|(known, ..)| known == file) {
            assert_eq!(info["parameters"], *parameters, "{file}");
            assert_eq!(load(file).steps_per_epoch(IMAGENET), *steps, "{file}");
        }

        let head: String = fs::read_to_string(path).unwrap().lines().take_while(|line| line.starts_with('#')).collect();
        assert!(head.len() > 80, "{file} says what it is at its head");
        if KNOWN.iter().any(|(known, ..)| known == file) && file != "imagenet.toml" {
            for word in ["source", "cost", "expect"] {
                assert!(head.contains(&format!("#   {word} ")), "{file} does not say {word} at its head");
            }
        }
        // Weights and teachers are named by the folder of the run that makes them. The file to copy follows what it extends.
        if file != "imagenet.toml" {
            let run = info["config"]["run"]["name"].as_str().unwrap().to_owned();
            if let Some(other) = names.insert(run.clone(), file.clone()) {
                panic!("{file} and {other} are both called {run}");
            }
        }
    }
    let weights = all.iter().filter_map(|(file, _)| load(file).train.weights.map(|weights| (file, weights)));
    let teachers = all.iter().filter_map(|(file, _)| load(file).distillation.teacher.map(|teacher| (file, teacher)));
    for (file, path) in weights.chain(teachers) {
        let of_a_run = path.parent().is_some_and(|parent| parent.ends_with("runs"));
        let run = path.file_name().unwrap().to_str().unwrap();
        assert!(!of_a_run || names.contains_key(run), "{file} needs the run {run}, which no configuration makes");
    }
}

/// DeiT's published constants, and the rate of each of its 300 epochs: a warm-up of five epochs that comes one epoch late, then the cosine.
#[test]
fn the_base_configuration_is_deits_recipe_to_the_last_constant() {
    let config = load("deit/base.toml");
    let Config { model, augment, mix, optimizer, schedule, train, ema, eval, .. } = &config;
    assert_eq!((model.stochastic_depth, model.norm_eps, model.qkv_bias), (0.1, Some(1e-6), Some(true)));
    assert_eq!((augment.scale, augment.ratio), (Some([0.08, 1.0]), Some([3.0 / 4.0, 4.0 / 3.0])));
    assert_eq!((augment.auto.as_deref(), augment.color_jitter), (Some("rand-m9-mstd0.5-inc1"), 0.0));
    assert_eq!((augment.erasing, augment.erasing_count, augment.repeats, augment.horizontal_flip), (0.25, 1, 3, 0.5));
    assert_eq!((mix.mixup, mix.cutmix, mix.probability, mix.switch, mix.group), (0.8, 1.0, 1.0, 0.5, 64));
    assert_eq!((optimizer.learning_rate, optimizer.reference_batch, optimizer.weight_decay), (5e-4, 512, 0.05));
    assert_eq!((optimizer.betas, optimizer.eps, optimizer.clip_norm, optimizer.layer_decay), ([0.9, 0.999], 1e-8, 0.0, 1.0));
    assert_eq!((schedule.warmup_epochs, schedule.warmup_learning_rate, schedule.min_learning_rate), (5.0, 1e-6, 1e-5));
    assert_eq!((train.epochs, config.effective_batch(), train.label_smoothing, train.drop_last), (300, 1024, 0.1, true));
    assert_eq!((ema.enabled, ema.decay, ema.copy_steps, ema.warmup), (true, 0.99996, None, false));
    assert_eq!(eval.crop_pct, Some(0.875));
    assert!(train.batch_size.is_multiple_of(mix.group), "groups of mixing are whole");

    let rates = Schedule::new(&config, 1251);
    for epoch in 0u64..300 {
        let at = epoch.saturating_sub(1) as f64;
        let expected = match at < 5.0 {
            true => 1e-6 + at * (1e-3 - 1e-6) / 5.0,
            false => 1e-5 + 0.5 * (1e-3 - 1e-5) * (1.0 + (std::f64::consts::PI * at / 300.0).cos()),
        };
        for step in [epoch * 1251, epoch * 1251 + 1250] {
            let got = rates.learning_rate(step);
            assert!((got / expected - 1.0).abs() < 1e-12, "epoch {epoch}: {got} is not {expected}");
        }
    }
    // Fine-tuning at 384: the rate and its least are the same, so that it is constant after the warm-up.
    let config = load("deit/base-384.toml");
    let rates = Schedule::new(&config, 2502);
    assert_eq!((config.peak_learning_rate(), config.effective_batch()), (5e-6, 512));
    assert_eq!([0, 1].map(|epoch| rates.learning_rate(epoch * 2502)), [1e-6; 2]);
    assert!((6..30).all(|epoch| (rates.learning_rate(epoch * 2502) / 5e-6 - 1.0).abs() < 1e-12));
    // DeiT III: LAMB at a rate that no batch scales.
    for (file, rate, batch) in [
        ("deit/deit3-small.toml", 4e-3, 2048),
        ("deit/deit3-base-1-192.toml", 3e-3, 2048),
        ("deit/deit3-base-2-224.toml", 1e-5, 512),
        ("deit/deit3-small-384.toml", 1e-5, 512),
    ] {
        let config = load(file);
        assert_eq!((config.peak_learning_rate(), config.effective_batch()), (rate, batch), "{file}");
        assert!(config.train.batch_size.is_multiple_of(config.mix.group), "{file}: groups of mixing are whole");
    }
}

/// Every part of every configuration at work: decoding, augmentation, mixing, network, loss, teacher, optimizer, average, evaluation. Large
/// networks are made narrow, which saves nine tenths of the time and leaves layers, tokens and heads as they are; DeiT-B is tried out whole.
#[test]
fn every_configuration_is_tried_out() {
    let place = Place::new();
    let start = Instant::now();
    for (file, path) in files() {
        let started = Instant::now();
        let config = load(&file);
        let narrow = config.model.width.unwrap() > 192 && file != "deit/base.toml";
        let args = ["train", path.to_str().unwrap(), "--dry-run", "--json", "--device", "cpu", "--set", "model.width=96"];
        let tried = place.run(if narrow { &args } else { &args[..6] }).expect(0).json();
        println!("{file}: {:?}", started.elapsed());
        let classes = config.model.classes.unwrap() as f64;
        // An untrained network finds all classes about alike.
        let guess = match config.train.loss {
            config::LossKind::CrossEntropy => classes.ln(),
            config::LossKind::Bce => 2f64.ln(),
        };
        let taught = config.distillation.kind.learns().is_some();
        let loss = tried["loss"].as_f64().unwrap();
        assert!(taught || (loss / guess - 1.0).abs() < 0.2, "{file}: loss {loss}, and a guess costs {guess}");
        assert!((tried["eval_loss"].as_f64().unwrap() / classes.ln() - 1.0).abs() < 0.3, "{file}: {tried}");
        assert_eq!(tried["ema_loss"].is_number(), config.ema.enabled, "{file}");
        assert!(tried["gradient_norm"].as_f64().unwrap() > 0.0, "{file}");
        let missing: Vec<&str> = tried["missing"].as_array().unwrap().iter().map(|what| what["key"].as_str().unwrap()).collect();
        for (key, path) in [
            ("data.train", &tried["info"]["config"]["data"]["train"]),
            ("data.val", &tried["info"]["config"]["data"]["val"]),
            ("train.weights", &tried["info"]["config"]["train"]["weights"]),
            ("distillation.teacher", &tried["info"]["config"]["distillation"]["teacher"]),
        ] {
            let expected = path.as_str().is_some_and(|path| !Path::new(path).exists());
            assert_eq!(missing.contains(&key), expected, "{file}: {key} in {missing:?}");
        }
    }
    println!("all: {:?}", start.elapsed());
    assert_eq!(fs::read_dir(place.path("")).unwrap().count(), 0, "a dry run writes nothing");
}

/// What is there is opened and checked by a dry run; what is wrong is an error as in training.
#[test]
fn a_dry_run_checks_what_is_there() {
    let place = Place::new();
    place.images(4, 2);
    place.config("[train]\nbatch_size = 8\naccumulate = 2\n[ema]\nenabled = true\n");
    let done = place.run(&["train", "tiny.toml", "--dry-run", "--device", "cpu"]).expect(0);
    for words in ["8 × 2 = 16 images a step", "40 to train on", "steps            300 epochs × 3 = 900", "nothing was written"]
    {
        assert!(done.stdout.contains(words), "`{words}` is not in\n{}", done.stdout);
    }
    assert!(!done.stdout.contains("not there yet"), "{}", done.stdout);
    assert!(!place.path("runs").exists());
    place.run(&["train", "tiny.toml", "--dry-run", "--out", "x"]).expect(2).says(&["--out"]);
    place.run(&["train", "tiny.toml", "--dry-run", "--set", "model.classes=9"]).expect(2).says(&["model.classes = 10"]);
    let groups = "optimizer.groups=[{pattern = \"heads.*\", rate = 2.0}]";
    place.run(&["train", "tiny.toml", "--dry-run", "--set", groups]).expect(2).says(&["heads.*", "fits no parameter"]);
    place.write("broken.safetensors", "no weights");
    place.run(&["train", "tiny.toml", "--dry-run", "--weights", "broken.safetensors"]).expect(1).says(&["broken.safetensors"]);
    fs::remove_dir_all(place.path("val")).unwrap();
    let done = place.run(&["train", "tiny.toml", "--dry-run", "--weights", "later.pth"]).expect(0).stdout;
    assert!(done.contains("not there yet    data.val: ") && !done.contains("data.train: "), "{done}");
    assert!(done.contains("not there yet    train.weights: ") && done.contains("later.pth"), "{done}");
    place.run(&["train", "tiny.toml", "--weights", "later.pth"]).expect(1).says(&["later.pth"]);
}
