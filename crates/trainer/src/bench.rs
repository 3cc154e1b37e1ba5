//! What `manyheads bench train` and `manyheads bench infer` measure: steps of a network on synthetic images, without loader and disk.

pub mod peak;
pub mod profile;

use std::path::Path;
use std::time::Instant;

use burn::tensor::Device;
use manyheads_data::random::{Purpose, stream};
use manyheads_data::{Batch, Images};
use manyheads_model::cost;
use manyheads_model::profile::{Kind, Profile, start, switch};
use serde::Serialize;

use self::peak::{Arithmetic, Peak};
use self::profile::StepProfile;
use crate::config::{self, Loaded, Precision};
use crate::engine::device::{self, DeviceName, OpenDevice};
use crate::engine::step::{Learner, StepReport, Window};
use crate::engine::upload::shown;
use crate::error::{Error, Result};
use crate::memory;
use crate::recipe::schedule::Schedule;

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Where; the configuration's device if absent.
    pub device: Option<DeviceName>,
    /// Steps before the clock runs: caches fill, a GPU compiles and tunes its kernels.
    pub warmup: usize,
    /// Steps measured, at least 1.
    pub steps: usize,
    /// Seconds after which no further step is begun, where two have been measured.
    pub seconds: f64,
    /// Whether steps are profiled too, after the others and as many, and the peak is measured where none is published.
    pub profile: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { device: None, warmup: 3, steps: 10, seconds: f64::INFINITY, profile: false }
    }
}

/// What a measurement says.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Kind and model of the device.
    pub device: String,
    /// `fused` or `plain`: how the network's operations are computed.
    pub ops: manyheads_model::Ops,
    /// Float type of the matrix products.
    pub precision: Precision,
    /// Images that go through the network at once.
    pub batch: usize,
    /// Sides of an image in pixels.
    pub image: [usize; 2],
    /// Parameters of the network.
    pub parameters: u64,
    /// Images per second, from the median step.
    pub images_per_second: f64,
    /// Seconds of the median step.
    pub seconds_per_step: f64,
    /// Seconds of the fastest step.
    pub fastest_step: f64,
    /// Processor time of a step over all threads, in seconds; none where the system does not tell.
    pub cpu_seconds_per_step: Option<f64>,
    /// Floating-point operations of a step, of the matrix products and attention alone: two to a multiply-accumulate, and three times
    /// the forward pass in training.
    pub flops_per_step: f64,
    /// Those operations per second.
    pub flops_per_second: f64,
    /// The most that the device reaches, where it is published, or measured for a profile.
    pub peak: Option<Peak>,
    /// Share of the peak: model FLOPs utilisation.
    pub mfu: Option<f64>,
    /// Most memory that the process ever held, as the operating system counts it; none where it does not tell.
    pub peak_memory_bytes: Option<u64>,
    /// Memory of the device that the backend holds after the steps, with what it keeps for reuse; none where it does not tell.
    pub device_memory_bytes: Option<u64>,
    /// Where the time of a step goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<StepProfile>,
}

/// The configuration of a measurement: a file's, or a preset's with DeiT's recipe, with `sets` on top. It needs no dataset.
///
/// # Errors
/// [`Error::Usage`] where it is wrong.
pub fn configuration(file: Option<&Path>, preset: &str, sets: &[String]) -> Result<Loaded> {
    match file {
        Some(path) => config::load_without_images(path, sets),
        None => {
            let text = format!(
                "[model]\npreset = {}\n[train]\nbatch_size = 8\naccumulate = 1\n[optimizer]\nreference_batch = 0\n",
                serde_json::Value::from(preset)
            );
            config::load_text_without_images(&text, "--preset", sets)
        }
    }
}

