//! How fast images become batches on this machine, and where the time goes.

use std::borrow::Cow;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::decode::decode_rgb;
use crate::error::DataError;
use crate::loader::{Loader, LoaderConfig, PixelFormat};
use crate::ordered::threads;
use crate::random::{Purpose, stream};
use crate::sampler::permutation;
use crate::source::Source;
use crate::transform::{Output, Scratch, Stages, Transform};

/// What is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchOptions {
    /// Numbers of threads to measure with; 0 stands for all cores.
    pub threads: Vec<usize>,
    /// Wall time of each measurement.
    pub time: Duration,
    /// Images of a batch of the whole loader.
    pub batch_size: usize,
    /// Floats or bytes.
    pub format: PixelFormat,
}

impl Default for BenchOptions {
    fn default() -> Self {
        Self { threads: vec![1, 0], time: Duration::from_secs(3), batch_size: 64, format: PixelFormat::F32 }
    }
}

/// A stage of the way of an image, each measured on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Encoded bytes from the source.
    Read,
    /// Reading, and decoding the whole image.
    Decode,
    /// Reading, and the whole transform: decoding what it needs, cropping, resizing, augmenting, normalising.
    Sample,
    /// The loader with its queue and batches.
    Loader,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// The stage, with all that comes before it.
    pub stage: Stage,
    /// Number of threads.
    pub threads: usize,
    /// Images handled.
    pub images: usize,
    /// Images a second of wall time.
    pub images_per_second: f64,
    /// Megabytes (10^6) of encoded images a second of wall time.
    pub megabytes_per_second: f64,
    /// Seconds of processor time an image, over all threads; none where the system does not tell.
    pub cpu_seconds_per_image: Option<f64>,
    /// For `Sample`: where a thread's time goes.
    pub microseconds: Option<SampleTimes>,
    /// Wall time of this stage as a share of the whole loader's with as many threads. `Decode` is of whole images, and may be
    /// more than `Sample`, which decodes only what it needs.
    pub share: f64,
}

/// Microseconds of a thread for an image, by part of the transform.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SampleTimes {
    /// Encoded bytes to pixels.
    pub decode: f64,
    /// Both passes of the resize.
    pub resize: f64,
    /// Flips and operations.
    pub augment: f64,
    /// Planes, normalisation and erasing.
    pub finish: f64,
}

/// All measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchReport {
    /// Images in the source.
    pub images: usize,
    /// Mean bytes of an encoded image, of those handled.
    pub bytes_per_image: f64,
    /// In order of threads, then of stages.
    pub measurements: Vec<Measurement>,
}

/// Measures each stage with each number of threads, in the order of a shuffled epoch.
///
/// Files come from the page cache once they have been read: run twice for figures without the disk.
///
/// # Errors
/// [`DataError::Config`] for settings that make no sense; the first image that cannot be read or decoded.
pub fn bench(source: &Arc<dyn Source>, transform: &Transform, options: &BenchOptions) -> Result<BenchReport, DataError> {
    if options.threads.is_empty() {
        return Err(DataError::config("threads", "no number of threads to measure with"));
    }
    if options.time.is_zero() {
        return Err(DataError::config("time", "0 seconds, but measuring takes some"));
    }
    let order = permutation(source.len(), 0, 0);
    let mut measurements = Vec::new();
    let (mut bytes, mut images) = (0, 0);
    let counts = options.threads.iter().map(|&asked| threads(asked)).collect::<Result<Vec<usize>, _>>()?;
    for count in counts {
        let first = measurements.len();
        for stage in [Stage::Read, Stage::Decode, Stage::Sample] {
            let taken = stage_run(source, transform, options, &order, stage, count)?;
            if stage == Stage::Read {
                bytes += taken.bytes;
                images += taken.images;
            }
            measurements.push(taken.measurement(stage, count, taken.bytes as f64));
        }
        let mean = bytes as f64 / images.max(1) as f64;
        let taken = loader_run(source, transform, options, count)?;
        measurements.push(taken.measurement(Stage::Loader, count, mean * taken.images as f64));
        let whole = measurements.last().map_or(0.0, |m| m.images_per_second);
        for measurement in &mut measurements[first..] {
            measurement.share = whole / measurement.images_per_second;
        }
    }
    Ok(BenchReport { images: source.len(), bytes_per_image: bytes as f64 / images.max(1) as f64, measurements })
}

