//! The configuration of a run: one TOML file with a section per idea, DeiT's values as defaults.
//!
//! A file is read strictly ([`load`]): an unknown key, a value of the wrong type or a combination that cannot work is an error
//! that points at the line. The resolved configuration, with every default written out, is itself a valid configuration.

mod check;
mod layers;
mod load;
mod report;

use std::path::PathBuf;

use manyheads_model::ModelConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use load::{Loaded, load, load_text};

/// A training run. Every key has a default; sections and keys that do not exist are errors.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Another configuration file that this one builds on, relative to this file. Keys here win over keys there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extends: Option<String>,
    /// Name, seed, device and place of the run.
    pub run: RunConfig,
    /// The network.
    pub model: ModelConfig,
    /// Where the images are and how they are read.
    pub data: DataConfig,
    /// What happens to a training image between decoding and the network.
    pub augment: AugmentConfig,
    /// The optimizer and the learning rate at its peak.
    pub optimizer: OptimizerConfig,
    /// How the learning rate moves over the run.
    pub schedule: ScheduleConfig,
    /// Length of the run, batch size and loss.
    pub train: TrainConfig,
    /// How and when top-1 is measured.
    pub eval: EvalConfig,
    /// When the state of the run is saved and how much of it is kept.
    pub checkpoint: CheckpointConfig,
    /// What is written down on the way.
    pub log: LogConfig,
}

/// `[run]`: name, seed, device and place of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RunConfig {
    /// Name of the run. Default: the name of the configuration file without its extension.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Everything random in the run is a function of this number. Two runs with one seed are equal. Below 2^63.
    #[schemars(range(max = 9_223_372_036_854_775_807_u64))]
    pub seed: u64,
    /// `auto`, `cpu`, `wgpu`, `wgpu:N`, `cuda` or `cuda:N`. `auto` takes the first of CUDA, a hardware GPU through wgpu, the CPU.
    pub device: String,
}

impl Default for RunConfig {
    fn default() -> Self {
        Self { name: None, seed: 0, device: "auto".into() }
    }
}

/// Form in which a dataset lies on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DataSource {
    /// One folder per class with image files below it.
    Folder,
    /// An uncompressed tar file of such folders, read in place.
    Tar,
    /// The subset of Fashion-MNIST inside the program: ten classes of 28×28 grey images.
    Embedded,
}

/// What to do with an image that cannot be read or decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BadImage {
    /// Stop, naming the file.
    Fail,
    /// Leave it out of its batch, count it and list it in `metrics.jsonl`.
    Skip,
}

/// `[data]`: where the images are and how they are read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// What `train` and `val` are: `folder`, `tar`, or `embedded` for the images inside the program.
    pub source: DataSource,
    /// Training images: a folder or a tar file. Relative to the working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<PathBuf>,
    /// Held-out images: a folder or a tar file with the same classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val: Option<PathBuf>,
    /// Threads that decode and augment images; 0 does it on the training thread. Default: the number of CPU cores.
    /// The batches do not depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
    /// Batches prepared ahead of the training thread.
    #[schemars(range(min = 1))]
    pub prefetch: usize,
    /// `fail` or `skip`: what to do with an image that cannot be read.
    pub bad_image: BadImage,
    /// Mean of each channel on the scale 0 to 1, subtracted from the pixels. Default: ImageNet's.
    pub mean: Vec<f32>,
    /// Standard deviation of each channel on the scale 0 to 1, by which the pixels are divided. Default: ImageNet's.
    pub std: Vec<f32>,
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            source: DataSource::Folder,
            train: None,
            val: None,
            workers: None,
            prefetch: 4,
            bad_image: BadImage::Fail,
            mean: vec![0.485, 0.456, 0.406],
            std: vec![0.229, 0.224, 0.225],
        }
    }
}

/// How a training image is brought to the network's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Crop {
    /// A random part of the image, resized.
    RandomResized,
    /// The whole image, resized whatever its ratio of width to height.
    None,
}

