//! The configuration of a run: one TOML file with a section per idea, DeiT's values as defaults.
//!
//! A file is read strictly ([`load`]): an unknown key, a value of the wrong type or a combination that cannot work is an error
//! that points at the line. The resolved configuration, with every default written out, is itself a valid configuration.

mod check;
mod layers;
mod load;
mod report;

use std::path::PathBuf;

use burn::tensor::FloatDType;
use manyheads_model::{ModelConfig, Ops, Training};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use load::{Loaded, load, load_text, load_text_without_images, load_without_images};

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
    /// Pairs of images blended within a batch.
    pub mix: MixConfig,
    /// The optimizer and the learning rate at its peak.
    pub optimizer: OptimizerConfig,
    /// How the learning rate moves over the run.
    pub schedule: ScheduleConfig,
    /// Length of the run, batch size and loss.
    pub train: TrainConfig,
    /// A running average of the weights.
    pub ema: EmaConfig,
    /// A teacher.
    pub distillation: DistillationConfig,
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
    /// How the network computes: `fused`, each operation in one piece where the device has that form; or `plain`, composed of Burn's
    /// operations, slower. They differ by rounding.
    pub ops: Ops,
    /// Before the start, compare the memory and the disk space that the run needs with what the machine has.
    pub check_resources: bool,
}

impl Default for RunConfig {
    fn default() -> Self {
        Self { name: None, seed: 0, device: "auto".into(), ops: Ops::default(), check_resources: true }
    }
}

/// Form in which a dataset lies on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DataSource {
    /// Whatever the content of `train` and `val` shows.
    Auto,
    /// A folder per class with image files below it; or image files with a file of labels.
    Folder,
    /// An uncompressed tar file of such folders, of tar files of a class each as ImageNet comes, or of images with a file of labels;
    /// read in place.
    Tar,
    /// WebDataset shards.
    Webdataset,
    /// Parquet files of images and labels, as Hugging Face's datasets have them.
    Parquet,
    /// A file made by `manyheads data pack`.
    Packed,
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
    /// What `train` and `val` are: `auto` finds out; `folder`, `tar`, `webdataset`, `parquet` or `packed`; `embedded` for the images
    /// inside the program.
    pub source: DataSource,
    /// Training images: a folder, a file, or shards as `train-{000..146}.tar`. Relative to the working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<PathBuf>,
    /// Held-out images with the same classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val: Option<PathBuf>,
    /// Labels of training images that lie without class folders: lines of file name and class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_labels: Option<PathBuf>,
    /// Labels of held-out images that lie without class folders: lines of file name and class, or ILSVRC2012's ground truth. ImageNet's
    /// validation images need none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_labels: Option<PathBuf>,
    /// A file with a class name a line, for WebDataset shards whose labels are numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_names: Option<PathBuf>,
    /// Split to take for training where a folder of shards holds several: shards whose names begin with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_split: Option<String>,
    /// The same for the held-out images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_split: Option<String>,
    /// Threads that decode and augment images; 0 does it on the training thread. Default: the number of CPU cores.
    /// The batches do not depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
    /// Batches prepared ahead of the training thread.
    #[schemars(range(min = 1))]
    pub prefetch: usize,
    /// `fail` or `skip`: what to do with an image that cannot be read.
    pub bad_image: BadImage,
    /// Mean of each channel on the scale 0 to 1, subtracted from the pixels. Default: the preset's, otherwise ImageNet's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean: Option<Vec<f32>>,
    /// Standard deviation of each channel on the scale 0 to 1, by which the pixels are divided. Default: the preset's, otherwise
    /// ImageNet's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub std: Option<Vec<f32>>,
}

impl DataConfig {
    /// Mean of each channel over ImageNet's training images.
    pub const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
    /// Standard deviation of each channel over ImageNet's training images.
    pub const STD: [f32; 3] = [0.229, 0.224, 0.225];

    /// The mean that is used.
    pub fn mean(&self) -> &[f32] {
        self.mean.as_deref().unwrap_or(&Self::MEAN)
    }