/// What one thread did: images, their bytes, and where its time went.
type Run = Result<(usize, u64, Stages), DataError>;

struct Taken {
    images: usize,
    bytes: u64,
    wall: Duration,
    cpu: Option<f64>,
    stages: Option<Stages>,
}

impl Taken {
    fn measurement(&self, stage: Stage, threads: usize, bytes: f64) -> Measurement {
        let seconds = self.wall.as_secs_f64().max(1e-9);
        Measurement {
            stage,
            threads,
            images: self.images,
            images_per_second: self.images as f64 / seconds,
            megabytes_per_second: bytes / 1e6 / seconds,
            cpu_seconds_per_image: self.cpu.map(|cpu| cpu / self.images.max(1) as f64),
            microseconds: self.stages.map(|Stages { samples, decode, resize, augment, finish }| {
                let each = |time: Duration| time.as_secs_f64() * 1e6 / samples.max(1) as f64;
                SampleTimes { decode: each(decode), resize: each(resize), augment: each(augment), finish: each(finish) }
            }),
            share: 1.0,
        }
    }
}

fn stage_run(
    source: &Arc<dyn Source>,
    transform: &Transform,
    options: &BenchOptions,
    order: &[u32],
    stage: Stage,
    count: usize,
) -> Result<Taken, DataError> {
    let next = AtomicUsize::new(0);
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let run = || -> Run {
        let (mut buffer, mut scratch) = (Vec::new(), Scratch::default());
        let len = transform.sample_shape().iter().product();
        let (mut floats, mut small, mut patches) = (Vec::new(), Vec::new(), Vec::new());
        match options.format {
            PixelFormat::F32 => floats.resize(len, 0.0),
            PixelFormat::U8 => small.resize(len, 0),
        }
        let (mut images, mut bytes) = (0, 0);
        while start.elapsed() < options.time {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let (epoch, item) = (place / order.len(), order[place % order.len()] as usize);
            let encoded = source.read_into(item, &mut buffer)?;
            images += 1;
            bytes += encoded.len() as u64;
            match stage {
                Stage::Read => {
                    std::hint::black_box(encoded);
                }
                Stage::Decode => {
                    std::hint::black_box(decode_rgb(encoded, &source.name(item))?);
                }
                Stage::Sample | Stage::Loader => {
                    let mut rng = stream(0, Purpose::Augment, epoch as u64, item as u64);
                    let out = match options.format {
                        PixelFormat::F32 => Output::F32(&mut floats),
                        PixelFormat::U8 => Output::U8 { values: &mut small, patches: &mut patches },
                    };
                    transform.load(encoded, &mut rng, &mut scratch, out).map_err(|error| match error {
                        DataError::BadImage { reason, .. } => DataError::BadImage { name: source.name(item), reason },
                        other => other,
                    })?;
                }
            }
        }
        Ok((images, bytes, scratch.take_stages()))
    };
    let results = std::thread::scope(|scope| -> Result<Vec<Run>, DataError> {
        let mut workers = Vec::with_capacity(count);
        for index in 0..count {
            let started = std::thread::Builder::new().spawn_scoped(scope, run);
            workers.push(started.map_err(|source| DataError::Thread { index, workers: count, source })?);
        }
        let join = |worker: std::thread::ScopedJoinHandle<'_, _>| worker.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
        Ok(workers.into_iter().map(join).collect())
    })?;
    let mut taken = Taken { images: 0, bytes: 0, wall: start.elapsed(), cpu: elapsed_cpu(cpu), stages: None };
    let mut all = Stages::default();
    for result in results {
        let (images, bytes, stages) = result?;
        taken.images += images;
        taken.bytes += bytes;
        all.samples += stages.samples;
        all.decode += stages.decode;
        all.resize += stages.resize;
        all.augment += stages.augment;
        all.finish += stages.finish;
    }
    taken.stages = (stage == Stage::Sample).then_some(all);
    Ok(taken)
}

