//! What `manyheads data` and `manyheads bench data` do: check a dataset, pack it, look at it, measure it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use manyheads_data::bench::{BenchOptions, bench};
use manyheads_data::{DataError, Loader, LoaderConfig, Source, Transform};

use crate::config::{self, Loaded};
use crate::dataset::{self, eval_transform, train_transform};
use crate::engine::upload::normalised_on_the_host;
use crate::error::{Error, Result};
use crate::log::progress::Console;
use crate::sheet;
use crate::signals::Stop;

pub use manyheads_data::bench::BenchReport;
pub use manyheads_data::{PackOptions, PackReport, PixelFormat, VerifyOptions, VerifyReport};

/// A dataset as the command line names it.
#[derive(Debug, Clone, Copy)]
pub struct Images<'a> {
    /// A folder, a file, or a pattern of shards.
    pub path: &'a Path,
    /// Labels of images that lie without class folders.
    pub labels: Option<&'a Path>,
    /// Class names of WebDataset shards with numbers.
    pub class_names: Option<&'a Path>,
    /// Split of a folder of shards.
    pub split: Option<&'a str>,
}

impl Images<'_> {
    fn open(&self, console: &Console) -> Result<Arc<dyn Source>> {
        let source = dataset::open_any(self.path, self.labels, self.class_names, self.split)?;
        for notice in source.notices() {
            console.say(format!("note: {notice}"));
        }
        Ok(source)
    }
}

/// Decodes every image and reports what is broken and what is odd.
///
/// # Errors
/// Where the dataset cannot be opened, or a signal came.
pub fn verify(images: &Images<'_>, options: &VerifyOptions) -> Result<VerifyReport> {
    let mut console = Console::default();
    let source = images.open(&console)?;
    let stop = Stop::on_signals()?;
    console.start(source.len() as u64, 0);
    let report = manyheads_data::verify(&*source, options, stop.flag(), |progress| {
        console.count(progress.images as u64, format!("checking | {} broken", progress.broken));
    });
    console.finish();
    interruptible(report, &stop)
}

/// Writes a dataset into one file, and reads it back.
///
/// # Errors
/// Where an image cannot be read, the file cannot be written or is not what was written, or a signal came.
pub fn pack(images: &Images<'_>, out: &Path, options: &PackOptions) -> Result<PackReport> {
    let mut console = Console::default();
    let source = images.open(&console)?;
    let stop = Stop::on_signals()?;
    console.start(source.len() as u64, 0);
    let report = manyheads_data::pack(&*source, out, options, stop.flag(), |progress| {
        console.count(progress.items as u64, format!("packing | {:.1} MB", progress.bytes as f64 / 1e6));
    });
    console.finish();
    let report = interruptible(report, &stop)?;
    let packed = manyheads_data::source::packed::Packed::open(out)?;
    console.start(report.items as u64, 0);
    let read = packed.verify(options.threads, stop.flag(), |items| console.count(items as u64, "reading back"));
    console.finish();
    interruptible(read, &stop)?;
    Ok(report)
}

/// Writes every image of a packed file below a folder; returns how many.
///
/// # Errors
/// Where the file is damaged or something is in the way.
pub fn unpack(file: &Path, out: &Path) -> Result<usize> {
    Ok(manyheads_data::unpack(file, out)?)
}

/// A stopped piece of work is not a failed one: what it says tells how to go on.
fn interruptible<T>(result: std::result::Result<T, DataError>, stop: &Stop) -> Result<T> {
    result.map_err(|error| if stop.asked() { Error::Interrupted(error.to_string()) } else { wrong_setting(error) })
}

/// A setting that came from the command line is the command line's mistake.
fn wrong_setting(error: DataError) -> Error {
    match error {
        DataError::Config { .. } => Error::Usage(error.to_string()),
        other => other.into(),
    }
}

/// Which settings images are prepared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// As for training.
    Train,
    /// As for evaluation.
    Eval,
}

/// The configuration of a preview or measurement: a file's, or the defaults, with settings that win over both.
///
/// # Errors
/// As [`config::load`].
pub fn configuration(config: Option<&Path>, sets: &[String]) -> Result<Loaded> {
    match config {
        Some(path) => config::load_without_images(path, sets),
        None => config::load_text_without_images("", "the defaults", sets),
    }
}

