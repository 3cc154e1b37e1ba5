//! The training loop. A step is a number (law 2): everything about a step follows from it and the configuration.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::Device;
use manyheads_data::random::{Purpose, stream};
use manyheads_data::{Batches, Loader};
use manyheads_model::VisionTransformer;
use manyheads_model::weights::timm;

use super::device::{self, DeviceName, OpenDevice};
use super::evaluate::{Score, evaluate};
use super::step::{Learner, StepReport, Window};
use crate::checkpoint::{Best, Checkpoint, DataFingerprint, FORMAT, Manifest, Newest, Parts, PendingStep, Phase, Store};
use crate::config::{Config, Loaded};
use crate::dataset::{Datasets, eval_loader, train_loader};
use crate::error::{Error, Result};
use crate::log::jsonl::{Metrics, Record};
use crate::log::progress::{Console, Meter, Progress};
use crate::recipe::distillation::Distillation;
use crate::recipe::ema::Ema;
use crate::recipe::schedule::Schedule;
use crate::run_dir::RunDir;
use crate::signals::Stop;
use crate::{info, space, unchanged};

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// All epochs are done.
    Finished(Summary),
    /// A signal came; the state is saved.
    Interrupted {
        /// The run.
        run: PathBuf,
        /// Updates done.
        step: u64,
    },
}

/// A finished run.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// The run.
    pub run: PathBuf,
    /// Updates done.
    pub step: u64,
    /// The evaluation of the final weights.
    pub last: Score,
    /// The best evaluation of the run.
    pub best: Best,
    /// Training images left out in this process because they could not be read, counted once an epoch.
    pub skipped: u64,
}

/// Trains from the start.
///
/// `out` is the run's folder, `device` wins over the configuration's.
///
/// # Errors
/// Where the configuration does not fit the data, or the work fails.
pub fn train(loaded: &Loaded, out: Option<&Path>, device: Option<DeviceName>) -> Result<Outcome> {
    let mut loaded = loaded.clone();
    check_weights(&mut loaded)?;
    let loaded = &loaded;
    let config = &loaded.config;
    let console = Console::default();
    let datasets = Datasets::open(config)?;
    loaded.check_data(datasets.train.len(), datasets.train.classes().len(), &class_hint(&datasets))?;
    let loaders = Loaders::new(loaded, datasets)?;
    let open = device::open(config, device)?;
    let stop = Stop::on_signals()?;
    // Before there is a run: weights or a teacher that do not fit leave nothing behind.
    let learner = learner(loaded, &loaders, &open, true, &console)?;
    let dir = RunDir::create(out, config.run.name.as_deref().unwrap_or("run"))?;
    space::check(dir.path(), config, &loaded.architecture)?;
    Store::new(dir.path()).create()?;
    dir.write("config.toml", config.to_toml().as_bytes())?;
    dir.note_session(0, &open.label)?;
    let metrics = Metrics::open(dir.path(), 0)?;
    console.say(format!("run {}", dir.path().display()));
    let state = State::start(loaders.fingerprint.clone());
    Run::new(loaded.clone(), dir, loaders, open, learner, stop, metrics, state, console)?.go()
}

