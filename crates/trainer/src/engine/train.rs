//! The training loop. A step is a number (law 2): everything about a step follows from it and the configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;
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
use super::watch::{Activity, Watch};
use crate::checkpoint::{
    Best, Checkpoint, DataFingerprint, FORMAT, Job, Keep, Manifest, Newest, Parts, PendingStep, Phase, Saver, Store,
};
use crate::config::{Config, Loaded};
use crate::dataset::{Datasets, eval_loader, train_loader};
use crate::error::{Error, Result};
use crate::log::Log;
use crate::log::jsonl::{Metrics, Record, unix_time};
use crate::log::progress::{Console, Meter, Progress, View};
use crate::recipe::distillation::Distillation;
use crate::recipe::ema::Ema;
use crate::recipe::schedule::Schedule;
use crate::run_dir::RunDir;
use crate::signals::Stop;
use crate::unchanged::{self, Change};
use crate::{info, memory, space};

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

/// What may be different when a run is continued.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// `KEY=VALUE` settings that win over the run's configuration.
    pub sets: Vec<String>,
    /// Keys and sections of the configuration that may differ from the checkpoint's; `data.train` and `data.val` stand for the images too.
    pub allow: Vec<String>,
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
/// `out` is the run's folder, `device` wins over the configuration's, `view` is what people see of it.
///
/// # Errors
/// Where the configuration does not fit the data, or the work fails.
pub fn train(loaded: &Loaded, out: Option<&Path>, device: Option<DeviceName>, view: View) -> Result<Outcome> {
    let mut loaded = loaded.clone();
    check_weights(&mut loaded)?;
    let loaded = &loaded;
    let config = &loaded.config;
    let console = Console::new(view);
    let datasets = Datasets::open(config)?;
    loaded.check_data(datasets.train.len(), datasets.train.classes().len(), &class_hint(&datasets))?;
    let open = device::open(config, device)?;
    open.trains(config)?;
    let loaders = Loaders::new(loaded, datasets, open.eager)?;
    check_memory(loaded, &open, &console)?;
    let stop = Stop::on_signals()?;
    // Before there is a run: weights or a teacher that do not fit leave nothing behind.
    let learner = learner(loaded, &loaders, &open, true, &console)?;
    let dir = RunDir::create(out, config.run.name.as_deref().unwrap_or("run"))?;
    if config.run.check_resources {
        space::check(dir.path(), config, &loaded.architecture)?;
    }
    Store::new(dir.path()).create()?;
    dir.write("config.toml", config.to_toml().as_bytes())?;
    dir.note_session(0, &open, config)?;
    let metrics = Metrics::open(dir.path(), 0)?;
    console.say(format!("run {}", dir.path().display()));
    let state = State::start(loaders.fingerprint.clone());
    Run::new(loaded.clone(), dir, loaders, open, learner, stop, metrics, state, console)?.go()
}

