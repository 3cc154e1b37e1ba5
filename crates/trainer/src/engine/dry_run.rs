//! A training tried out: every part of a configuration at work once, on images of random pixels. Nothing is written.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use burn::module::Module;
use manyheads_data::random::{Purpose, stream};
use manyheads_data::source::noise::Noise;
use manyheads_model::VisionTransformer;
use serde::Serialize;

use super::device::{self, DeviceName};
use super::evaluate::evaluate;
use super::step::{Learner, StepReport, Window};
use super::train::check_weights;
use crate::config::{Config, Loaded};
use crate::dataset::{Datasets, eval_loader, files_hash, train_loader};
use crate::error::{Error, Result};
use crate::info::Info;
use crate::log::progress::Console;
use crate::recipe::distillation::Distillation;
use crate::recipe::schedule::Schedule;
use crate::{network, space};

/// Most images of the batch: two are the fewest that are mixed with each other.
const IMAGES: usize = 2;
/// Multiply-accumulates for an image from which on one image must do, so that the CPU has the answer in seconds.
const COSTLY: u64 = 20_000_000_000;

/// What was tried, and what it showed.
#[derive(Debug, Serialize)]
pub struct DryRun {
    /// What the configuration amounts to.
    pub info: Info,
    /// Device that computed.
    pub device: String,
    /// What a run needs and is not there yet.
    pub missing: Vec<Missing>,
    /// Images that the step took.
    pub images: usize,
    /// Mean loss of the step.
    pub loss: f64,
    /// Norm of its gradient, before clipping.
    pub gradient_norm: f64,
    /// Learning rate of step 0, which the step took.
    pub first_learning_rate: f64,
    /// Parameters that are trained, as tensors.
    pub trained: usize,
    /// Parameters that are frozen, as tensors.
    pub frozen: usize,
    /// Mean loss of the evaluation by the weights after the step.
    pub eval_loss: f64,
    /// The same by their average, where one is kept.
    pub ema_loss: Option<f64>,
    /// Bytes of a checkpoint.
    pub checkpoint_bytes: u64,
    /// Seconds all of it took.
    pub seconds: f64,
}

/// Something that a run needs and that is not there yet.
#[derive(Debug, Serialize)]
pub struct Missing {
    /// The key that names it.
    pub key: &'static str,
    /// What it is, and what was done without it.
    pub reason: String,
}

/// Builds the network, optimizer, average and teacher of a configuration, and takes one step and one evaluation on random images, decoded and
/// augmented as the configuration says. The batch has at most two images, of a costly network one. A dataset, weights or a teacher that are not there yet are
/// listed, not errors; what is there is opened and checked.
///
/// # Errors
/// Where the configuration does not fit what is there, or a part of it fails.
pub fn dry_run(loaded: &Loaded, device: Option<DeviceName>) -> Result<DryRun> {
    let started = Instant::now();
    let Loaded { config, architecture, .. } = loaded;
    let console = Console::default();
    let note = &mut |note: &str| console.say(note);
    let mut missing = Vec::new();

    let datasets = match Datasets::open(config) {
        Ok(datasets) => Some(datasets),
        Err(error) => {
            let given = [("data.train", &config.data.train), ("data.val", &config.data.val)];
            let absent: Vec<_> = given.into_iter().filter_map(|(key, path)| Some((key, absent(path.as_deref()?)?))).collect();
            if absent.is_empty() {
                return Err(error);
            }
            missing.extend(absent.into_iter().map(|(key, path)| Missing { key, reason: path.display().to_string() }));
            None
        }
    };
    let info = Info::new(loaded)?;
    let open = device::open(config, device)?;
    open.trains(config)?;
    let mut rehearsal = loaded.clone();
    shrink(&mut rehearsal.config, if info.macs < COSTLY { IMAGES } else { 1 });
    let settings = &rehearsal.config;

    // The parts, in the order in which a run makes them.
    let autodiff = open.device.clone().autodiff();
    let mut model = architecture.init(&mut stream(config.run.seed, Purpose::Init, 0, 0), &autodiff);
    match config.train.weights.as_deref().map(|path| (path, absent(path))) {
        None => {}
        Some((_, Some(path))) => missing.push(Missing {
            key: "train.weights",
            reason: format!("{}; here the network begins with its initial weights", path.display()),
        }),
        Some((path, None)) => {
            check_weights(&mut loaded.clone())?;
            model = network::fine_tune(path, model, architecture, note)?;
        }
    }
    let mut learner = Learner::new(model, architecture, settings, &open.device)?;
    let (trained, frozen) = (learner.optimizer().slots().trained.len(), learner.optimizer().slots().frozen.len());
    let count = settings.train.batch_size;
    learner.set_teacher(match missing_teacher(config, datasets.is_some()) {
        Some(reason) => {
            missing.push(reason);
            Distillation::of_zeros(config, architecture, count)
        }
        None => {
            let (images, files) =
                datasets.as_ref().map_or((0, String::new()), |data| (data.train.len(), files_hash(&*data.train)));
            Distillation::open(config, architecture, images, &files, &open.device, note)?
        }
    });

    // Larger than the network's images and of another shape, so that cropping and resizing have something to do.
    let [height, width] = architecture.image;
    let size = [height + height / 8 + 1, width + width / 4 + 1];
    let images = Arc::new(Noise::new(count, architecture.classes, size)?);
    let training = train_loader(settings, architecture, images.clone(), open.eager)?;
    let mut window = Window::new(training.len());
    for batch in training.epoch(0, 0) {
        learner.add(&mut window, batch?)?;
    }
    let (gradients, report) = learner.close(window).ok_or_else(|| Error::Failed("the step had no image".into()))?;
    let mut reports = [(0, report)];
    StepReport::read_all(&mut reports)?;
    let [(_, StepReport::Read(step))] = reports else {
        return Err(Error::Failed("the numbers of the step could not be read".into()));
    };
    let (loss, gradient_norm) = (step.loss_sum / step.images as f64, step.gradient_norm);
    if !(loss.is_finite() && gradient_norm.is_finite()) {
        return Err(Error::Failed(format!("the step's loss is {loss} and its gradient norm {gradient_norm}")));
    }
    let first_learning_rate = Schedule::new(config, info.steps_per_epoch.unwrap_or(1)).learning_rate(0);
    learner.update(gradients, first_learning_rate, 1);

    let held_out = eval_loader(settings, architecture, images, open.eager)?;
    let score = |model: &VisionTransformer| -> Result<f64> {
        let result = evaluate(model, &held_out, &open.device, config.eval.precision, None, &console)?;
        Ok(result.ok_or_else(|| Error::Failed("the evaluation was stopped".into()))?.score.loss)
    };
    let eval_loss = score(&learner.model().valid())?;
    let ema_loss = learner.ema().map(|average| score(average.model())).transpose()?;
    Ok(DryRun {
        device: open.label,
        missing,
        images: step.images as usize,
        loss,
        gradient_norm,
        first_learning_rate,
        trained,
        frozen,
        eval_loss,
        ema_loss,
        checkpoint_bytes: space::checkpoint_bytes(config, architecture),
        seconds: started.elapsed().as_secs_f64(),
        info,
    })
}