/// Continues the run in `run_dir` from its newest sound checkpoint.
///
/// `override_config` accepts a configuration or dataset that is not the one the checkpoint was trained with.
///
/// # Errors
/// Where there is no sound checkpoint, the configuration was changed, or the work fails.
pub fn resume(run_dir: &Path, device: Option<DeviceName>, override_config: bool) -> Result<Outcome> {
    let console = Console::default();
    let dir = RunDir::open(run_dir)?;
    let config_path = dir.path().join("config.toml");
    let loaded = crate::config::load(&config_path, &[])?;
    let config = &loaded.config;
    let store = Store::new(dir.path());
    store.tidy()?;
    let found = store.newest_sound()?;
    let datasets = Datasets::open(config)?;
    loaded.check_data(datasets.train.len(), datasets.train.classes().len(), &class_hint(&datasets))?;
    let loaders = Loaders::new(&loaded, datasets)?;
    let stop = Stop::on_signals()?;
    let open = device::open(config, device)?;

    let Some(Newest { checkpoint, broken }) = found else {
        console.say(format!("run {}: no checkpoint was finished yet, starting from step 0", dir.path().display()));
        dir.note_session(0, &open.label)?;
        let metrics = Metrics::open(dir.path(), 0)?;
        let state = State::start(loaders.fingerprint.clone());
        check_weights(&mut loaded.clone())?;
        let learner = learner(&loaded, &loaders, &open, true, &console)?;
        return Run::new(loaded, dir, loaders, open, learner, stop, metrics, state, console)?.go();
    };
    for (step, reason) in broken {
        let aside = store.set_aside(step)?;
        console
            .say(format!("checkpoint step-{step:08} is not sound and is not used: {reason}; set aside as {}", aside.display()));
    }
    unchanged::check(&checkpoint, config, &loaders.fingerprint, override_config, &config_path, &console)?;
    let manifest = &checkpoint.manifest;
    let steps = config.steps_per_epoch(loaders.train.source().len()) * config.train.epochs;
    if manifest.step > steps {
        return Err(Error::Usage(format!(
            "{} steps are done, but the configuration makes a run of {steps} steps: there is nothing to continue",
            manifest.step
        )));
    }
    console.say(format!("run {}: continuing from {}", dir.path().display(), checkpoint.path.display()));
    dir.note_session(manifest.step, &open.label)?;
    let metrics = Metrics::open(dir.path(), manifest.metrics_bytes)?;
    let state = State {
        step: manifest.step,
        phase: manifest.phase,
        best: manifest.best.clone(),
        last: manifest.last,
        pending: manifest.pending.iter().map(|step| (step.step, StepReport::Read(step.clone()))).collect(),
        fingerprint: loaders.fingerprint.clone(),
    };
    let learner = learner(&loaded, &loaders, &open, false, &console)?;
    let mut run = Run::new(loaded, dir, loaders, open, learner, stop, metrics, state, console)?;
    run.load(checkpoint)?;
    run.store.settle(run.state.step, run.best_kept(), run.config().checkpoint.keep)?;
    run.saved_at = Some((run.state.step, run.state.phase));
    run.go()
}

/// Both halves of the data, ready to be read.
struct Loaders {
    train: Loader,
    val: Loader,
    notices: Vec<String>,
    fingerprint: DataFingerprint,
}

impl Loaders {
    fn new(loaded: &Loaded, datasets: Datasets) -> Result<Self> {
        let Loaded { config, architecture, .. } = loaded;
        Ok(Self {
            notices: datasets.notices(),
            fingerprint: datasets.fingerprint(),
            train: train_loader(config, architecture, datasets.train)?,
            val: eval_loader(config, architecture, datasets.val)?,
        })
    }
}

fn class_hint(datasets: &Datasets) -> String {
    let classes = datasets.train.classes();
    let shown: Vec<&str> = classes.iter().take(3).map(String::as_str).collect();
    format!("{}{}", shown.join(", "), if classes.len() > 3 { ", …" } else { "" })
}

/// Writes down which weights a run starts from, or finds that they are others than those written down.
fn check_weights(loaded: &mut Loaded) -> Result<()> {
    let Some(path) = &loaded.config.train.weights else { return Ok(()) };
    let hash = crate::network::weights_hash(path)?;
    match &loaded.config.train.weights_sha256 {
        Some(known) if *known != hash => Err(Error::Usage(format!(
            "train.weights: {} is not the file that train.weights_sha256 names: its hash is {hash}",
            path.display()
        ))),
        _ => {
            loaded.config.train.weights_sha256 = Some(hash);
            Ok(())
        }
    }
}

/// The network of a configuration with its optimizer and its teacher. `start`: with the weights that the configuration starts from,
/// which a run that is continued has in its checkpoint.
fn learner(loaded: &Loaded, loaders: &Loaders, device: &OpenDevice, start: bool, console: &Console) -> Result<Learner> {
    let Loaded { config, architecture, .. } = loaded;
    let note = &mut |note: &str| console.say(note);
    let autodiff: Device = device.device.clone().autodiff();
    let mut model = architecture.init(&mut stream(config.run.seed, Purpose::Init, 0, 0), &autodiff);
    if let (true, Some(path)) = (start, &config.train.weights) {
        model = crate::network::fine_tune(path, model, architecture, note)?;
    }
    let mut learner = Learner::new(model, architecture, config, &device.device)?;
    let (images, files) = (loaders.train.source().len(), &loaders.fingerprint.train_files);
    learner.set_teacher(Distillation::open(config, architecture, images, files, &device.device, note)?);
    Ok(learner)
}

