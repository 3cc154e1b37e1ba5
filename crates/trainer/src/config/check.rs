//! Combinations that cannot work, found before anything runs.

use manyheads_data::MAX_SIDE;

use super::{AugmentConfig, Config, Crop, DataSource};

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

/// Everything that can be checked from the configuration alone, but for the model.
pub(super) fn check(config: &Config) -> Check {
    let Config { run, data, augment, optimizer, schedule, train, eval, checkpoint, log, .. } = config;
    let name = run.name.as_deref().unwrap_or("run");
    ensure(
        !name.trim().is_empty() && !name.contains(['/', '\\', '\0']) && name != "." && name != "..",
        "run.name",
        "the name becomes a folder's name: it may not be empty, `.` or `..`, nor contain a slash",
    )?;
    ensure(
        config.model.image_size.hw().iter().all(|side| *side <= MAX_SIDE),
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
            let help = "remove it, or set data.source to \"folder\" or \"tar\"";
            with_help(ensure(data.train.is_none(), "data.train", "unused: the embedded dataset has no path"), help)?;
            with_help(ensure(data.val.is_none(), "data.val", "unused: the embedded dataset has no path"), help)?;
        }
        DataSource::Folder | DataSource::Tar => {
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
    for (key, values) in [("data.mean", &data.mean), ("data.std", &data.std)] {
        with_help(
            ensure(values.len() == channels, key, format!("{} values for the {channels} channels of the model", values.len())),
            "give one value per channel; for grey images (model.channels = 1) for example mean = [0.5], std = [0.5]",
        )?;
        ensure(values.iter().all(|v| v.is_finite()), key, "values must be finite numbers")?;
    }
    ensure(data.std.iter().all(|v| *v > 0.0), "data.std", "standard deviations must be greater than 0")?;

    if augment.crop == Crop::None {
        let help = "remove it, or set augment.crop = \"random-resized\"";
        let message = "unused: without a random crop there is no random size";
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
    ensure((0.0..=1.0).contains(&augment.horizontal_flip), "augment.horizontal_flip", "a probability is between 0 and 1")?;

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
    ensure(eval.crop_pct > 0.0 && eval.crop_pct <= 1.0, "eval.crop_pct", "must be above 0 and at most 1")?;
    ensure(checkpoint.keep >= 1, "checkpoint.keep", "at least 1 checkpoint must be kept, or the run could not be resumed")?;
    ensure(
        checkpoint.every_minutes >= 0.0 && checkpoint.every_minutes.is_finite(),
        "checkpoint.every_minutes",
        "must be at least 0",
    )?;
    ensure(log.every_steps >= 1, "log.every_steps", "at least 1")
}

/// Checks that need the dataset: its number of training images and classes. `class_hint` says where the classes come from.
pub(super) fn check_data(config: &Config, train_images: usize, classes: usize, class_hint: &str) -> Check {
    with_help(
        ensure(
            config.model.classes == classes,
            "model.classes",
            format!("the model has {} classes, the dataset {classes} ({class_hint})", config.model.classes),
        ),
        &format!("set model.classes = {classes}"),
    )?;
    let train = &config.train;
    let batches = batches_per_epoch(train_images, train.batch_size, train.drop_last);
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
pub(crate) fn batches_per_epoch(images: usize, batch: usize, drop_last: bool) -> usize {
    if drop_last { images / batch } else { images.div_ceil(batch) }
}

/// Writes out the defaults that stand for "not given", where they are used.
pub(super) fn fill(config: &mut Config) {
    if config.augment.crop == Crop::RandomResized {
        config.augment.scale.get_or_insert(AugmentConfig::SCALE);
        config.augment.ratio.get_or_insert(AugmentConfig::RATIO);
    }
    // A run can be resumed from any working directory.
    for path in [&mut config.data.train, &mut config.data.val].into_iter().flatten() {
        if let Ok(absolute) = std::path::absolute(&*path) {
            *path = absolute;
        }
    }
}