    /// The standard deviation that is used.
    pub fn std(&self) -> &[f32] {
        self.std.as_deref().unwrap_or(&Self::STD)
    }
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            source: DataSource::Auto,
            train: None,
            val: None,
            train_labels: None,
            val_labels: None,
            class_names: None,
            train_split: None,
            val_split: None,
            workers: None,
            prefetch: 4,
            bad_image: BadImage::Fail,
            mean: None,
            std: None,
        }
    }
}

/// How a training image is brought to the network's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Crop {
    /// A random part of the image, resized.
    RandomResized,
    /// The short side resized, and a random crop of the image with a border of four reflected pixels: DeiT III's simple random crop.
    Simple,
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

/// What erased rectangles are filled with, as timm's modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ErasingFill {
    /// The mean colour.
    Const,
    /// One random colour.
    Rand,
    /// A random number for every value: DeiT's.
    Pixel,
}

/// `[augment]`: what happens to a training image between decoding and the network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AugmentConfig {
    /// `random-resized`, `simple`, or `none` to resize the whole image.
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
    /// Probability of turning an image upside down.
    #[schemars(range(min = 0, max = 1))]
    pub vertical_flip: f64,
    /// A policy as timm writes it: RandAugment (`rand-m9-mstd0.5-inc1`, DeiT's), AutoAugment (`original`, `v0`, …) or DeiT III's `3a`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto: Option<String>,
    /// Greatest change of brightness, contrast and saturation: 0.3 changes each by a factor of 0.7 to 1.3. DeiT III: 0.3. timm leaves it
    /// out where a policy other than `3a` is given; here it is done where it is set.
    pub color_jitter: f64,
    /// Greatest turn of the hue, up to 0.5.
    #[schemars(range(min = 0, max = 0.5))]
    pub hue_jitter: f64,
    /// Probability of a grey image.
    #[schemars(range(min = 0, max = 1))]
    pub grayscale: f64,
    /// Probability of inverting bright values.
    #[schemars(range(min = 0, max = 1))]
    pub solarize: f64,
    /// Probability of a blur.
    #[schemars(range(min = 0, max = 1))]
    pub blur: f64,
    /// Probability of erasing a rectangle after normalisation; DeiT: 0.25.
    #[schemars(range(min = 0, max = 1))]
    pub erasing: f64,
    /// What erased rectangles are filled with.
    pub erasing_fill: ErasingFill,
    /// Most erased rectangles of an image.
    #[schemars(range(min = 1))]
    pub erasing_count: usize,
    /// Repeated augmentation: copies of an image in an epoch, each augmented by itself; DeiT has 3. An epoch stays as long and shows
    /// that much fewer different images. 1: none.
    #[schemars(range(min = 1, max = 1000))]
    pub repeats: usize,
}

impl Default for AugmentConfig {
    fn default() -> Self {
        Self {
            crop: Crop::RandomResized,
            scale: None,
            ratio: None,
            interpolation: Interpolation::Bicubic,
            horizontal_flip: 0.5,
            vertical_flip: 0.0,
            auto: None,
            color_jitter: 0.0,
            hue_jitter: 0.0,
            grayscale: 0.0,
            solarize: 0.0,
            blur: 0.0,
            erasing: 0.0,
            erasing_fill: ErasingFill::Pixel,
            erasing_count: 1,
            repeats: 1,
        }
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
    /// LAMB, computed as timm does: Adam with a step as long as the parameter is. DeiT III trains with it.
    Lamb,
    /// Stochastic gradient descent with momentum, computed as PyTorch does; weight decay is part of the gradient.
    Sgd,
}

/// Parameters that are trained in another way than the rest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ParameterGroup {
    /// timm's names of the parameters; `*` stands for any characters, as in `blocks.*.attn.*`.
    pub pattern: String,
    /// Factor on their learning rate.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub rate: f64,
    /// Their weight decay, instead of the optimizer's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// Leave them as they are.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub freeze: bool,
}

fn one() -> f64 {
    1.0
}

fn is_one(value: &f64) -> bool {
    *value == 1.0
}