/// Where a run stands, beside its tensors.
struct State {
    step: u64,
    phase: Phase,
    best: Option<Best>,
    last: Option<Score>,
    /// Steps whose line in the metrics is still to come, with their numbers.
    pending: Vec<(u64, StepReport)>,
    fingerprint: DataFingerprint,
}

impl State {
    fn start(fingerprint: DataFingerprint) -> Self {
        Self { step: 0, phase: Phase::Done, best: None, last: None, pending: Vec::new(), fingerprint }
    }
}

/// A run at work.
struct Run {
    loaded: Loaded,
    dir: RunDir,
    store: Store,
    metrics: Metrics,
    device: OpenDevice,
    learner: Learner,
    loader: Loader,
    eval_loader: Loader,
    schedule: Schedule,
    steps_per_epoch: u64,
    steps: u64,
    /// Batches of the current epoch from the current step on.
    batches: Option<Batches>,
    state: State,
    console: Console,
    stop: Stop,
    meter: Meter,
    started: Instant,
    /// Time in steps of this process after the first, and their number: the speed that the time left is reckoned with.
    stepping: Option<(Duration, u64)>,
    saved: Instant,
    /// Step and phase of the checkpoint this process wrote last.
    saved_at: Option<(u64, Phase)>,
    skipped: u64,
}

/// Whether to go on after a step.
enum Then {
    GoOn,
    Leave,
}

impl Run {
    #[expect(clippy::too_many_arguments, reason = "the parts of a run, each made by its own owner")]
    fn new(
        loaded: Loaded,
        dir: RunDir,
        loaders: Loaders,
        device: OpenDevice,
        learner: Learner,
        stop: Stop,
        metrics: Metrics,
        state: State,
        console: Console,
    ) -> Result<Self> {
        let Loaded { config, .. } = &loaded;
        let Loaders { train: loader, val: eval_loader, notices, .. } = loaders;
        for notice in notices.iter().chain(&device.notice) {
            console.say(format!("note: {notice}"));
        }
        let steps_per_epoch = loader.batches_per_epoch().div_ceil(config.train.accumulate) as u64;
        let steps = steps_per_epoch * config.train.epochs;
        for line in info::announcement(&loaded, &device.label, loader.source().len(), eval_loader.len(), steps_per_epoch) {
            console.say(line);
        }
        let schedule = Schedule::new(config, steps_per_epoch);
        Ok(Self {
            store: Store::new(dir.path()),
            dir,
            metrics,
            device,
            learner,
            loader,
            eval_loader,
            schedule,
            steps_per_epoch,
            steps,
            batches: None,
            state,
            console,
            stop,
            meter: Meter::default(),
            started: Instant::now(),
            stepping: None,
            saved: Instant::now(),
            saved_at: None,
            skipped: 0,
            loaded,
        })
    }

    fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// A fresh learner for other weights, with the same teacher.
    fn renew(&mut self, model: VisionTransformer) -> Result<()> {
        let teacher = self.learner.take_teacher();
        self.learner = Learner::new(model, &self.loaded.architecture, &self.loaded.config, &self.device.device)?;
        self.learner.set_teacher(teacher);
        Ok(())
    }

    /// Takes over the tensors of a checkpoint.
    fn load(&mut self, checkpoint: Checkpoint) -> Result<()> {
        let Checkpoint { path, mut model, ema, optimizer, .. } = checkpoint;
        let named = |file: &str| {
            let file = path.join(file);
            move |e: String| Error::Failed(format!("{}: {e}", file.display()))
        };
        let loaded = crate::weights::into_model(self.learner.model().clone(), &mut model)
            .map_err(|e| named("model.safetensors")(e.to_string()))?;
        self.renew(loaded)?;
        self.learner.optimizer_mut().import(optimizer).map_err(|e| named("optimizer.safetensors")(e.to_string()))?;
        if let Some(average) = self.learner.ema_mut() {
            let mut tensors = ema.ok_or_else(|| {
                named("ema.safetensors")("the checkpoint has no averaged weights, but the configuration keeps an average".into())
            })?;
            average.import(&mut tensors).map_err(|e| named("ema.safetensors")(e.to_string()))?;
        }
        Ok(())
    }

    /// Trains to the end, or to a signal.
    fn go(mut self) -> Result<Outcome> {
        self.console.start(self.steps, self.state.step);
        let outcome = self.work();
        self.console.finish();
        outcome
    }

