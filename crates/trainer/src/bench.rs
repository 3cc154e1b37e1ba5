//! What `manyheads bench train` and `manyheads bench infer` measure: steps of a network on synthetic images, without loader and disk.

use std::path::Path;
use std::time::Instant;

use burn::tensor::{FloatDType, Tensor, TensorData};
use manyheads_data::random::{Purpose, stream};
use manyheads_data::{Batch, Images};
use manyheads_model::cost;
use serde::Serialize;

use crate::config::{self, Loaded};
use crate::engine::device::{self, DeviceName};
use crate::engine::step::{Learner, StepReport, Window};
use crate::error::{Error, Result};
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
}

/// What a measurement says.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Kind and model of the device.
    pub device: String,
    /// `fused` or `plain`: how the network's operations are computed.
    pub ops: manyheads_model::Ops,
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
    /// Most memory that the process ever held, as the operating system counts it; none where it does not tell.
    pub peak_memory_bytes: Option<u64>,
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
    let autodiff = open.device.clone().autodiff();
    let model = architecture.init(&mut stream(config.run.seed, Purpose::Init, 0, 0), &autodiff);
    let mut learner = Learner::new(model, architecture, config, &open.device)?;
    let batch = synthetic(loaded);
    let schedule = Schedule::new(config, 1000);
    let mut count = 0;
    measure(loaded, open.label, options, 3.0, &mut || {
        let mut window = Window::new(batch.items.len());
        learner.add(&mut window, batch.clone())?;
        let (gradients, report) =
            learner.close(window).ok_or_else(|| Error::Failed("a step of synthetic images has no gradient".into()))?;
        learner.update(gradients, schedule.learning_rate(count), count + 1);
        count += 1;
        // On a GPU the step has ended when its last weights are there.
        StepReport::read_all(&mut [(count, report)])?;
        open.device.sync().map_err(|e| Error::Failed(format!("the device failed: {e}")))
    })
}

/// Measures forward passes without autodiff.
///
/// # Errors
/// Where the device cannot be opened, or the work fails.
pub fn infer(loaded: &Loaded, options: &Options) -> Result<Report> {
    let Loaded { config, architecture, .. } = loaded;
    let open = device::open(config, options.device)?;
    let model = architecture.init(&mut stream(config.run.seed, Purpose::Init, 0, 0), &open.device);
    let batch = synthetic(loaded);
    let values = batch.images.into_f32().unwrap_or_default();
    measure(loaded, open.label, options, 1.0, &mut || {
        let images = Tensor::<4>::from_data(TensorData::new(values.clone(), batch.shape), &open.device);
        let logits = model.forward(images.cast(FloatDType::F32), None);
        logits.try_into_data().map(drop).map_err(|e| Error::Failed(format!("the device failed: {e}")))
    })
}

/// A batch of normal noise, the same in every run.
fn synthetic(loaded: &Loaded) -> Batch {
    let Loaded { config, architecture, .. } = loaded;
    let [height, width] = architecture.image;
    let count = config.train.batch_size;
    let shape = [count, architecture.channels, height, width];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ config.run.seed;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let values = (0..shape.iter().product::<usize>()).map(|_| (uniform() + uniform() + uniform() - 1.5) * 2.0).collect();
    Batch {
        images: Images::F32(values),
        shape,
        labels: (0..count).map(|image| (image % architecture.classes) as u32).collect(),
        items: (0..count).collect(),
        copies: vec![0; count],
        counted: count,
        skipped: Vec::new(),
        epoch: 0,
        batch: 0,
    }
}

fn measure(
    loaded: &Loaded,
    device: String,
    options: &Options,
    passes: f64,
    step: &mut dyn FnMut() -> Result<()>,
) -> Result<Report> {
    let Loaded { config, architecture, .. } = loaded;
    for _ in 0..options.warmup {
        step()?;
    }
    let mut seconds = Vec::with_capacity(options.steps);
    let cpu = cpu_seconds();
    for _ in 0..options.steps.max(1) {
        let start = Instant::now();
        step()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    let cpu = cpu.zip(cpu_seconds()).map(|(before, after)| (after - before) / seconds.len() as f64);
    seconds.sort_by(f64::total_cmp);
    let median = (seconds[(seconds.len() - 1) / 2] + seconds[seconds.len() / 2]) / 2.0;
    let batch = config.train.batch_size;
    let cost = cost(architecture);
    let flops = 2.0 * passes * cost.macs() as f64 * batch as f64;
    Ok(Report {
        device,
        ops: config.run.ops,
        batch,
        image: architecture.image,
        parameters: cost.parameters(),
        images_per_second: batch as f64 / median,
        seconds_per_step: median,
        fastest_step: seconds[0],
        cpu_seconds_per_step: cpu,
        flops_per_step: flops,
        flops_per_second: flops / median,
        peak_memory_bytes: peak_memory_bytes(),
    })
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

/// Most memory this process ever held in main memory.
pub(crate) fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
