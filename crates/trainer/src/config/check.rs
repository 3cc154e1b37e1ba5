//! Combinations that cannot work, found before anything runs.

use manyheads_data::augment::AutoAugment;
use manyheads_data::{DataError, MAX_SIDE, Plan};
use manyheads_model::{Architecture, Preset};

use super::{
    AugmentConfig, Config, Crop, CropMode, DataConfig, DataSource, DistillationKind, EvalConfig, Interpolation, Interval,
    LossKind, OptimizerKind, TrainConfig,
};

/// A configuration value that cannot work.
pub(super) struct Problem {
    /// Path of the key, as `train.epochs`.
    pub key: &'static str,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

/// Bound on batches and epochs: far above any use, and no product of them overflows.
const MAX_COUNT: usize = 1 << 20;

type Check = Result<(), Problem>;

fn ensure(holds: bool, key: &'static str, message: impl Into<String>) -> Check {
    if holds { Ok(()) } else { Err(Problem { key, message: message.into(), help: None }) }
}

fn with_help(check: Check, help: &str) -> Check {
    check.map_err(|problem| Problem { help: Some(help.into()), ..problem })
}

/// Which images a configuration must name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Images {
    /// Both halves, as training needs them.
    Both,
    /// None: they come from elsewhere, or only single files are looked at.
    Elsewhere,
}