/// Measures training steps: forward and backward over one batch, the gradient's norm, and the optimizer's update.
///
/// # Errors
/// Where the device cannot be opened, or the work fails.
pub fn train(loaded: &Loaded, options: &Options) -> Result<Report> {
    let Loaded { config, architecture, .. } = loaded;
    let open = device::open(config, options.device)?;
    open.computes(config.train.precision, "train.precision")?;
    let autodiff = open.device.clone().autodiff();
    let model = architecture.init(&mut stream(config.run.seed, Purpose::Init, 0, 0), &autodiff);
    let mut learner = Learner::new(model, architecture, config, &open.device)?;
    let batch = synthetic(loaded, 0, open.eager);
    let schedule = Schedule::new(config, 1000);
    let mut count = 0;
    let measurement = Measurement { loaded, open: &open, options, precision: config.train.precision, passes: 3.0 };
    measurement.run(&mut || batch.clone(), &mut |edge, batch| {
        let mut window = Window::new(batch.items.len());
        edge.turn(Kind::Transfers)?;
        learner.add(&mut window, batch)?;
        edge.turn(Kind::Optimizer)?;
        let (gradients, report) =
            learner.close(window).ok_or_else(|| Error::Failed("a step of synthetic images has no gradient".into()))?;
        learner.update(gradients, schedule.learning_rate(count), count + 1);
        count += 1;
        edge.turn(Kind::Transfers)?;
        // On a GPU the step has ended when its last weights are there.
        StepReport::read_all(&mut [(count, report)])?;
        sync(&open.device)
    })
}

/// Measures forward passes without autodiff.
///
/// # Errors
/// Where the device cannot be opened or does not compute in the configuration's float type, or the work fails.
pub fn infer(loaded: &Loaded, options: &Options) -> Result<Report> {
    let Loaded { config, architecture, .. } = loaded;
    let open = device::open(config, options.device)?;
    let precision = config.eval.precision;
    open.computes(precision, "eval.precision")?;
    let model = architecture.init(&mut stream(config.run.seed, Purpose::Init, 0, 0), &open.device);
    let batch = synthetic(loaded, 0, open.eager);
    let statistics = [config.data.mean(), config.data.std()];
    let measurement = Measurement { loaded, open: &open, options, precision, passes: 1.0 };
    measurement.run(&mut || batch.images.clone(), &mut |edge, images| {
        edge.turn(Kind::Transfers)?;
        let to = (model.byte_patch(), precision.float());
        let logits = model.forward(shown(images, batch.shape, statistics, &open.device, to), None);
        edge.turn(Kind::Transfers)?;
        logits.try_into_data().map(drop).map_err(|e| Error::Failed(format!("the device failed: {e}")))
    })
}

fn sync(device: &Device) -> Result<()> {
    device.sync().map_err(|e| Error::Failed(format!("the device failed: {e}")))
}

/// Values between -1 and 1, the same in every run.
pub(crate) fn noise(seed: u64, count: usize) -> Vec<f32> {
    endless_noise(seed).take(count).collect()
}

fn endless_noise(seed: u64) -> impl Iterator<Item = f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ seed;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    })
}

/// A batch of noise, the same in every run; `number` tells batches apart. `floats`: normalised, as the CPU is given images, otherwise bytes,
/// as a GPU is given them.
pub(crate) fn synthetic(loaded: &Loaded, number: usize, floats: bool) -> Batch {
    let Loaded { config, architecture, .. } = loaded;
    let [height, width] = architecture.image;
    let count = config.train.batch_size;
    let shape = [count, architecture.channels, height, width];
    let mut uniform = endless_noise(config.run.seed ^ ((number as u64) << 32));
    let values: usize = shape.iter().product();
    let images = match floats {
        // Three uniform numbers make one that is nearly normal, of deviation 1.
        true => Images::F32((0..values).map(|_| uniform.by_ref().take(3).sum()).collect()),
        false => {
            let values = uniform.take(values).map(|value| (127.5 + 127.5 * value) as u8).collect();
            Images::U8 { values, patches: Vec::new() }
        }
    };
    let items = number * count..(number + 1) * count;
    Batch {
        images,
        shape,
        labels: items.clone().map(|image| (image % architecture.classes) as u32).collect(),
        items: items.collect(),
        copies: vec![0; count],
        counted: count,
        skipped: Vec::new(),
        epoch: 0,
        batch: number,
    }
}

/// Where a step turns from one kind of operation to another outside the network.
struct Edge<'a> {
    /// The device to wait for, where the step is profiled.
    profiled: Option<&'a Device>,
}

