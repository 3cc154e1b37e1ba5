//! From the configuration's `[data]`, `[augment]` and `[eval]` to loaders.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use manyheads_data::augment::{ColorJitter, Fill, RandomErasing};
use manyheads_data::source::embedded::FashionMnist;
use manyheads_data::source::{Form, OpenOptions, open};
use manyheads_data::{
    CropMode, EvalTransform, Interpolation, Loader, LoaderConfig, OnError, RandomResizedCrop, Source, TrainCrop, TrainTransform,
    Transform, check_same_classes,
};
use manyheads_model::Architecture;
use sha2::{Digest, Sha256};

use crate::checkpoint::{DataFingerprint, hex};
use crate::config::{self, AugmentConfig, BadImage, Config, Crop, DataConfig, DataSource, ErasingFill};
use crate::engine::upload;
use crate::error::{Error, Result};

/// The two halves of a dataset, with the same classes.
pub struct Datasets {
    /// Images to train on.
    pub train: Arc<dyn Source>,
    /// Held-out images.
    pub val: Arc<dyn Source>,
}

impl Datasets {
    /// Opens both halves and compares their classes.
    ///
    /// # Errors
    /// Where one cannot be opened, or the classes differ.
    pub fn open(config: &Config) -> Result<Self> {
        let train = open_train(config)?;
        let val = open_val(config)?;
        check_same_classes(&*train, &*val)?;
        Ok(Self { train, val })
    }

    /// What identifies the dataset.
    pub fn fingerprint(&self) -> DataFingerprint {
        DataFingerprint {
            train_images: self.train.len() as u64,
            val_images: self.val.len() as u64,
            classes: self.train.classes().to_vec(),
            train_files: files_hash(&*self.train),
            val_files: files_hash(&*self.val),
        }
    }

    /// What the sources want people to know, each said once.
    pub fn notices(&self) -> Vec<String> {
        let mut notices: Vec<String> = Vec::new();
        for notice in self.train.notices().iter().chain(self.val.notices()) {
            if !notices.contains(notice) {
                notices.push(notice.clone());
            }
        }
        notices
    }
}

/// Hash of labels and file names in their order. The folders above are left out, so that a dataset may be moved.
pub fn files_hash(source: &dyn Source) -> String {
    let mut hash = Sha256::new();
    for index in 0..source.len() {
        let name = source.name(index);
        hash.update((source.label(index) as u64).to_le_bytes());
        hash.update(name.rsplit('/').next().unwrap_or(&name));
        hash.update([0]);
    }
    hex(&hash.finalize())
}

/// Opens the training images.
///
/// # Errors
/// Where they cannot be opened.
pub fn open_train(config: &Config) -> Result<Arc<dyn Source>> {
    let data = &config.data;
    match data.source {
        DataSource::Embedded => Ok(Arc::new(FashionMnist::train()?)),
        form => half("data.train", form, data.train.as_deref(), data.train_labels.as_deref(), data, data.train_split.as_deref()),
    }
}

/// Opens the held-out images, as evaluation needs no others.
///
/// # Errors
/// Where they cannot be opened.
pub fn open_val(config: &Config) -> Result<Arc<dyn Source>> {
    let data = &config.data;
    match data.source {
        DataSource::Embedded => Ok(Arc::new(FashionMnist::val()?)),
        form => half("data.val", form, data.val.as_deref(), data.val_labels.as_deref(), data, data.val_split.as_deref()),
    }
}

/// Opens images at a path that the command line names. `key` is what errors call it.
///
/// # Errors
/// Where they cannot be opened.
pub fn open_images(key: &str, path: &Path, labels: Option<&Path>) -> Result<Arc<dyn Source>> {
    half(key, DataSource::Auto, Some(path), labels, &DataConfig::default(), None)
}

/// Opens images in any form, with all that their form may need.
///
/// # Errors
/// Where they cannot be opened.
pub fn open_any(path: &Path, labels: Option<&Path>, class_names: Option<&Path>, split: Option<&str>) -> Result<Arc<dyn Source>> {
    let to_path = |path: Option<&Path>| path.map(Path::to_path_buf);
    let options = OpenOptions {
        form: Form::Auto,
        labels: to_path(labels),
        class_names: to_path(class_names),
        split: split.map(str::to_owned),
    };
    Ok(Arc::from(open(path, &options)?))
}

/// Some images of a source, spread evenly over it.
pub struct Spread {
    source: Arc<dyn Source>,
    count: usize,
}

impl Spread {
    /// `count` images of `source`, which has at least as many.
    pub fn new(source: Arc<dyn Source>, count: usize) -> Self {
        Self { source, count }
    }

    fn place(&self, index: usize) -> usize {
        index * self.source.len() / self.count
    }
}

impl Source for Spread {
    fn len(&self) -> usize {
        self.count
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
    fn read(&self, index: usize) -> std::result::Result<Cow<'_, [u8]>, manyheads_data::DataError> {
        self.source.read(self.place(index))
    }
    fn notices(&self) -> &[String] {
        self.source.notices()
    }
}