    fn work(&mut self) -> Result<Outcome> {
        self.meter = Meter::default();
        loop {
            if self.state.phase == Phase::Trained
                && let Then::Leave = self.finish_step()?
            {
                break;
            }
            if self.state.step == self.steps {
                return self.summary();
            }
            if self.stop.asked() {
                self.save()?;
                break;
            }
            self.step()?;
        }
        Ok(Outcome::Interrupted { run: self.dir.path().into(), step: self.state.step })
    }

    fn summary(&self) -> Result<Outcome> {
        let (Some(last), Some(best)) = (self.state.last, self.state.best.clone()) else {
            return Err(Error::Failed("the run ended without an evaluation".into()));
        };
        Ok(Outcome::Finished(Summary { run: self.dir.path().into(), step: self.state.step, last, best, skipped: self.skipped }))
    }

    /// Epoch of step `step`, and its number within the epoch.
    fn place(&self, step: u64) -> (u64, u64) {
        (step / self.steps_per_epoch, step % self.steps_per_epoch)
    }

    /// Batches of the epoch that belong to step `within` of it.
    fn window(&self, within: u64) -> std::ops::Range<usize> {
        let first = within as usize * self.config().train.accumulate;
        first..(first + self.config().train.accumulate).min(self.loader.batches_per_epoch())
    }

    /// The next update.
    fn step(&mut self) -> Result<()> {
        let start = Instant::now();
        let (epoch, within) = self.place(self.state.step);
        let window = self.window(within);
        if within == 0 || self.batches.is_none() {
            self.batches = Some(self.loader.epoch(epoch, window.start));
        }
        let mut sum = Window::new(window.clone().map(|batch| self.loader.batch_len(batch)).sum());
        for _ in window {
            let waiting = Instant::now();
            let next = self.batches.as_mut().and_then(Iterator::next);
            self.meter.wait(waiting.elapsed());
            let mut batch = next
                .ok_or_else(|| Error::Failed("the loader ended before its epoch".into()))?
                .map_err(|e| self.loader_failed(&e))?;
            for bad in std::mem::take(&mut batch.skipped) {
                self.skipped += 1;
                let event = "bad-image".into();
                self.metrics.write(&Record::Event { step: self.state.step, event, path: bad.name, reason: bad.reason })?;
            }
            self.meter.count(batch.items.len() as u64);
            self.learner.add(&mut sum, batch)?;
        }
        // A step whose images are all unreadable changes nothing and is counted all the same.
        if let Some((gradients, report)) = self.learner.close(sum) {
            self.state.pending.push((self.state.step, report));
            if self.device.eager {
                // Reading costs nothing here, and a broken step is found before it touches the weights.
                self.read_pending()?;
            }
            self.learner.update(gradients, self.schedule.learning_rate(self.state.step), self.state.step + 1);
        }
        self.state.step += 1;
        self.state.phase = Phase::Trained;
        match &mut self.stepping {
            // On a GPU the first step compiles kernels and says nothing of the steps to come.
            None => self.stepping = Some((Duration::ZERO, 0)),
            Some((time, steps)) => {
                *time += start.elapsed();
                *steps += 1;
            }
        }
        Ok(())
    }

    /// An error of the loader, with what to do about the run.
    fn loader_failed(&self, error: &manyheads_data::DataError) -> Error {
        let skip = match (error.is_item_error(), self.config().data.bad_image) {
            (true, crate::config::BadImage::Fail) => {
                " To leave such images out, counted and listed, set data.bad_image = \"skip\"."
            }
            _ => "",
        };
        let run = self.dir.path().display();
        Error::Failed(format!("{error}.{skip} Once it is mended, continue with: manyheads resume {run}"))
    }