/// Everything that can be checked from the configuration alone, but for the model.
pub(super) fn check(config: &Config, architecture: &Architecture, images: Images) -> Check {
    let Config { run, data, augment, mix, optimizer, schedule, train, ema, distillation, eval, checkpoint, log, .. } = config;
    let name = run.name.as_deref().unwrap_or("run");
    ensure(
        !name.trim().is_empty() && !name.contains(['/', '\\', '\0']) && name != "." && name != "..",
        "run.name",
        "the name becomes a folder's name: it may not be empty, `.` or `..`, nor contain a slash",
    )?;
    ensure(
        architecture.image.iter().all(|side| *side <= MAX_SIDE),
        "model.image_size",
        format!("a side is longer than {MAX_SIDE} pixels"),
    )?;
    ensure(run.seed <= i64::MAX as u64, "run.seed", "the seed must be below 2^63, the greatest number TOML holds")?;
    crate::engine::device::DeviceName::parse(&run.device).map_err(|message| Problem {
        key: "run.device",
        message,
        help: None,
    })?;

    match data.source {
        DataSource::Embedded => {
            let help = "remove it, or set data.source = \"auto\"";
            for (key, given) in [
                ("data.train", data.train.is_some()),
                ("data.val", data.val.is_some()),
                ("data.train_labels", data.train_labels.is_some()),
                ("data.val_labels", data.val_labels.is_some()),
                ("data.class_names", data.class_names.is_some()),
                ("data.train_split", data.train_split.is_some()),
                ("data.val_split", data.val_split.is_some()),
            ] {
                with_help(ensure(!given, key, "unused: the embedded dataset has no files"), help)?;
            }
        }
        _ if images == Images::Elsewhere => {}
        _ => {
            let help = "give the path of the images, or set data.source = \"embedded\" to train on the images inside the program";
            with_help(ensure(data.train.is_some(), "data.train", "missing: where are the training images?"), help)?;
            with_help(ensure(data.val.is_some(), "data.val", "missing: where are the held-out images?"), help)?;
        }
    }
    for (key, path) in [("data.train", &data.train), ("data.val", &data.val)] {
        let Some(path) = path else { continue };
        ensure(!path.as_os_str().is_empty(), key, "the path is empty")?;
        let absolute = std::path::absolute(path).map_err(|e| Problem { key, message: e.to_string(), help: None })?;
        ensure(absolute.to_str().is_some(), key, format!("{} is not UTF-8, as a TOML file must be", absolute.display()))?;
    }
    ensure((1..=MAX_COUNT).contains(&data.prefetch), "data.prefetch", "must be between 1 and 1,048,576 batches")?;
    ensure(data.workers.is_none_or(|n| n <= 1024), "data.workers", "more than 1,024 threads")?;
    let channels = config.model.channels;
    for (key, values) in [("data.mean", data.mean()), ("data.std", data.std())] {
        with_help(
            ensure(values.len() == channels, key, format!("{} values for the {channels} channels of the model", values.len())),
            "give one value per channel; for grey images (model.channels = 1) for example mean = [0.5], std = [0.5]",
        )?;
        ensure(values.iter().all(|v| v.is_finite()), key, "values must be finite numbers")?;
    }
    ensure(data.std().iter().all(|v| *v > 0.0), "data.std", "standard deviations must be greater than 0")?;

    if augment.crop != Crop::RandomResized {
        let help = "remove it, or set augment.crop = \"random-resized\"";
        let message = "unused: only a random resized crop has a random size";
        with_help(ensure(augment.scale.is_none(), "augment.scale", message), help)?;
        with_help(ensure(augment.ratio.is_none(), "augment.ratio", message), help)?;
    }
    let [least, most] = augment.scale.unwrap_or(AugmentConfig::SCALE);
    ensure(
        0.0 < least && least <= most && most <= 1.0,
        "augment.scale",
        "the share of the area must be [least, greatest] with 0 < least ≤ greatest ≤ 1",
    )?;
    let [least, most] = augment.ratio.unwrap_or(AugmentConfig::RATIO);
    ensure(
        0.0 < least && least <= most && most.is_finite(),
        "augment.ratio",
        "the ratio of width to height must be [least, greatest] with 0 < least ≤ greatest",
    )?;
    for (key, probability) in [
        ("augment.horizontal_flip", augment.horizontal_flip),
        ("augment.vertical_flip", augment.vertical_flip),
        ("augment.grayscale", augment.grayscale),
        ("augment.solarize", augment.solarize),
        ("augment.blur", augment.blur),
        ("augment.erasing", augment.erasing),
    ] {
        ensure((0.0..=1.0).contains(&probability), key, "a probability is between 0 and 1")?;
    }
    ensure((0.0..=1.0).contains(&augment.color_jitter), "augment.color_jitter", "must be between 0 and 1")?;
    ensure((0.0..=0.5).contains(&augment.hue_jitter), "augment.hue_jitter", "must be between 0 and 0.5")?;
    ensure((1..=MAX_COUNT).contains(&augment.erasing_count), "augment.erasing_count", "must be between 1 and 1,048,576")?;
    ensure((1..=1000).contains(&augment.repeats), "augment.repeats", "must be between 1 and 1,000")?;
    if let Some(policy) = &augment.auto {
        policy.parse::<AutoAugment>().map_err(|e| {
            let message = match e {
                DataError::Config { reason, .. } => reason,
                other => other.to_string(),
            };
            Problem { key: "augment.auto", message, help: None }
        })?;
    }

    ensure(
        optimizer.learning_rate > 0.0 && optimizer.learning_rate.is_finite(),
        "optimizer.learning_rate",
        "the learning rate must be greater than 0",
    )?;
    ensure(optimizer.betas.iter().all(|b| (0.0..1.0).contains(b)), "optimizer.betas", "both must be at least 0 and below 1")?;
    ensure(optimizer.eps > 0.0 && optimizer.eps.is_finite(), "optimizer.eps", "must be greater than 0")?;
    ensure(optimizer.weight_decay >= 0.0 && optimizer.weight_decay.is_finite(), "optimizer.weight_decay", "must be at least 0")?;
    ensure(
        optimizer.clip_norm >= 0.0 && optimizer.clip_norm.is_finite(),
        "optimizer.clip_norm",
        "must be at least 0; 0 does not clip",
    )?;

    ensure((0.0..1.0).contains(&optimizer.momentum), "optimizer.momentum", "must be at least 0 and below 1")?;
    ensure(
        !optimizer.nesterov || optimizer.momentum > 0.0 || optimizer.kind != OptimizerKind::Sgd,
        "optimizer.nesterov",
        "Nesterov's momentum needs optimizer.momentum above 0",
    )?;
    ensure(
        optimizer.lamb_clip_norm >= 0.0 && optimizer.lamb_clip_norm.is_finite(),
        "optimizer.lamb_clip_norm",
        "must be at least 0; 0 does not clip",
    )?;
    ensure(
        optimizer.layer_decay > 0.0 && optimizer.layer_decay <= 1.0,
        "optimizer.layer_decay",
        "must be above 0 and at most 1; 1 treats all layers alike",
    )?;
    for group in &optimizer.groups {
        ensure(
            group.rate > 0.0 && group.rate.is_finite(),
            "optimizer.groups",
            format!("the factor of `{}` must be above 0; to leave parameters as they are, write freeze = true", group.pattern),
        )?;
        ensure(
            group.weight_decay.is_none_or(|decay| decay >= 0.0 && decay.is_finite()),
            "optimizer.groups",
            format!("the weight decay of `{}` must be at least 0", group.pattern),
        )?;
    }

    for (key, alpha) in [("mix.mixup", mix.mixup), ("mix.cutmix", mix.cutmix)] {
        ensure(alpha >= 0.0 && alpha.is_finite(), key, "must be at least 0; 0 turns it off")?;
    }
    for (key, probability) in [("mix.probability", mix.probability), ("mix.switch", mix.switch)] {
        ensure((0.0..=1.0).contains(&probability), key, "a probability is between 0 and 1")?;
    }
    ensure((1..=MAX_COUNT).contains(&mix.group), "mix.group", "must be between 1 and 1,048,576 images")?;

    for (key, decay) in [("ema.decay", ema.decay), ("ema.min_decay", ema.min_decay)] {
        ensure((0.0..1.0).contains(&decay), key, "must be at least 0 and below 1")?;
    }
    for (key, value) in [("ema.warmup_gamma", ema.warmup_gamma), ("ema.warmup_power", ema.warmup_power)] {
        ensure(value > 0.0 && value.is_finite(), key, "must be above 0")?;
    }

    ensure(train.weights.is_some() || train.weights_sha256.is_none(), "train.weights_sha256", "unused without train.weights")?;
    ensure((0.0..=1.0).contains(&distillation.alpha), "distillation.alpha", "must be between 0 and 1")?;
    ensure(
        distillation.temperature > 0.0 && distillation.temperature.is_finite(),
        "distillation.temperature",
        "must be above 0",
    )?;
    let named = [
        ("distillation.teacher", distillation.teacher.is_some()),
        ("distillation.teacher_preset", distillation.teacher_preset.is_some()),
        ("distillation.logits", distillation.logits.is_some()),
    ];
    if distillation.kind == DistillationKind::None {
        for (key, given) in named {
            with_help(
                ensure(!given, key, "unused: nothing is learnt from a teacher"),
                "set distillation.kind = \"hard\" or \"soft\"",
            )?;
        }
        let help = "set distillation.kind = \"hard\" and name a teacher, or leave model.distilled out";
        let message = "a distilled model has a second head, which only a teacher trains";
        let images_matter = images == Images::Both;
        with_help(ensure(!(architecture.distilled && images_matter), "model.distilled", message), help)?;
    } else {
        let help = "name a weights file or a run, or with distillation.logits a file of `manyheads eval --logits`";
        with_help(ensure(named[0].1 || named[2].1, "distillation.teacher", "missing: who is the teacher?"), help)?;
        ensure(!(named[0].1 && named[2].1), "distillation.logits", "unused beside distillation.teacher: give one of them")?;
        ensure(named[0].1 || !named[1].1, "distillation.teacher_preset", "unused without distillation.teacher")?;
    }
    let help = "remove it, or set schedule.interval = \"epoch\"";
    let message = "unused: by step the schedule is never late";
    with_help(
        ensure(schedule.epoch_late.is_none() || schedule.interval == Interval::Epoch, "schedule.epoch_late", message),
        help,
    )?;
    with_help(
        ensure(
            train.loss == LossKind::CrossEntropy || train.label_smoothing == 0.0,
            "train.label_smoothing",
            "unused by the loss `bce`, whose targets are 0 or 1",
        ),
        "set train.label_smoothing = 0",
    )?;
    ensure(schedule.warmup_epochs >= 0.0 && schedule.warmup_epochs.is_finite(), "schedule.warmup_epochs", "must be at least 0")?;
    ensure((1..=MAX_COUNT as u64).contains(&train.epochs), "train.epochs", "must be between 1 and 1,048,576")?;
    with_help(
        ensure(
            schedule.warmup_epochs < train.epochs as f64 || schedule.warmup_epochs == 0.0,
            "schedule.warmup_epochs",
            format!(
                "{} epochs of warm-up in a run of {} epochs: the learning rate would never come down",
                schedule.warmup_epochs, train.epochs
            ),
        ),
        "set schedule.warmup_epochs below train.epochs",
    )?;
    let peak = config.peak_learning_rate();
    for (key, value) in [
        ("schedule.warmup_learning_rate", schedule.warmup_learning_rate),
        ("schedule.min_learning_rate", schedule.min_learning_rate),
    ] {
        ensure(value >= 0.0 && value.is_finite(), key, "must be at least 0")?;
        with_help(
            ensure(value <= peak, key, format!("{value} is above the peak learning rate {}", config.learning_rate_formula())),
            "lower it, or raise optimizer.learning_rate; with optimizer.reference_batch = 0 the rate is not scaled by the batch",
        )?;
    }

    for (key, value) in
        [("train.batch_size", train.batch_size), ("train.accumulate", train.accumulate), ("eval.batch_size", eval.batch_size)]
    {
        ensure((1..=MAX_COUNT).contains(&value), key, "must be between 1 and 1,048,576")?;
    }
    ensure((0.0..1.0).contains(&train.label_smoothing), "train.label_smoothing", "must be at least 0 and below 1")?;
    ensure(eval.crop_pct() > 0.0 && eval.crop_pct() <= 1.0, "eval.crop_pct", "must be above 0 and at most 1")?;
    ensure(checkpoint.keep >= 1, "checkpoint.keep", "at least 1 checkpoint must be kept, or the run could not be resumed")?;
    ensure(
        checkpoint.every_minutes >= 0.0 && checkpoint.every_minutes.is_finite(),
        "checkpoint.every_minutes",
        "must be at least 0",
    )?;
    ensure(log.stall_seconds >= 0.0 && log.stall_seconds.is_finite(), "log.stall_seconds", "must be at least 0; 0 says nothing")?;
    ensure(log.every_steps >= 1, "log.every_steps", "at least 1")
}