/// `[optimizer]`: the optimizer and the learning rate at its peak.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// Which optimizer: `adamw`, `lamb` or `sgd`.
    pub kind: OptimizerKind,
    /// Learning rate for a batch of `reference_batch` images. The rate used is
    /// learning_rate × (batch_size × accumulate) / reference_batch.
    pub learning_rate: f64,
    /// Batch size that `learning_rate` is meant for; 0 uses `learning_rate` as it stands, whatever the batch.
    pub reference_batch: usize,
    /// Decay of the running means of the gradient and of its square, for `adamw` and `lamb`.
    pub betas: [f64; 2],
    /// Added to the denominator, for `adamw` and `lamb`. DeiT trains with 1e-8.
    pub eps: f64,
    /// Share of the last step's direction that is kept, for `sgd`.
    pub momentum: f64,
    /// Nesterov's momentum, for `sgd`.
    pub nesterov: bool,
    /// Weight decay of matrices. Biases, norms, the position embedding and the class token are not decayed.
    pub weight_decay: f64,
    /// Greatest norm of the whole gradient; a longer one is scaled down to it. 0: no clipping, as DeiT.
    pub clip_norm: f64,
    /// The same inside `lamb`, whose usual implementations have it at 1. 0: no clipping.
    pub lamb_clip_norm: f64,
    /// Factor on the learning rate from each layer to the one below, counted as timm does; 1: all layers alike.
    pub layer_decay: f64,
    /// Parameters that are trained in another way than the rest; where several fit, factors multiply and the last decides the rest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<ParameterGroup>,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::Adamw,
            learning_rate: 5e-4,
            reference_batch: 512,
            betas: [0.9, 0.999],
            eps: 1e-8,
            momentum: 0.9,
            nesterov: true,
            weight_decay: 0.05,
            clip_norm: 0.0,
            lamb_clip_norm: 1.0,
            layer_decay: 1.0,
            groups: Vec::new(),
        }
    }
}

/// Shape of the learning rate over the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleKind {
    /// Linear warm-up, then half a cosine down to `min_learning_rate`.
    Cosine,
    /// Linear warm-up, then a straight line down to `min_learning_rate`.
    Linear,
    /// Linear warm-up, then the peak learning rate to the end.
    Constant,
}

/// How often the learning rate moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Interval {
    /// Once an epoch.
    Epoch,
    /// Every step.
    Step,
}

/// `[schedule]`: how the learning rate moves over the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleConfig {
    /// Which curve: `cosine`, `linear` or `constant`.
    pub kind: ScheduleKind,
    /// How often it moves: `epoch`, as DeiT, or `step`.
    pub interval: Interval,
    /// With `interval = "epoch"`: move one epoch late, so that epochs 0 and 1 both use the warm-up's first rate. This is how DeiT's
    /// training script steps its schedule. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch_late: Option<bool>,
    /// Epochs of linear warm-up. The cosine is not shifted by them, as in timm.
    pub warmup_epochs: f64,
    /// Learning rate at the first step of the warm-up; not scaled by the batch.
    pub warmup_learning_rate: f64,
    /// Learning rate at the end of the curve; not scaled by the batch. `constant` has no use for it.
    pub min_learning_rate: f64,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self {
            kind: ScheduleKind::Cosine,
            interval: Interval::Epoch,
            epoch_late: None,
            warmup_epochs: 5.0,
            warmup_learning_rate: 1e-6,
            min_learning_rate: 1e-5,
        }
    }
}

/// `[mix]`: mixup and CutMix, pairs of images blended within a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MixConfig {
    /// Both parameters of the Beta distribution that mixup's share is drawn from; DeiT: 0.8. 0: no mixup.
    pub mixup: f64,
    /// The same of CutMix; DeiT: 1.0. 0: no CutMix.
    pub cutmix: f64,
    /// Probability that a group is mixed at all.
    #[schemars(range(min = 0, max = 1))]
    pub probability: f64,
    /// Probability of CutMix where both are on.
    #[schemars(range(min = 0, max = 1))]
    pub switch: f64,
    /// Images that share one draw. DeiT mixes the 64 images of a GPU alike. A batch's last group may be smaller.
    #[schemars(range(min = 1))]
    pub group: usize,
}