/// Images of a dataset under a configuration: those at `images`, or the configuration's own.
fn source(loaded: &Loaded, images: Option<&Images<'_>>, half: Half, console: &Console) -> Result<Arc<dyn Source>> {
    match (images, half) {
        (Some(images), _) => images.open(console),
        (None, Half::Train) => dataset::open_train(&loaded.config),
        (None, Half::Eval) => dataset::open_val(&loaded.config),
    }
}

fn transform(loaded: &Loaded, half: Half) -> Transform {
    match half {
        Half::Train => train_transform(&loaded.config, &loaded.architecture),
        Half::Eval => eval_transform(&loaded.config, &loaded.architecture),
    }
}

/// Measures how fast images become batches.
///
/// # Errors
/// Where the dataset cannot be opened, an image cannot be read, or the settings make no sense.
pub fn measure(
    loaded: &Loaded,
    images: Option<&Images<'_>>,
    half: Half,
    threads: &[usize],
    seconds: f64,
    format: PixelFormat,
) -> Result<BenchReport> {
    let console = Console::default();
    let source = source(loaded, images, half, &console)?;
    if !(seconds > 0.0 && seconds <= 3600.0) {
        return Err(Error::Usage(format!("--seconds {seconds}: it is above 0 and at most 3600")));
    }
    let options = BenchOptions {
        threads: threads.to_vec(),
        time: Duration::from_secs_f64(seconds),
        batch_size: loaded.config.train.batch_size,
        format,
    };
    bench(&source, &transform(loaded, half), &options).map_err(wrong_setting)
}

/// A sheet of images as the network sees them, to be written.
#[derive(Debug, Clone, Copy)]
pub struct Sheet<'a> {
    /// The picture to write.
    pub out: &'a Path,
    /// Images, one below the other.
    pub rows: usize,
    /// Augmented samples of each image, side by side, after its evaluation crop.
    pub columns: usize,
    /// The first epoch shown; each column is one more.
    pub epoch: u64,
}

/// Writes a contact sheet: in each row the evaluation crop of an image, then its training samples of one epoch after another.
/// Returns the sheet's file.
///
/// # Errors
/// Where images cannot be read, or the picture cannot be written.
pub fn preview(loaded: &Loaded, images: Option<&Images<'_>>, sheet: &Sheet<'_>) -> Result<PathBuf> {
    let console = Console::default();
    let source = source(loaded, images, Half::Train, &console)?;
    let [height, width] = loaded.architecture.image;
    let (rows, columns) = (sheet.rows.min(source.len()), sheet.columns + 1);
    if rows == 0 || rows.saturating_mul(columns).saturating_mul(height * width) > 1 << 28 {
        return Err(Error::Usage(format!(
            "a sheet of {rows} × {columns} images of {height} × {width} pixels is too large or empty"
        )));
    }
    let picked: Arc<dyn Source> = Arc::new(dataset::Spread::new(source, rows));
    let mut picture = sheet::Sheet::new([rows, columns], [height, width], 1);
    for column in 0..columns {
        let half = if column == 0 { Half::Eval } else { Half::Train };
        let settings = LoaderConfig { seed: loaded.config.run.seed, batch_size: rows, workers: 2, ..LoaderConfig::default() };
        let loader = Loader::new(Arc::clone(&picked), transform(loaded, half), settings)?;
        let epoch = sheet.epoch + column.saturating_sub(1) as u64;
        let batch = loader.epoch(epoch, 0).next().ok_or_else(|| Error::Failed("there are no images".into()))??;
        let (mean, std) = (loaded.config.data.mean(), loaded.config.data.std());
        let values = normalised_on_the_host(batch.images, batch.shape, [mean, std]);
        let channels = loaded.architecture.channels;
        for (row, sample) in values.chunks_exact(channels * height * width).enumerate() {
            picture.put([row, column], sample, mean, std);
        }
    }
    let [height, width] = picture.size();
    manyheads_data::write_png(sheet.out, picture.pixels(), width, height).map_err(|e| Error::io("write", sheet.out, &e))?;
    Ok(sheet.out.to_path_buf())
}