    /// What follows an update: log, evaluate, save. Doing it again after an interruption adds nothing twice.
    fn finish_step(&mut self) -> Result<Then> {
        let step = self.state.step;
        let (epochs_done, within) = self.place(step);
        let epoch_ends = within == 0;
        let run_ends = step == self.steps;
        if step.is_multiple_of(self.config().log.every_steps) || epoch_ends {
            self.log()?;
        } else if self.device.eager {
            self.show(false);
        } else {
            self.console.tick(step);
        }
        let mut improved = false;
        let every = self.config().eval.every_epochs;
        let due = |every: u64, count: u64| every > 0 && count.is_multiple_of(every);
        if run_ends || (epoch_ends && due(every, epochs_done)) {
            match self.evaluate(epochs_done) {
                Ok(Some(better)) => improved = better,
                Ok(None) => {
                    self.save()?;
                    return Ok(Then::Leave);
                }
                Err(error) => {
                    // The epoch's training is not to be lost with its evaluation.
                    if let Err(unsaved) = self.save() {
                        return Err(Error::Failed(format!("{error}. Besides: {unsaved}")));
                    }
                    let run = self.dir.path().display();
                    return Err(Error::Failed(format!(
                        "{error}. The training up to step {step} is saved; once it is mended, continue with: manyheads resume {run}"
                    )));
                }
            }
        }
        let checkpoint = self.config().checkpoint.clone();
        let scheduled = run_ends
            || (epoch_ends && due(checkpoint.every_epochs, epochs_done))
            || due(checkpoint.every_steps, step)
            || (improved && checkpoint.keep_best);
        let timed = checkpoint.every_minutes > 0.0 && self.saved.elapsed().as_secs_f64() >= checkpoint.every_minutes * 60.0;
        self.state.phase = Phase::Done;
        if scheduled {
            // Before the checkpoint, so that it is among the lines that the checkpoint knows of. Those that depend on the clock
            // or on a signal leave no line: two equal runs differ in nothing but `time_` and `rate_`.
            self.metrics.write(&Record::Checkpoint { step, path: format!("checkpoints/step-{step:08}") })?;
        }
        if scheduled || timed {
            self.save()?;
        }
        Ok(Then::GoOn)
    }

    /// Brings the numbers of the pending steps to the host and stops where one is not finite.
    fn read_pending(&mut self) -> Result<()> {
        StepReport::read_all(&mut self.state.pending)?;
        for (step, report) in &self.state.pending {
            let StepReport::Read(PendingStep { loss_sum, gradient_norm, .. }) = report else { continue };
            if loss_sum.is_finite() && gradient_norm.is_finite() {
                continue;
            }
            let step = *step;
            let what =
                if loss_sum.is_finite() { format!("gradient norm is {gradient_norm}") } else { format!("loss is {loss_sum}") };
            let kept = match self.store.steps()?.last() {
                Some(step) => format!("the last good state is checkpoint step-{step:08}"),
                None => "no checkpoint was written yet".into(),
            };
            return Err(Error::Failed(format!(
                "step {step}: the {what}, so training stops before anything is saved; {kept}. {}. \
                 Lower optimizer.learning_rate, set optimizer.clip_norm = 1.0, or look at these images",
                self.step_items(step)
            )));
        }
        Ok(())
    }

    /// The images of a step, for an error.
    fn step_items(&self, step: u64) -> String {
        let (epoch, within) = self.place(step);
        let items: Vec<usize> = self.window(within).flat_map(|batch| self.loader.items(epoch, batch)).collect();
        let shown: Vec<String> = items.iter().take(16).map(usize::to_string).collect();
        let more = if items.len() > shown.len() { format!(" and {} more", items.len() - shown.len()) } else { String::new() };
        format!("Images of the step, by number in the dataset: {}{more}", shown.join(", "))
    }

    /// Writes the line of the steps since the last one. Without such steps it does nothing.
    fn log(&mut self) -> Result<()> {
        self.read_pending()?;
        self.show(true);
        let steps = std::mem::take(&mut self.state.pending);
        let read = || steps.iter().filter_map(|(_, step)| if let StepReport::Read(step) = step { Some(step) } else { None });
        let Some(last) = read().next_back() else { return Ok(()) };
        let images: u64 = read().map(|step| step.images).sum();
        let (images_per_second, data_wait) = self.meter.take();
        self.metrics.write(&Record::Train {
            step: self.state.step,
            epoch: self.place(self.state.step - 1).0,
            loss: read().map(|step| step.loss_sum).sum::<f64>() / images as f64,
            learning_rate: self.schedule.learning_rate(self.state.step - 1),
            gradient_norm: last.gradient_norm,
            images,
            time_seconds: self.started.elapsed().as_secs_f64(),
            rate_images_per_second: images_per_second,
            rate_data_wait: data_wait,
        })
    }

    /// Shows where training stands, with the mean loss of the pending steps.
    fn show(&self, line: bool) {
        let step = self.state.step;
        let (loss, images) = self.state.pending.iter().fold((0.0, 0), |(loss, images), (_, report)| match report {
            StepReport::Read(step) => (loss + step.loss_sum, images + step.images),
            StepReport::OnDevice(..) => (loss, images),
        });
        if images == 0 {
            return;
        }
        let (images_per_second, data_wait) = self.meter.peek();
        let left = self
            .stepping
            .filter(|(_, steps)| *steps > 0)
            .map(|(time, steps)| time.div_f64(steps as f64).mul_f64((self.steps - step) as f64));
        let progress = Progress {
            step,
            steps: self.steps,
            epoch: self.place(step - 1).0,
            epochs: self.config().train.epochs,
            loss: loss / images as f64,
            learning_rate: self.schedule.learning_rate(step - 1),
            images_per_second,
            data_wait,
            left,
        };
        self.console.show(&progress, line);
    }

