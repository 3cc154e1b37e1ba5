//! Vision Transformers on [Burn](https://burn.dev), with softmax, multi-head linear and Hydra attention in any layer.
//!
//! Configuration goes in, a network comes out:
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use manyheads_model::{AttentionKind, ModelConfig, Preset};
//! use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
//!
//! let mut config = ModelConfig { preset: Some(Preset::find("tiny")?), depth: Some(2), classes: Some(10), ..ModelConfig::default() };
//! config.attention.kind = AttentionKind::Hydra;
//! let architecture = config.resolve()?;
//!
//! let device = Device::flex();
//! let model = architecture.init(&mut ChaCha8Rng::seed_from_u64(0), &device);
//! let logits = model.forward(Tensor::zeros([1, 3, 224, 224], &device), None);
//! assert_eq!(logits.dims(), [1, 10]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`ModelConfig`] is the `[model]` section of a configuration file. [`ModelConfig::resolve`] checks it and yields an [`Architecture`]:
//! plain numbers, from which [`Architecture::init`] builds a [`VisionTransformer`], [`cost`] counts parameters and multiply-accumulates,
//! and [`weights::timm`] knows the names and shapes of the tensors in a weights file.
//!
//! Nothing here draws from a device's random generator: initial values come from the generator the caller hands in, and the factors of
//! stochastic depth and the masks of dropout are arguments of the forward pass.

mod architecture;
mod assemble;
pub mod attention;
mod block;
mod config;
mod cost;
mod dropout;
mod error;
mod init;
mod names;
pub mod ops;
mod patch;
mod pixels;
mod plan;
mod precision;
mod preset;
pub mod profile;
mod recompute;
mod vit;
pub mod weights;

pub use architecture::{Architecture, LayerAttention, Pool, StochasticDepthMode};
pub use attention::Attention;
pub use attention::kernel::Kernel;
pub use block::{Block, LayerScale, Mlp};
pub use config::{ImageSize, ModelConfig};
pub use cost::{Cost, LayerCost, MemoryEstimate, Training, cost, training_memory_bytes};
pub use dropout::{BlockMasks, DropoutConfig, DropoutMasks, KeptPatches, Mask};
pub use error::ModelError;
pub use names::{parameter_name, weight_decay};
pub use ops::Ops;
pub use patch::{PatchEmbedding, PatchProjection};
pub use pixels::Pixels;
pub use plan::{AttentionConfig, AttentionKind, AttentionOverride, Place};
pub use precision::{Operation, Types};
pub use preset::{Preset, PresetData, UnknownPreset};
pub use recompute::Recomputation;
pub use vit::{Heads, VisionTransformer};