impl Default for MixConfig {
    fn default() -> Self {
        Self { mixup: 0.0, cutmix: 0.0, probability: 1.0, switch: 0.5, group: 64 }
    }
}

impl MixConfig {
    /// Whether anything is mixed.
    pub fn on(&self) -> bool {
        (self.mixup > 0.0 || self.cutmix > 0.0) && self.probability > 0.0
    }
}

/// `[ema]`: a running average of the weights, evaluated beside them and saved with them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EmaConfig {
    /// Whether an average is kept.
    pub enabled: bool,
    /// Share of the average that each step keeps.
    pub decay: f64,
    /// Steps in which the average is a copy of the weights, as timm's `update_after_step` counts them. Without it the average starts
    /// from the initial weights, as DeiT's does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy_steps: Option<u64>,
    /// Raise the decay from 0 by 1 − (1 + step / warmup_gamma)^−warmup_power until it reaches `decay`, as timm.
    pub warmup: bool,
    /// See `warmup`.
    pub warmup_gamma: f64,
    /// See `warmup`.
    pub warmup_power: f64,
    /// Least decay during the warm-up.
    pub min_decay: f64,
}

impl Default for EmaConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            decay: 0.99996,
            copy_steps: None,
            warmup: false,
            warmup_gamma: 1.0,
            warmup_power: 2.0 / 3.0,
            min_decay: 0.0,
        }
    }
}

/// What a student learns from its teacher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DistillationKind {
    /// Nothing.
    None,
    /// The teacher's probabilities.
    Soft,
    /// The class that the teacher ranks first: DeiT's choice.
    Hard,
}

impl DistillationKind {
    /// Itself, where there is something to learn.
    pub fn learns(self) -> Option<Self> {
        (self != Self::None).then_some(self)
    }
}

/// `[distillation]`: a teacher. The loss is (1 − alpha) × `train.loss` + alpha × the teacher's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DistillationConfig {
    /// `none`, `soft` or `hard`. With `model.distilled` the second head learns from the teacher.
    pub kind: DistillationKind,
    /// Share of the teacher in the loss.
    #[schemars(range(min = 0, max = 1))]
    pub alpha: f64,
    /// Temperature of both softmaxes, for `soft`.
    pub temperature: f64,
    /// The teacher: a weights file, a folder that holds one, or the folder of a run. It sees the images that the student sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub teacher: Option<PathBuf>,
    /// timm's name of the teacher, where the file does not tell its network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub teacher_preset: Option<String>,
    /// Instead of a teacher its logits of the training images, as `manyheads eval --logits` writes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logits: Option<PathBuf>,
}

impl Default for DistillationConfig {
    fn default() -> Self {
        Self { kind: DistillationKind::None, alpha: 0.5, temperature: 1.0, teacher: None, teacher_preset: None, logits: None }
    }
}

/// Which loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LossKind {
    /// Cross-entropy against soft targets.
    CrossEntropy,
    /// Binary cross-entropy of every class, averaged over the classes, with a target of 1 for every class that has a share in the
    /// image: DeiT III's.
    Bce,
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
    /// Which loss: `cross-entropy` or `bce`.
    pub loss: LossKind,
    /// Share of the target spread evenly over all classes, for `cross-entropy`.
    #[schemars(range(min = 0, max = 1))]
    pub label_smoothing: f64,
    /// Type of the matrix products: `f32` or `bf16`, which needs no scaling of the loss. Weights, gradients, optimizer, average, norms,
    /// softmax, token sums and losses are f32 in both; `manyheads info` lists what runs in which. A teacher runs in the same.
    pub precision: Precision,
    /// Keep of each block its input alone and compute the block again in the backward pass: less memory for a third more work, and the same
    /// gradients.
    pub recompute: bool,
    /// Weights to start from, for fine-tuning: a weights file, a folder that holds one, or the folder of a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<PathBuf>,
    /// SHA-256 of that file; a run writes it down, and another file is then refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights_sha256: Option<String>,
    /// Steps of the whole run that may be left out because their loss or gradient is not finite; each is logged. One more stops the run.
    pub skip_non_finite: u64,
}