    /// Evaluates after `epochs` epochs; whether it is the best so far. `None` where a signal came.
    fn evaluate(&mut self, epochs: u64) -> Result<Option<bool>> {
        let step = self.state.step;
        let model = self.learner.model().valid();
        let result = evaluate(&model, &self.eval_loader, &self.device.device, Some(&self.stop), &Console::default())?;
        let Some(evaluation) = result else { return Ok(None) };
        let averaged = match self.learner.ema() {
            None => None,
            Some(ema) => {
                let stop = Some(&self.stop);
                match evaluate(ema.model(), &self.eval_loader, &self.device.device, stop, &Console::default())? {
                    Some(evaluation) => Some(evaluation.score),
                    None => return Ok(None),
                }
            }
        };
        for bad in &evaluation.skipped {
            let event = "bad-image".into();
            let (path, reason) = (bad.name.clone(), bad.reason.clone());
            self.metrics.write(&Record::Event { step, event, path, reason })?;
        }
        let Score { top1, top5, loss, n } = evaluation.score;
        self.metrics.write(&Record::Eval {
            step,
            epoch: epochs - 1,
            top1,
            top5,
            loss,
            n,
            ema_top1: averaged.map(|score| score.top1),
            ema_top5: averaged.map(|score| score.top5),
            ema_loss: averaged.map(|score| score.loss),
            skipped: evaluation.skipped.len() as u64,
            time_seconds: self.started.elapsed().as_secs_f64(),
            time_evaluation_seconds: evaluation.seconds,
            rate_images_per_second: n as f64 / evaluation.seconds.max(1e-9),
        })?;
        let skipped = match evaluation.skipped.len() {
            0 => String::new(),
            skipped => format!(" ({skipped} unreadable images left out)"),
        };
        self.console.say(format!(
            "epoch {epochs}/{}: top-1 {top1:.2} % | top-5 {top5:.2} % | loss {loss:.4} | {n} images{skipped}{}",
            self.config().train.epochs,
            averaged.map_or(String::new(), |score| format!(" | averaged weights: top-1 {:.2} %", score.top1))
        ));
        let improved = self.state.best.as_ref().is_none_or(|best| top1 > best.top1);
        if improved {
            self.state.best = Some(Best { step, top1 });
        }
        self.state.last = Some(evaluation.score);
        self.meter = Meter::default();
        Ok(Some(improved))
    }

    /// Step of the best checkpoint, where it is to be kept.
    fn best_kept(&self) -> Option<u64> {
        self.state.best.as_ref().map(|best| best.step).filter(|_| self.config().checkpoint.keep_best)
    }

    /// Writes a checkpoint of the present state and removes what need not be kept.
    fn save(&mut self) -> Result<()> {
        if self.saved_at == Some((self.state.step, self.state.phase)) {
            return Ok(());
        }
        self.read_pending()?;
        self.metrics.sync()?;
        let pending = self.state.pending.iter().filter_map(|(_, report)| match report {
            StepReport::Read(numbers) => Some(numbers.clone()),
            StepReport::OnDevice(..) => None,
        });
        let manifest = Manifest {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").into(),
            step: self.state.step,
            phase: self.state.phase,
            best: self.state.best.clone(),
            last: self.state.last,
            pending: pending.collect(),
            metrics_bytes: self.metrics.bytes(),
            data: self.state.fingerprint.clone(),
            files: Default::default(),
            sha256: String::new(),
        };
        let model = timm::export(self.learner.model());
        let optimizer = self.learner.optimizer().export();
        let config = self.config().to_toml();
        let ema = self.learner.ema().map(Ema::export);
        self.store.save(manifest, &Parts { model: &model, ema: ema.as_deref(), optimizer: &optimizer, config: &config })?;
        let best = self.best_kept();
        self.store.settle(self.state.step, best, self.config().checkpoint.keep)?;
        self.saved = Instant::now();
        self.saved_at = Some((self.state.step, self.state.phase));
        Ok(())
    }
}