/// The loader at its steady pace: from one batch to another, with as much begun and not handed out at both ends.
fn loader_run(source: &Arc<dyn Source>, transform: &Transform, options: &BenchOptions, count: usize) -> Result<Taken, DataError> {
    const PREFETCH: usize = 3;
    let batch_size = options.batch_size.min(source.len());
    let config = LoaderConfig {
        batch_size,
        shuffle: true,
        drop_last: true,
        workers: count,
        prefetch: PREFETCH,
        format: options.format,
        ..LoaderConfig::default()
    };
    // One long epoch, as those of real datasets: the pause between epochs of a small folder would be measured otherwise.
    let times = (ENOUGH / source.len()).max(1);
    let loader = Loader::new(Arc::new(Repeated { source: Arc::clone(source), times }), transform.clone(), config)?;
    let mut started = None;
    let mut images = 0;
    for (number, batch) in loader.epoch(0, 0).enumerate() {
        let batch = batch?;
        if let Some((start, cpu)) = started {
            images += batch.items.len();
            let wall = Instant::elapsed(&start);
            if wall >= options.time {
                return Ok(Taken { images, bytes: 0, wall, cpu: elapsed_cpu(cpu), stages: None });
            }
        }
        loader.recycle(batch.images);
        if number + 1 == PREFETCH {
            started = Some((Instant::now(), cpu_seconds()));
        }
    }
    // A dataset so fast that one epoch is not enough does not exist, but a fast enough clock might.
    let (start, cpu) = started.unwrap_or((Instant::now(), None));
    Ok(Taken { images, bytes: 0, wall: start.elapsed(), cpu: elapsed_cpu(cpu), stages: None })
}

/// Images of the one long epoch of a measurement.
const ENOUGH: usize = 4_000_000;

/// A source with every item several times.
struct Repeated {
    source: Arc<dyn Source>,
    times: usize,
}

impl Repeated {
    fn place(&self, index: usize) -> usize {
        index % self.source.len()
    }
}

impl Source for Repeated {
    fn len(&self) -> usize {
        self.source.len() * self.times
    }
    fn classes(&self) -> &[String] {
        self.source.classes()
    }
    fn label(&self, index: usize) -> usize {
        self.source.label(self.place(index))
    }
    fn name(&self, index: usize) -> String {
        self.source.name(self.place(index))
    }
    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, DataError> {
        self.source.read(self.place(index))
    }
    fn read_into<'a>(&'a self, index: usize, buffer: &'a mut Vec<u8>) -> Result<&'a [u8], DataError> {
        self.source.read_into(self.place(index), buffer)
    }
    fn size(&self, index: usize) -> Option<u64> {
        self.source.size(self.place(index))
    }
    fn files(&self) -> Vec<PathBuf> {
        self.source.files()
    }
    fn notices(&self) -> &[String] {
        self.source.notices()
    }
}

fn elapsed_cpu(before: Option<f64>) -> Option<f64> {
    Some(cpu_seconds()? - before?)
}

/// Processor time of this process, from Linux's `/proc`, in hundredths of a second.
fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program may hold spaces; it ends with the last parenthesis. User and system time are fields 14 and 15.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks: f64 = fields.next()?.parse::<f64>().ok()? + fields.next()?.parse::<f64>().ok()?;
    Some(ticks / 100.0)
}