/// Filter for resizing, as Pillow computes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Interpolation {
    /// Triangle filter.
    Bilinear,
    /// Cubic convolution with a = −0.5.
    Bicubic,
}

/// `[augment]`: what happens to a training image between decoding and the network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AugmentConfig {
    /// `random-resized`, or `none` to resize the whole image.
    pub crop: Crop,
    /// Least and greatest share of the image's area in a random crop. Default: 0.08 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<[f64; 2]>,
    /// Least and greatest ratio of width to height of a random crop. Default: 3/4 to 4/3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<[f64; 2]>,
    /// Filter for resizing training images.
    pub interpolation: Interpolation,
    /// Probability of mirroring an image left to right.
    #[schemars(range(min = 0, max = 1))]
    pub horizontal_flip: f64,
}

impl Default for AugmentConfig {
    fn default() -> Self {
        Self { crop: Crop::RandomResized, scale: None, ratio: None, interpolation: Interpolation::Bicubic, horizontal_flip: 0.5 }
    }
}

impl AugmentConfig {
    /// DeiT's share of area in a random crop.
    pub const SCALE: [f64; 2] = [0.08, 1.0];
    /// DeiT's aspect ratios of a random crop.
    pub const RATIO: [f64; 2] = [3.0 / 4.0, 4.0 / 3.0];
}

/// Which optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// AdamW with decoupled weight decay, computed as PyTorch does.
    Adamw,
}

/// `[optimizer]`: the optimizer and the learning rate at its peak.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// Which optimizer: `adamw`.
    pub kind: OptimizerKind,
    /// Learning rate for a batch of `reference_batch` images. The rate used is
    /// learning_rate × (batch_size × accumulate) / reference_batch.
    pub learning_rate: f64,
    /// Batch size that `learning_rate` is meant for; 0 uses `learning_rate` as it stands, whatever the batch.
    pub reference_batch: usize,
    /// Decay of the running means of the gradient and of its square.
    pub betas: [f64; 2],
    /// Added to the denominator. DeiT trains with 1e-8.
    pub eps: f64,
    /// Decoupled weight decay of matrices. Biases, norms, the position embedding and the class token are not decayed.
    pub weight_decay: f64,
    /// Greatest norm of the whole gradient; a longer one is scaled down to it. 0: no clipping, as DeiT.
    pub clip_norm: f64,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::Adamw,
            learning_rate: 5e-4,
            reference_batch: 512,
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 0.05,
            clip_norm: 0.0,
        }
    }
}

/// Shape of the learning rate over the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleKind {
    /// Linear warm-up, then half a cosine down to `min_learning_rate`.
    Cosine,
}

/// How often the learning rate moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Interval {
    /// Once an epoch, one epoch late: epochs 0 and 1 both use the warm-up's first rate. This is how DeiT's training script steps it.
    Epoch,
    /// Every step.
    Step,
}

/// `[schedule]`: how the learning rate moves over the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleConfig {
    /// Which curve: `cosine`.
    pub kind: ScheduleKind,
    /// How often it moves: `epoch`, as DeiT, or `step`.
    pub interval: Interval,
    /// Epochs of linear warm-up. The cosine is not shifted by them, as in timm.
    pub warmup_epochs: f64,
    /// Learning rate at the first step of the warm-up; not scaled by the batch.
    pub warmup_learning_rate: f64,
    /// Learning rate at the end of the cosine; not scaled by the batch.
    pub min_learning_rate: f64,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self {
            kind: ScheduleKind::Cosine,
            interval: Interval::Epoch,
            warmup_epochs: 5.0,
            warmup_learning_rate: 1e-6,
            min_learning_rate: 1e-5,
        }
    }
}

/// `[train]`: length of the run, batch size and loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Passes over the training images.
    #[schemars(range(min = 1))]
    pub epochs: u64,
    /// Images that go through the network at once.
    #[schemars(range(min = 1))]
    pub batch_size: usize,
    /// Batches whose gradients make one step. The result equals one batch of batch_size × accumulate images.
    /// The last step of an epoch takes what is left and counts every image once.
    #[schemars(range(min = 1))]
    pub accumulate: usize,
    /// Leave out the images at an epoch's end that do not fill a batch.
    pub drop_last: bool,
    /// Share of the target spread evenly over all classes.
    #[schemars(range(min = 0, max = 1))]
    pub label_smoothing: f64,
}