impl Default for TrainConfig {
    /// DeiT-B's 8 × 128 = 1,024 images a step.
    fn default() -> Self {
        Self {
            epochs: 300,
            batch_size: 128,
            accumulate: 8,
            drop_last: true,
            loss: LossKind::CrossEntropy,
            label_smoothing: 0.1,
            precision: Precision::F32,
            recompute: false,
            weights: None,
            weights_sha256: None,
            skip_non_finite: 0,
        }
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
    /// Default: the preset's where it is called by timm's name, otherwise 0.875.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crop_pct: Option<f64>,
    /// What happens to an image of another shape. Default: the preset's, otherwise `center`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crop_mode: Option<CropMode>,
    /// Filter for resizing. Default: the preset's, otherwise `bicubic`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interpolation: Option<Interpolation>,
    /// Type of the matrix products in every evaluation: `f32` or `bf16`. Norms, softmax and token sums are f32 in both.
    pub precision: Precision,
}

impl EvalConfig {
    /// DeiT's: 224 of 256.
    pub const CROP_PCT: f64 = 0.875;

    /// The share that is used.
    pub fn crop_pct(&self) -> f64 {
        self.crop_pct.unwrap_or(Self::CROP_PCT)
    }

    /// The mode that is used.
    pub fn crop_mode(&self) -> CropMode {
        self.crop_mode.unwrap_or(CropMode::Center)
    }

    /// The filter that is used.
    pub fn interpolation(&self) -> Interpolation {
        self.interpolation.unwrap_or(Interpolation::Bicubic)
    }
}

/// What happens to an image of another shape than the network's, as timm's `crop_mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CropMode {
    /// The short side is resized and the centre cropped.
    Center,
    /// Both sides are resized, the ratio of width to height is not kept.
    Squash,
    /// The long side is resized and the rest filled with the mean colour.
    Border,
}

/// Type of the matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// 32-bit floats throughout.
    F32,
    /// bfloat16 in matrix products; f32 weights, norms, softmax, token sums and losses.
    Bf16,
}

impl Precision {
    /// The type.
    pub fn float(self) -> FloatDType {
        match self {
            Self::F32 => FloatDType::F32,
            Self::Bf16 => FloatDType::BF16,
        }
    }

    /// The configuration's word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

impl Default for EvalConfig {
    fn default() -> Self {
        Self { every_epochs: 1, batch_size: 128, crop_pct: None, crop_mode: None, interpolation: None, precision: Precision::F32 }
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
    /// Keep those of every so many epochs for good, saving them too; 0: none.
    pub keep_every_epochs: u64,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self { every_epochs: 1, every_steps: 0, every_minutes: 0.0, keep: 2, keep_best: true, keep_every_epochs: 0 }
    }
}

/// `[log]`: what is written down on the way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// Write a line to `metrics.jsonl` every so many steps: the mean loss since the last one, learning rate, gradient norm.
    #[schemars(range(min = 1))]
    pub every_steps: u64,
    /// Write TensorBoard's event file, `tensorboard/` in the run, beside `metrics.jsonl`.
    pub tensorboard: bool,
    /// In it, the distribution of every weight after each evaluation.
    pub histograms: bool,
    /// In it, a picture of so many images of the first batch, as the network sees them; 0: none.
    pub samples: usize,
    /// Say what the run is waiting for where nothing has happened for so many seconds, and again each time they pass; 0: never.
    pub stall_seconds: f64,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { every_steps: 50, tensorboard: true, histograms: true, samples: 16, stall_seconds: 120.0 }
    }
}

impl Config {
    /// How the network is trained, as far as the memory goes.
    pub fn training(&self) -> Training {
        Training { products: self.train.precision.float(), recompute: self.train.recompute }
    }

    /// Images that make one optimizer step.
    pub fn effective_batch(&self) -> usize {
        self.train.batch_size * self.train.accumulate
    }

    /// Optimizer steps of an epoch of `images` training images. The last one takes the batches that are left.
    pub fn steps_per_epoch(&self, images: usize) -> u64 {
        let batches = check::batches_per_epoch(self, images);
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