fn half(
    key: &str,
    form: DataSource,
    path: Option<&Path>,
    labels: Option<&Path>,
    data: &DataConfig,
    split: Option<&str>,
) -> Result<Arc<dyn Source>> {
    let options = OpenOptions {
        form: match form {
            DataSource::Auto | DataSource::Embedded => Form::Auto,
            DataSource::Folder => Form::Folder,
            DataSource::Tar => Form::Tar,
            DataSource::Webdataset => Form::WebDataset,
            DataSource::Parquet => Form::Parquet,
            DataSource::Packed => Form::Packed,
        },
        labels: labels.map(Path::to_path_buf),
        class_names: data.class_names.clone(),
        split: split.map(str::to_owned),
    };
    let path = path.ok_or_else(|| Error::Usage(format!("{key}: missing: where are the images?")))?;
    Ok(Arc::from(open(path, &options).map_err(|e| Error::Failed(format!("{key}: {e}")))?))
}

fn interpolation(config: config::Interpolation) -> Interpolation {
    match config {
        config::Interpolation::Bilinear => Interpolation::Bilinear,
        config::Interpolation::Bicubic => Interpolation::Bicubic,
    }
}

fn loader_config(config: &Config, batch_size: usize, shuffle: bool, drop_last: bool) -> LoaderConfig {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    LoaderConfig {
        seed: config.run.seed,
        batch_size,
        shuffle,
        drop_last,
        workers: config.data.workers.unwrap_or_else(cores),
        prefetch: config.data.prefetch,
        on_error: match config.data.bad_image {
            BadImage::Fail => OnError::Fail,
            BadImage::Skip => OnError::Skip,
        },
        ..LoaderConfig::default()
    }
}

/// How an image is augmented and prepared for training.
pub fn train_transform(config: &Config, architecture: &Architecture) -> Transform {
    let augment = &config.augment;
    let jitter = ColorJitter { hue: augment.hue_jitter, ..ColorJitter::uniform(augment.color_jitter) };
    Transform::Train(TrainTransform {
        size: architecture.image,
        channels: architecture.channels,
        crop: match augment.crop {
            Crop::RandomResized => TrainCrop::RandomResized(RandomResizedCrop {
                scale: augment.scale.unwrap_or(AugmentConfig::SCALE),
                ratio: augment.ratio.unwrap_or(AugmentConfig::RATIO),
            }),
            Crop::Simple => TrainCrop::Simple,
            Crop::None => TrainCrop::Squash,
        },
        interpolation: interpolation(augment.interpolation),
        horizontal_flip: augment.horizontal_flip,
        vertical_flip: augment.vertical_flip,
        auto_augment: augment.auto.as_deref().and_then(|policy| policy.parse().ok()),
        color_jitter: (augment.color_jitter > 0.0 || augment.hue_jitter > 0.0).then_some(jitter),
        grayscale: augment.grayscale,
        solarize: augment.solarize,
        gaussian_blur: augment.blur,
        random_erasing: (augment.erasing > 0.0).then(|| RandomErasing {
            probability: augment.erasing,
            fill: match augment.erasing_fill {
                ErasingFill::Const => Fill::Const,
                ErasingFill::Rand => Fill::Rand,
                ErasingFill::Pixel => Fill::Pixel,
            },
            count: augment.erasing_count,
            ..RandomErasing::default()
        }),
        mean: config.data.mean().to_vec(),
        std: config.data.std().to_vec(),
    })
}

/// Augmented, shuffled batches; bytes rather than floats where the device is not `eager`, the CPU itself.
///
/// # Errors
/// Where the settings do not fit the images.
pub fn train_loader(config: &Config, architecture: &Architecture, source: Arc<dyn Source>, eager: bool) -> Result<Loader> {
    let transform = train_transform(config, architecture);
    let settings = LoaderConfig {
        repeats: config.augment.repeats,
        format: upload::format(eager),
        ..loader_config(config, config.train.batch_size, true, config.train.drop_last)
    };
    Ok(Loader::new(source, transform, settings)?)
}

/// How an image is prepared for evaluation: the one transform for training-time and final evaluation, and for single images.
pub fn eval_transform(config: &Config, architecture: &Architecture) -> Transform {
    Transform::Eval(EvalTransform {
        size: architecture.image,
        channels: architecture.channels,
        crop_pct: config.eval.crop_pct(),
        crop_mode: match config.eval.crop_mode() {
            config::CropMode::Center => CropMode::Center,
            config::CropMode::Squash => CropMode::Squash,
            config::CropMode::Border => CropMode::Border,
        },
        interpolation: interpolation(config.eval.interpolation()),
        mean: config.data.mean().to_vec(),
        std: config.data.std().to_vec(),
    })
}

/// Batches for evaluation: every image once, in order; bytes where the device is not `eager`.
///
/// # Errors
/// Where the settings do not fit the images.
pub fn eval_loader(config: &Config, architecture: &Architecture, source: Arc<dyn Source>, eager: bool) -> Result<Loader> {
    let transform = eval_transform(config, architecture);
    let settings = LoaderConfig { format: upload::format(eager), ..loader_config(config, config.eval.batch_size, false, false) };
    Ok(Loader::new(source, transform, settings)?)
}
