//! From the configuration's `[data]`, `[augment]` and `[eval]` to loaders.

use std::path::Path;
use std::sync::Arc;

use manyheads_data::source::{embedded::FashionMnist, folder::Folder, tar::Tar};
use manyheads_data::{
    EvalTransform, Interpolation, Loader, LoaderConfig, OnError, RandomResizedCrop, Source, TrainTransform, Transform,
    check_same_classes,
};
use manyheads_model::Architecture;
use sha2::{Digest, Sha256};

use crate::checkpoint::{DataFingerprint, hex};
use crate::config::{self, AugmentConfig, BadImage, Config, Crop, DataSource};
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
        let train = open_half(config, "data.train", config.data.train.as_deref(), FashionMnist::train)?;
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
fn files_hash(source: &dyn Source) -> String {
    let mut hash = Sha256::new();
    for index in 0..source.len() {
        let name = source.name(index);
        hash.update((source.label(index) as u64).to_le_bytes());
        hash.update(name.rsplit('/').next().unwrap_or(&name));
        hash.update([0]);
    }
    hex(&hash.finalize())
}

/// Opens the held-out images alone, as evaluation needs no others.
///
/// # Errors
/// Where they cannot be opened.
pub fn open_val(config: &Config) -> Result<Arc<dyn Source>> {
    open_half(config, "data.val", config.data.val.as_deref(), FashionMnist::val)
}

fn open_half(
    config: &Config,
    key: &str,
    path: Option<&Path>,
    embedded: fn() -> std::result::Result<FashionMnist, manyheads_data::DataError>,
) -> Result<Arc<dyn Source>> {
    let path = path.unwrap_or(Path::new(""));
    let named = |e: manyheads_data::DataError| Error::Failed(format!("{key}: {e}"));
    Ok(match config.data.source {
        DataSource::Embedded => Arc::new(embedded()?),
        DataSource::Folder if path.is_file() => {
            let path = path.display();
            return Err(Error::Failed(format!("{key}: {path} is a file; for a tar file set data.source = \"tar\"")));
        }
        DataSource::Tar if path.is_dir() => {
            let path = path.display();
            return Err(Error::Failed(format!("{key}: {path} is a folder; for it set data.source = \"folder\"")));
        }
        DataSource::Folder => Arc::new(Folder::open(path).map_err(named)?),
        DataSource::Tar => Arc::new(Tar::open(path).map_err(named)?),
    })
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
    }
}

/// Augmented, shuffled batches.
///
/// # Errors
/// Where the settings do not fit the images.
pub fn train_loader(config: &Config, architecture: &Architecture, source: Arc<dyn Source>) -> Result<Loader> {
    let augment = &config.augment;
    let transform = Transform::Train(TrainTransform {
        size: architecture.image,
        channels: architecture.channels,
        random_resized_crop: (augment.crop == Crop::RandomResized).then(|| RandomResizedCrop {
            scale: augment.scale.unwrap_or(AugmentConfig::SCALE),
            ratio: augment.ratio.unwrap_or(AugmentConfig::RATIO),
        }),
        horizontal_flip: augment.horizontal_flip,
        interpolation: interpolation(augment.interpolation),
        mean: config.data.mean.clone(),
        std: config.data.std.clone(),
    });
    let settings = loader_config(config, config.train.batch_size, true, config.train.drop_last);
    Ok(Loader::new(source, transform, settings)?)
}

/// Batches for evaluation: every image once, in order. The one transform for training-time and final evaluation.
///
/// # Errors
/// Where the settings do not fit the images.
pub fn eval_loader(config: &Config, architecture: &Architecture, source: Arc<dyn Source>) -> Result<Loader> {
    let transform = Transform::Eval(EvalTransform {
        size: architecture.image,
        channels: architecture.channels,
        crop_pct: config.eval.crop_pct,
        interpolation: interpolation(config.eval.interpolation),
        mean: config.data.mean.clone(),
        std: config.data.std.clone(),
    });
    Ok(Loader::new(source, transform, loader_config(config, config.eval.batch_size, false, false))?)
}