/// The same settings for a batch of very few images.
fn shrink(config: &mut Config, images: usize) {
    config.train.batch_size = config.train.batch_size.min(images);
    config.train.accumulate = 1;
    config.train.drop_last = false;
    config.eval.batch_size = config.train.batch_size;
    config.data.workers = Some(0);
}

/// The path, where nothing is there. Shards `train-{000..146}.tar` are there where their folder is.
fn absent(path: &Path) -> Option<PathBuf> {
    let text = path.to_string_lossy();
    let there = if text.contains(['{', '*']) { path.parent().is_some_and(Path::exists) } else { path.exists() };
    (!there).then(|| path.to_path_buf())
}

/// Why the teacher cannot be opened yet. Stored logits belong to images, and are compared with them.
fn missing_teacher(config: &Config, images: bool) -> Option<Missing> {
    let settings = &config.distillation;
    settings.kind.learns()?;
    let without = "; here the teacher finds all classes alike";
    let reason = |path: &Path| format!("{}{without}", path.display());
    if let Some(path) = settings.teacher.as_deref().and_then(absent) {
        return Some(Missing { key: "distillation.teacher", reason: reason(&path) });
    }
    let path = settings.logits.as_deref()?;
    match (absent(path), images) {
        (Some(path), _) => Some(Missing { key: "distillation.logits", reason: reason(&path) }),
        (None, true) => None,
        (None, false) => Some(Missing {
            key: "distillation.logits",
            reason: format!("{} is there, but not the images it belongs to{without}", path.display()),
        }),
    }
}

impl DryRun {
    /// The whole for people.
    pub fn to_text(&self) -> String {
        let average = match self.ema_loss {
            Some(loss) => format!(", their average {loss:.4}"),
            None => String::new(),
        };
        let frozen = if self.frozen > 0 { format!(", {} tensors frozen", self.frozen) } else { String::new() };
        let mut out = self.info.totals();
        out += &format!("checkpoint       {:.1} MiB each\n", self.checkpoint_bytes as f64 / f64::from(1 << 20));
        for Missing { key, reason } in &self.missing {
            out += &format!("not there yet    {key}: {reason}\n");
        }
        out += &format!(
            "one step         {} images of random pixels on {}: loss {:.4}, gradient norm {:.4}, learning rate {}; {} tensors trained{frozen}\n\
             one evaluation   loss of the weights {:.4}{average}\n\
             dry run done in {:.1} s: every part of the configuration works; nothing was written\n",
            self.images,
            self.device,
            self.loss,
            self.gradient_norm,
            self.first_learning_rate,
            self.trained,
            self.eval_loss,
            self.seconds
        );
        out
    }
}