impl Edge<'_> {
    fn turn(&self, kind: Kind) -> Result<()> {
        if let Some(device) = self.profiled {
            sync(device)?;
            switch(kind);
        }
        Ok(())
    }
}

/// What is measured, where.
struct Measurement<'a> {
    loaded: &'a Loaded,
    open: &'a OpenDevice,
    options: &'a Options,
    precision: Precision,
    /// Forward passes that a step counts for.
    passes: f64,
}

impl Measurement<'_> {
    /// Measures `step`. What it takes comes from `prepare`, outside the clock: in training, other threads make the batches.
    fn run<I>(&self, prepare: &mut dyn FnMut() -> I, step: &mut dyn FnMut(&Edge<'_>, I) -> Result<()>) -> Result<Report> {
        let Self { loaded: Loaded { config, architecture, .. }, open, options, precision, passes } = *self;
        let unprofiled = Edge { profiled: None };
        for _ in 0..options.warmup {
            step(&unprofiled, prepare())?;
        }
        let mut seconds = Vec::with_capacity(options.steps);
        let (begin, cpu) = (Instant::now(), cpu_seconds());
        for done in 0..options.steps.max(1) {
            if done >= 2 && begin.elapsed().as_secs_f64() > options.seconds {
                break;
            }
            let input = prepare();
            let start = Instant::now();
            step(&unprofiled, input)?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        let cpu = cpu.zip(cpu_seconds()).map(|(before, after)| (after - before) / seconds.len() as f64);
        seconds.sort_by(f64::total_cmp);
        let median = (seconds[(seconds.len() - 1) / 2] + seconds[seconds.len() / 2]) / 2.0;
        let batch = config.train.batch_size;
        let cost = cost(architecture);
        let flops = 2.0 * passes * cost.macs() as f64 * batch as f64;
        let (memory, device_memory) = (memory::peak_bytes(), open.device.memory_pool_usage());
        let profile = match options.profile {
            true => {
                let steps = seconds.len();
                let edge = Edge { profiled: Some(&open.device) };
                // Kernels that are not joined across edges are other ones, which a GPU has to compile first.
                let mut profiled = || {
                    let input = prepare();
                    let running = start(Kind::Transfers);
                    step(&edge, input)?;
                    Ok(running.finish())
                };
                profiled()?;
                let profiles: Vec<Profile> = (0..steps).map(|_| profiled()).collect::<Result<_>>()?;
                Some(StepProfile::new(&profiles.into_iter().sum(), steps, batch, passes, &cost, mean(&seconds)))
            }
            false => None,
        };
        let peak = self.peak()?;
        Ok(Report {
            device: open.label.clone(),
            ops: config.run.ops,
            precision,
            batch,
            image: architecture.image,
            parameters: cost.parameters(),
            images_per_second: batch as f64 / median,
            seconds_per_step: median,
            fastest_step: seconds[0],
            cpu_seconds_per_step: cpu,
            flops_per_step: flops,
            flops_per_second: flops / median,
            mfu: peak.as_ref().map(|peak| flops / median / peak.flops_per_second),
            peak,
            peak_memory_bytes: memory,
            device_memory_bytes: device_memory.map(|usage| usage.bytes_reserved),
            profile,
        })
    }

    /// The device's peak; measured only for a profile, since that takes a second.
    fn peak(&self) -> Result<Option<Peak>> {
        let Self { open, options, precision, .. } = *self;
        if !options.profile && peak::published(&open.label, Arithmetic::F32).is_none() {
            return Ok(None);
        }
        let arithmetic = match precision {
            Precision::F32 => peak::arithmetic_of_f32(&open.device)?,
            Precision::Bf16 => Arithmetic::Bf16,
        };
        peak::of(open, arithmetic).map(Some)
    }
}

fn mean(seconds: &[f64]) -> f64 {
    seconds.iter().sum::<f64>() / seconds.len() as f64
}

/// Processor time of this process so far.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the process is in brackets and may hold anything; user and system time are the 12th and 13th field after it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    // Linux counts in hundredths of a second for every program, whatever the kernel's own clock.
    Some((ticks()? + ticks()?) / 100.0)
}
