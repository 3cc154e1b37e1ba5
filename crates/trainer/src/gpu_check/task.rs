//! What a helper process is asked, and what it answers: a line of JSON each.

use manyheads_model::{AttentionKind, Ops};
use serde::{Deserialize, Serialize};

use crate::bench::peak::{Arithmetic, Peak};
use crate::config::Precision;

/// One question.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "lowercase")]
pub enum Task {
    /// What the device is: [`Device`].
    Describe,
    /// Whether the device computes what the CPU computes: [`Agreement`].
    Agree(Agree),
    /// How fast it is: [`Speed`].
    Measure(Measure),
}

/// A comparison with the CPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Agree {
    /// What the network is called.
    pub network: String,
    /// Keys of its configuration, as `model.width=126`.
    pub sets: Vec<String>,
    /// The attention of every layer.
    pub attention: AttentionKind,
    /// Float type of the matrix products on the device.
    pub precision: Precision,
    /// How the device computes.
    pub ops: Ops,
}

/// A measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// What the network is called.
    pub network: String,
    /// timm's name of the same network with softmax attention, for PyTorch.
    pub timm: String,
    /// Side of an image in pixels.
    pub image: usize,
    /// Keys of its configuration.
    pub sets: Vec<String>,
    /// The attention of every layer.
    pub attention: AttentionKind,
    /// Training or inference.
    pub step: Step,
    /// Float type of the matrix products.
    pub precision: Precision,
    /// Images at once.
    pub batch: usize,
    /// Seconds that the measured steps may take.
    pub seconds: f64,
    /// This program only: the form of its operations.
    #[serde(default)]
    pub ops: Ops,
    /// PyTorch only: whether the model goes through `torch.compile`.
    #[serde(default)]
    pub compile: bool,
}

/// What a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// Forward, backward, gradient norm and update.
    Train,
    /// Forward.
    Infer,
}

/// An answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer<T> {
    /// It worked.
    Ok(T),
    /// It did not, and why.
    Error(String),
}

/// The device that is checked.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Device {
    /// Kind and model.
    pub name: String,
    /// How it multiplies f32 matrices.
    pub f32_products: Arithmetic,
    /// Whether it computes in bf16.
    pub bf16: bool,
    /// Whether it has the fused forms of operations.
    pub fused: bool,
    /// Its peak in f32 as it multiplies.
    pub peak_f32: Peak,
    /// Its peak in bf16.
    pub peak_bf16: Option<Peak>,
}

/// How far a device is from the CPU. All numbers are relative; [`f64::MAX`] stands for one that is not finite.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Agreement {
    /// Length of the difference of the logits over that of the CPU's logits.
    pub logits: f64,
    /// The same of a parameter's gradient, the greatest over the parameters. A gradient that is less than a thousandth of the whole
    /// gradient is compared with that thousandth: its own digits are rounding.
    pub gradient: f64,
    /// Name of that parameter.
    pub parameter: String,
    /// The greatest difference of a step's loss over twenty steps.
    pub loss: f64,
}

/// How fast a network is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Speed {
    /// Images per second, from the median step.
    pub images_per_second: f64,
    /// Floating-point operations per second by the network's definition; PyTorch's are computed from its images per second.
    #[serde(default)]
    pub flops_per_second: Option<f64>,
    /// Operations for an image.
    #[serde(default)]
    pub flops_per_image: Option<f64>,
    /// Memory of the device that is held after the steps; none where the backend does not tell.
    pub device_memory_bytes: Option<u64>,
    /// Most main memory that the process ever held.
    pub process_memory_bytes: Option<u64>,
}