/// Checks that need the dataset: its number of training images and classes. `class_hint` says where the classes come from.
pub(super) fn check_data(config: &Config, model_classes: usize, train_images: usize, classes: usize, class_hint: &str) -> Check {
    with_help(
        ensure(
            model_classes == classes,
            "model.classes",
            format!("the model has {model_classes} classes, the dataset {classes} ({class_hint})"),
        ),
        &format!("set model.classes = {classes}"),
    )?;
    let train = &config.train;
    let batches = batches_per_epoch(config, train_images);
    with_help(
        ensure(
            batches > 0,
            "train.batch_size",
            format!("{train_images} training images do not fill one batch of {}", train.batch_size),
        ),
        "lower train.batch_size, or set train.drop_last = false",
    )?;
    with_help(
        ensure(
            train.accumulate <= batches,
            "train.accumulate",
            format!(
                "{} batches accumulate into a step, but an epoch has only {batches} ({train_images} images in batches of {})",
                train.accumulate, train.batch_size
            ),
        ),
        "lower train.accumulate",
    )
}

/// Batches in an epoch of `images` images.
pub(crate) fn batches_per_epoch(config: &Config, images: usize) -> usize {
    let TrainConfig { batch_size, drop_last, .. } = config.train;
    Plan::new(images, config.augment.repeats, 0, 1, batch_size, drop_last).len().div_ceil(batch_size)
}