/// Continues the run in `run_dir` from its newest sound checkpoint.
///
/// `changes` says what may be different from what the checkpoint was trained with; it is written into the run.
///
/// # Errors
/// Where there is no sound checkpoint, the configuration was changed, or the work fails.
pub fn resume(run_dir: &Path, device: Option<DeviceName>, changes: &Changes, view: View) -> Result<Outcome> {
    let console = Console::new(view);
    let dir = RunDir::open(run_dir)?;
    let config_path = dir.path().join("config.toml");
    let loaded = crate::config::load(&config_path, &changes.sets)?;
    let config = &loaded.config;
    let store = Store::new(dir.path());
    store.tidy()?;
    let found = store.newest_sound()?;
    let datasets = Datasets::open(config)?;
    loaded.check_data(datasets.train.len(), datasets.train.classes().len(), &class_hint(&datasets))?;
    let open = device::open(config, device)?;
    open.trains(config)?;
    let loaders = Loaders::new(&loaded, datasets, open.eager)?;
    let stop = Stop::on_signals()?;
    check_memory(&loaded, &open, &console)?;

    let Some(Newest { checkpoint, broken }) = found else {
        console.say(format!("run {}: no checkpoint was finished yet, starting from step 0", dir.path().display()));
        if !changes.sets.is_empty() {
            dir.write("config.toml", config.to_toml().as_bytes())?;
        }
        dir.note_session(0, &open, config)?;
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
    let different = unchanged::check(&checkpoint, config, &loaders.fingerprint, &changes.allow, &config_path)?;
    let manifest = &checkpoint.manifest;
    let steps = config.steps_per_epoch(loaders.train.source().len()) * config.train.epochs;
    if manifest.step > steps {
        return Err(Error::Usage(format!(
            "{} steps are done, but the configuration makes a run of {steps} steps: there is nothing to continue",
            manifest.step
        )));
    }
    console.say(format!("run {}: continuing from {}", dir.path().display(), checkpoint.path.display()));
    for line in taken_over(&checkpoint, config, loaders.train.batches_per_epoch()) {
        console.say(line);
    }
    dir.note_session(manifest.step, &open, config)?;
    let metrics = Metrics::open(dir.path(), manifest.metrics_bytes)?;
    let state = State {
        step: manifest.step,
        phase: manifest.phase,
        best: manifest.best.clone(),
        last: manifest.last,
        pending: manifest.pending.iter().map(|step| (step.step, StepReport::Read(step.clone()))).collect(),
        skipped_steps: manifest.skipped_steps,
        fingerprint: loaders.fingerprint.clone(),
    };
    let learner = learner(&loaded, &loaders, &open, false, &console)?;
    let mut run = Run::new(loaded, dir, loaders, open, learner, stop, metrics, state, console)?;
    run.load(checkpoint)?;
    run.store.settle(run.state.step, &run.keep())?;
    run.saved_at = Some((run.state.step, run.state.phase));
    // Only now it is known that the checkpoint fits what was set.
    if !changes.sets.is_empty() {
        run.dir.write("config.toml", run.config().to_toml().as_bytes())?;
    }
    run.accept(&different)?;
    run.go()
}

/// Whether the memory can hold the run; what is tight is told.
fn check_memory(loaded: &Loaded, device: &OpenDevice, console: &Console) -> Result<()> {
    // Other devices have a memory of their own, which no backend tells the size of.
    if loaded.config.run.check_resources
        && device.eager
        && let Some(warning) = memory::check(&loaded.config, &loaded.architecture)?
    {
        console.say(warning);
    }
    Ok(())
}

/// What a run that is continued has from its checkpoint, and what from its configuration.
fn taken_over(checkpoint: &Checkpoint, config: &Config, batches: usize) -> Vec<String> {
    let Checkpoint { manifest, model, ema, optimizer, .. } = checkpoint;
    let per_epoch = (batches.div_ceil(config.train.accumulate) as u64).max(1);
    let (epoch, within) = (manifest.step / per_epoch, manifest.step % per_epoch);
    let average = ema.as_ref().map_or("none".to_owned(), |tensors| format!("{} tensors", tensors.len()));
    let best = manifest.best.as_ref();
    let best = best.map_or("none yet".to_owned(), |best| format!("top-1 {:.2} % at step {}", best.top1, best.step));
    let skipped = match manifest.skipped_steps {
        0 => String::new(),
        count => format!(" | {count} steps left out"),
    };
    vec![
        format!(
            "from the checkpoint: step {} of {} | epoch {} of {}, {within} of its {per_epoch} steps done | weights {} tensors | \
             optimizer {} tensors | averaged weights {average} | best {best}{skipped}",
            manifest.step,
            per_epoch * config.train.epochs,
            (epoch + 1).min(config.train.epochs),
            config.train.epochs,
            model.len(),
            optimizer.len(),
        ),
        "from the configuration: learning rate, order of the images and all that is random, as functions of the step and the seed".into(),
    ]
}

/// Both halves of the data, ready to be read.
struct Loaders {
    train: Loader,
    val: Loader,
    notices: Vec<String>,
    fingerprint: DataFingerprint,
}

impl Loaders {
    fn new(loaded: &Loaded, datasets: Datasets, eager: bool) -> Result<Self> {
        let Loaded { config, architecture, .. } = loaded;
        Ok(Self {
            notices: datasets.notices(),
            fingerprint: datasets.fingerprint(),
            train: train_loader(config, architecture, datasets.train, eager)?,
            val: eval_loader(config, architecture, datasets.val, eager)?,
        })
    }
}

fn class_hint(datasets: &Datasets) -> String {
    let classes = datasets.train.classes();
    let shown: Vec<&str> = classes.iter().take(3).map(String::as_str).collect();
    format!("{}{}", shown.join(", "), if classes.len() > 3 { ", …" } else { "" })
}

/// Writes down which weights a run starts from, or finds that they are others than those written down.
pub(super) fn check_weights(loaded: &mut Loaded) -> Result<()> {
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
    /// Steps left out since the start of the run.
    skipped_steps: u64,
    fingerprint: DataFingerprint,
}

impl State {
    fn start(fingerprint: DataFingerprint) -> Self {
        Self { step: 0, phase: Phase::Done, best: None, last: None, pending: Vec::new(), skipped_steps: 0, fingerprint }
    }
}

/// A run at work.
struct Run {
    loaded: Loaded,
    dir: RunDir,
    store: Store,
    saver: Saver,
    metrics: Log,
    device: OpenDevice,
    learner: Learner,
    loader: Arc<Loader>,
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
    /// Step of a checkpoint that somebody waits for at the keyboard.
    wished: Option<u64>,
    watch: Watch,
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
        let (metrics, notice) = Log::open(metrics, dir.path(), &loaded, &loader)?;
        if let Some(notice) = notice {
            console.say(notice);
        }
        let schedule = Schedule::new(config, steps_per_epoch);
        let store = Store::new(dir.path());
        Ok(Self {
            saver: Saver::new(store.clone()),
            store,
            dir,
            metrics,
            device,
            learner,
            loader: Arc::new(loader),
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
            wished: None,
            watch: Watch::start(None, |_, _| {}).map_err(watch_failed)?,
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
        let title = format!("{} on {}", self.dir.path().display(), self.device.label);
        if let Some(sink) = self.console.dashboard(&title, &self.stop) {
            self.metrics.follow(sink)?;
        }
        self.watch()?;
        let outcome = self.work();
        // Whatever ended the run, what is being written is not to be cut off.
        let saved = self.saved();
        self.watch.pulse().enter(Activity::None);
        self.console.finish();
        match (outcome, saved) {
            (Err(error), Err(unsaved)) => Err(Error::Failed(format!("{error}. Besides: {unsaved}"))),
            (Err(error), Ok(())) | (Ok(_), Err(error)) => Err(error),
            (Ok(outcome), Ok(())) => Ok(outcome),
        }
    }

    /// Has it said where the run waits for long.
    fn watch(&mut self) -> Result<()> {
        let limit = self.config().log.stall_seconds;
        let limit = (limit > 0.0).then(|| Duration::from_secs_f64(limit));
        let (speaker, loader, label) = (self.console.speaker(), self.loader.clone(), self.device.label.clone());
        let report = move |activity: Activity, elapsed: Duration| {
            let seconds = elapsed.as_secs();
            let what = match activity {
                Activity::None => return,
                Activity::Batch { epoch, batch } => {
                    let names = names(&loader, loader.items(epoch, batch));
                    format!("the loader, for batch {batch} of epoch {epoch}, which holds {names}")
                }
                Activity::Step(step) => format!("{label}, to compute step {step}"),
                Activity::Evaluation => format!("the next batch of the evaluation on {label}"),
                Activity::Checkpoint(step) => format!("the disk, to hold checkpoint step-{step:08}"),
            };
            speaker.say(&format!("stalled: waiting for {seconds} s for {what}"));
        };
        self.watch = Watch::start(limit, report).map_err(watch_failed)?;
        self.console.set_pulse(self.watch.pulse().clone());
        Ok(())
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
            // An error of a checkpoint that was being written ends the run here.
            let saved = self.saver.poll()?;
            self.tell_saved(saved);
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
        for number in window {
            let waiting = Instant::now();
            self.watch.pulse().enter(Activity::Batch { epoch, batch: number });
            let next = self.batches.as_mut().and_then(Iterator::next);
            self.watch.pulse().enter(Activity::Step(self.state.step));
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
            // Elsewhere the device itself leaves a broken step out, and the host learns of it when it reads the numbers.
            let broken = if self.device.eager { None } else { report.broken() };
            self.state.pending.push((self.state.step, report));
            let skipped = self.state.skipped_steps;
            if self.device.eager {
                // Reading costs nothing here, and a broken step is found before it touches the weights.
                self.read_pending()?;
            }
            if self.state.skipped_steps == skipped {
                let rate = self.schedule.learning_rate(self.state.step);
                self.learner.update_unless(gradients, rate, self.state.step + 1, broken);
            }
        }
        self.state.step += 1;
        self.state.phase = Phase::Trained;
        match &mut self.stepping {
            // On a GPU the first step compiles kernels and says nothing of the steps to come.
            None => {
                self.stepping = Some((Duration::ZERO, 0));
                self.read_pending()?;
                let seconds = self.started.elapsed().as_secs_f64();
                self.console.say(format!("first step done {seconds:.1} s after the start: data, kernels and the step itself"));
            }
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
            let before = self.metrics.bytes();
            match self.evaluate(epochs_done) {
                Ok(Some(better)) => improved = better,
                Ok(None) => {
                    self.save()?;
                    return Ok(Then::Leave);
                }
                Err(error) => {
                    // The epoch's training is not to be lost with its evaluation, which will be done anew from its first line.
                    if let Err(unsaved) = self.metrics.cut(before).and_then(|()| self.save()).and_then(|()| self.saved()) {
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
            || (epoch_ends && due(checkpoint.keep_every_epochs, epochs_done))
            || due(checkpoint.every_steps, step)
            || (improved && checkpoint.keep_best);
        let timed = checkpoint.every_minutes > 0.0 && self.saved.elapsed().as_secs_f64() >= checkpoint.every_minutes * 60.0;
        self.state.phase = Phase::Done;
        if scheduled {
            // Before the checkpoint, so that it is among the lines that the checkpoint knows of. Those that depend on the clock
            // or on a signal leave no line: two equal runs differ in nothing but `time_` and `rate_`.
            self.metrics.write(&Record::Checkpoint { step, path: format!("checkpoints/step-{step:08}") })?;
        }
        if self.console.checkpoint_wished() {
            self.wished = Some(step);
        }
        let wished = self.wished == Some(step);
        if scheduled || timed || wished {
            self.save()?;
        }
        if wished && self.saver.writing() != Some(step) {
            // It was there already.
            self.tell_saved(Some(step));
        }
        Ok(Then::GoOn)
    }

    /// Brings the numbers of the pending steps to the host and takes those out that are not finite.
    ///
    /// # Errors
    /// Where there are more of these than the configuration lets pass.
    fn read_pending(&mut self) -> Result<()> {
        StepReport::read_all(&mut self.state.pending)?;
        let broken = |report: &StepReport| match report {
            StepReport::Read(PendingStep { loss_sum, gradient_norm, .. }) => {
                if !loss_sum.is_finite() {
                    Some(format!("loss is {loss_sum}"))
                } else {
                    (!gradient_norm.is_finite()).then(|| format!("gradient norm is {gradient_norm}"))
                }
            }
            StepReport::OnDevice(..) => None,
        };
        let broken: Vec<(u64, String)> =
            self.state.pending.iter().filter_map(|(step, report)| Some((*step, broken(report)?))).collect();
        self.state.pending.retain(|(step, _)| broken.iter().all(|(left_out, _)| left_out != step));
        broken.into_iter().try_for_each(|(step, what)| self.not_finite(step, &what))
    }

    /// Leaves out a step, or stops where too many have been left out. Its update has not touched the weights.
    fn not_finite(&mut self, step: u64, what: &str) -> Result<()> {
        let (epoch, within) = self.place(step);
        let images: Vec<usize> = self.window(within).flat_map(|batch| self.loader.items(epoch, batch)).collect();
        let images = names(&self.loader, images);
        self.state.skipped_steps += 1;
        let (skipped, allowed) = (self.state.skipped_steps, self.config().train.skip_non_finite);
        let event = if skipped > allowed { "not-finite" } else { "skipped-step" };
        let reason = format!("the {what}; images of the step: {images}");
        self.metrics.write(&Record::Event { step, event: event.into(), path: String::new(), reason })?;
        if skipped <= allowed {
            self.console.say(format!(
                "step {step}: the {what}; it is left out, {skipped} of {allowed} that train.skip_non_finite lets pass. Images of the \
                 step: {images}"
            ));
            return Ok(());
        }
        // What is being written may be the last good state.
        let unsaved = self.saver.wait().err().map_or(String::new(), |error| format!(". Besides: {error}"));
        let kept = match self.store.steps()?.last() {
            Some(step) => format!(
                "the last good state is checkpoint step-{step:08}, from which `manyheads resume {}` goes on",
                self.dir.path().display()
            ),
            None => "no checkpoint was written yet".into(),
        };
        let weight = self.largest_weight();
        let skipping = match allowed {
            0 => "set train.skip_non_finite to leave such steps out".into(),
            _ => format!("{allowed} such steps have been left out before"),
        };
        Err(Error::Failed(format!(
            "step {step}: the {what}, so training stops before the weights are touched; {kept}. Images of the step: {images}{weight}. Lower \
             optimizer.learning_rate, set optimizer.clip_norm = 1.0, or look at these images; {skipping}{unsaved}"
        )))
    }

    /// The largest weight, for an error: where one is out of all proportion, that is the reason.
    fn largest_weight(&self) -> String {
        let Ok(tensors) = timm::try_export(self.learner.model()) else { return String::new() };
        let size = |values: &[f32]| {
            values.iter().map(|value| if value.is_nan() { f32::INFINITY } else { value.abs() }).fold(0.0, f32::max)
        };
        let largest = tensors.iter().map(|tensor| (size(&tensor.values), &tensor.name)).max_by(|a, b| a.0.total_cmp(&b.0));
        largest.map_or(String::new(), |(value, name)| format!(". The largest weight is {value:.3e}, in {name}"))
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
            time_unix: unix_time(),
            rate_images_per_second: images_per_second,
            rate_data_wait: data_wait,
            rate_memory_bytes: memory::resident_bytes(),
            rate_device_memory_bytes: self.device.device.memory_pool_usage().map(|usage| usage.bytes_reserved),
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
        self.watch.pulse().enter(Activity::Evaluation);
        let model = self.learner.model().valid();
        let precision = self.config().eval.precision;
        let score = |model: &VisionTransformer| {
            evaluate(model, &self.eval_loader, &self.device.device, precision, Some(&self.stop), &self.console.aside())
        };
        let result = score(&model)?;
        let Some(evaluation) = result else { return Ok(None) };
        let averaged = match self.learner.ema() {
            None => None,
            Some(ema) => match score(ema.model())? {
                Some(evaluation) => Some(evaluation.score),
                None => return Ok(None),
            },
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
            time_unix: unix_time(),
            time_evaluation_seconds: evaluation.seconds,
            rate_images_per_second: n as f64 / evaluation.seconds.max(1e-9),
        })?;
        self.metrics.weights(step, || timm::try_export(self.learner.model()).map_err(|e| device_failed(&e)))?;
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

    /// Which checkpoints stay.
    fn keep(&self) -> Keep {
        let checkpoint = &self.config().checkpoint;
        let every = (checkpoint.keep_every_epochs > 0).then(|| checkpoint.keep_every_epochs.saturating_mul(self.steps_per_epoch));
        Keep { newest: checkpoint.keep, best: self.best_kept(), every }
    }

    /// Takes the present state, to be written while training goes on. Where one is still being written, waits for it.
    fn save(&mut self) -> Result<()> {
        if self.saved_at == Some((self.state.step, self.state.phase)) {
            return Ok(());
        }
        self.read_pending()?;
        self.saved()?;
        let (logs, notes) = self.metrics.check()?;
        for note in notes {
            self.console.say(note);
        }
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
            skipped_steps: self.state.skipped_steps,
            metrics_bytes: self.metrics.bytes(),
            data: self.state.fingerprint.clone(),
            files: Default::default(),
            sha256: String::new(),
        };
        let model = timm::hold(self.learner.model());
        let ema = self.learner.ema().map(Ema::hold);
        let parts = Parts::hold(model, ema, self.learner.optimizer().hold(), self.config().to_toml(), self.device.eager)?;
        self.saver.start(Job { manifest, parts, logs, keep: self.keep() })?;
        self.saved = Instant::now();
        self.saved_at = Some((self.state.step, self.state.phase));
        Ok(())
    }

    /// Waits until nothing is being written.
    fn saved(&mut self) -> Result<()> {
        let Some(step) = self.saver.writing() else { return Ok(()) };
        let before = self.watch.pulse().enter(Activity::Checkpoint(step));
        let saved = self.saver.wait()?;
        self.watch.pulse().enter(before);
        self.tell_saved(saved);
        Ok(())
    }

    /// Tells who asked for the checkpoint of a step that it is on the disk.
    fn tell_saved(&mut self, saved: Option<u64>) {
        if let Some(step) = saved
            && self.wished == saved
        {
            self.wished = None;
            self.console.say(format!("checkpoint step-{step:08} is saved"));
        }
    }

    /// Writes down what a run that is continued does differently, in its events and in a checkpoint with the new configuration.
    fn accept(&mut self, changes: &[Change]) -> Result<()> {
        for change in changes {
            self.console.say(format!("from now on different: {}", change.text()));
            let (path, reason) = (change.key.clone(), change.what.clone());
            self.metrics.write(&Record::Event { step: self.state.step, event: "changed".into(), path, reason })?;
        }
        if !changes.is_empty() {
            self.saved_at = None;
            self.save()?;
            self.saved()?;
        }
        Ok(())
    }
}

/// The names of images, as many as can be read at a glance.
fn names(loader: &Loader, items: Vec<usize>) -> String {
    const SHOWN: usize = 8;
    let names: Vec<String> = items.iter().take(SHOWN).map(|item| loader.source().name(*item)).collect();
    match items.len().saturating_sub(SHOWN) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

fn device_failed(error: &burn::tensor::ExecutionError) -> Error {
    Error::Failed(device::failed("when the weights were to be read", &error.to_string()))
}

fn watch_failed(error: std::io::Error) -> Error {
    Error::Failed(format!("cannot start the thread that watches the run: {error}"))
}