impl Default for TrainConfig {
    /// DeiT-B's 8 × 128 = 1,024 images a step.
    fn default() -> Self {
        Self { epochs: 300, batch_size: 128, accumulate: 8, drop_last: true, label_smoothing: 0.1 }
    }
}

/// `[eval]`: how and when top-1 is measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EvalConfig {
    /// Evaluate after every so many epochs, and always after the last. 0: only after the last.
    pub every_epochs: u64,
    /// Images that go through the network at once. The result does not depend on it, beyond rounding.
    #[schemars(range(min = 1))]
    pub batch_size: usize,
    /// Share of the resized image's side that the centre crop keeps: 0.875 resizes to 256 and crops 224, as DeiT.
    pub crop_pct: f64,
    /// Filter for resizing.
    pub interpolation: Interpolation,
}

impl Default for EvalConfig {
    fn default() -> Self {
        Self { every_epochs: 1, batch_size: 128, crop_pct: 0.875, interpolation: Interpolation::Bicubic }
    }
}

/// `[checkpoint]`: when the state of the run is saved and how much of it is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// Save after every so many epochs; 0: not by epochs. The end of the run is always saved.
    pub every_epochs: u64,
    /// Save after every so many steps; 0: not by steps.
    pub every_steps: u64,
    /// Save when so many minutes have passed since the last save; 0: not by time.
    pub every_minutes: f64,
    /// Newest checkpoints that are kept; older ones go when a newer one is safely on disk.
    #[schemars(range(min = 1))]
    pub keep: usize,
    /// Keep the checkpoint with the best top-1 too, saving after an evaluation that beats it.
    pub keep_best: bool,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self { every_epochs: 1, every_steps: 0, every_minutes: 0.0, keep: 2, keep_best: true }
    }
}

/// `[log]`: what is written down on the way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// Write a line to `metrics.jsonl` every so many steps: the mean loss since the last one, learning rate, gradient norm.
    #[schemars(range(min = 1))]
    pub every_steps: u64,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { every_steps: 50 }
    }
}

impl Config {
    /// Images that make one optimizer step.
    pub fn effective_batch(&self) -> usize {
        self.train.batch_size * self.train.accumulate
    }

    /// Optimizer steps of an epoch of `images` training images. The last one takes the batches that are left.
    pub fn steps_per_epoch(&self, images: usize) -> u64 {
        let batches = check::batches_per_epoch(images, self.train.batch_size, self.train.drop_last);
        batches.div_ceil(self.train.accumulate) as u64
    }

    /// The learning rate at its peak: scaled by the effective batch over the reference batch.
    pub fn peak_learning_rate(&self) -> f64 {
        match self.optimizer.reference_batch {
            0 => self.optimizer.learning_rate,
            reference => self.optimizer.learning_rate * self.effective_batch() as f64 / reference as f64,
        }
    }

    /// How the peak learning rate comes about, with every number in it.
    pub fn learning_rate_formula(&self) -> String {
        match self.optimizer.reference_batch {
            0 => format!("{} as it stands (reference_batch = 0)", self.optimizer.learning_rate),
            reference => format!(
                "{} × ({} × {}) / {reference} = {}",
                self.optimizer.learning_rate,
                self.train.batch_size,
                self.train.accumulate,
                self.peak_learning_rate()
            ),
        }
    }

    /// The configuration as TOML text.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a configuration has only values that TOML can hold")
    }

    /// A JSON schema of the configuration file, for editors.
    pub fn json_schema() -> serde_json::Value {
        let mut schema = schemars::schema_for!(Config);
        schema.insert("title".into(), "manyheads configuration".into());
        schema.to_value()
    }
}