/// Writes out how a preset of timm's wants its images, where the configuration does not say it.
pub(super) fn fill_from_preset(config: &mut Config) {
    let Some(data) = config.model.preset.and_then(Preset::data) else { return };
    let eval = &mut config.eval;
    eval.crop_pct.get_or_insert(data.crop_pct);
    eval.crop_mode.get_or_insert(match data.crop_mode {
        "squash" => CropMode::Squash,
        "border" => CropMode::Border,
        _ => CropMode::Center,
    });
    eval.interpolation.get_or_insert(match data.interpolation {
        "bilinear" => Interpolation::Bilinear,
        _ => Interpolation::Bicubic,
    });
    if config.model.channels == 3 {
        let floats = |values: [f64; 3]| values.map(|value| value as f32).to_vec();
        config.data.mean.get_or_insert_with(|| floats(data.mean));
        config.data.std.get_or_insert_with(|| floats(data.std));
    }
}

/// Writes out the defaults that stand for "not given", where they are used.
pub(super) fn fill(config: &mut Config) {
    if config.augment.crop == Crop::RandomResized {
        config.augment.scale.get_or_insert(AugmentConfig::SCALE);
        config.augment.ratio.get_or_insert(AugmentConfig::RATIO);
    }
    if config.schedule.interval == Interval::Epoch {
        config.schedule.epoch_late.get_or_insert(true);
    }
    let EvalConfig { crop_pct, crop_mode, interpolation, .. } = &mut config.eval;
    crop_pct.get_or_insert(EvalConfig::CROP_PCT);
    crop_mode.get_or_insert(CropMode::Center);
    interpolation.get_or_insert(Interpolation::Bicubic);
    config.data.mean.get_or_insert_with(|| DataConfig::MEAN.to_vec());
    config.data.std.get_or_insert_with(|| DataConfig::STD.to_vec());
    // A run can be resumed from any working directory.
    for path in [
        &mut config.data.train,
        &mut config.data.val,
        &mut config.data.train_labels,
        &mut config.data.val_labels,
        &mut config.data.class_names,
        &mut config.train.weights,
        &mut config.distillation.teacher,
        &mut config.distillation.logits,
    ]
    .into_iter()
    .flatten()
    {
        if let Ok(absolute) = std::path::absolute(&*path) {
            *path = absolute;
        }
    }
}
