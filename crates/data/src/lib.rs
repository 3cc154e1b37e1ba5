//! Image datasets on disk to batches in host memory. No tensors, no devices.
//!
//! The way of a sample:
//!
//! 1. a [`source`] (image folder, tar, WebDataset shards, parquet files, a packed file, the embedded Fashion-MNIST) gives encoded
//!    bytes and a label by index;
//! 2. [`decode`] turns the bytes into 8-bit RGB [`Pixels`], by content and never by file extension;
//! 3. a [`transform`] crops, resizes, flips, [augments](augment) and normalises them into `[C, H, W]` floats;
//! 4. the [`loader`] does so on several threads and hands out [`Batch`]es.
//!
//! Everything random is a pure function of (seed, purpose, epoch, item), see [`random`]: the number of threads changes
//! nothing, and the state of an epoch is a batch number.
//!
//! ```
//! use manyheads_data::{Loader, LoaderConfig, OnError, Transform, EvalTransform};
//! use manyheads_data::source::embedded::FashionMnist;
//! use std::sync::Arc;
//!
//! let transform = Transform::Eval(EvalTransform {
//!     size: [28, 28], channels: 1, crop_pct: 1.0, mean: vec![0.286], std: vec![0.353], ..EvalTransform::default()
//! });
//! let config = LoaderConfig {
//!     seed: 0, batch_size: 64, shuffle: false, on_error: OnError::Fail, ..LoaderConfig::default()
//! };
//! let loader = Loader::new(Arc::new(FashionMnist::val()?), transform, config)?;
//! let first = loader.epoch(0, 0).next().unwrap()?;
//! assert_eq!(first.shape, [64, 1, 28, 28]);
//! # Ok::<(), manyheads_data::DataError>(())
//! ```

pub mod augment;
pub mod bench;
pub mod decode;
pub mod error;
pub mod imagenet;
pub mod loader;
pub mod mix;
mod ordered;
mod png;
pub mod random;
pub mod sampler;
pub mod source;
pub mod transform;
mod verify;

pub use decode::{Pixels, decode_rgb};
pub use error::DataError;
pub use loader::{Batch, Batches, Images, Loader, LoaderConfig, OnError, PixelFormat, Skipped};
pub use png::{encode_png, write_png};
pub use random::{Purpose, stream};
pub use sampler::{Plan, permutation};
pub use source::packed::build::{PackOptions, PackProgress, PackReport, pack};
pub use source::packed::unpack;
pub use source::{AsDataset, EncodedImage, Source, check_same_classes};
pub use transform::{
    CropMode, EvalTransform, Interpolation, MAX_SIDE, Output, RandomResizedCrop, Scratch, Stages, TrainCrop, TrainTransform,
    Transform,
};
pub use verify::{BrokenImage, DuplicateImages, VerifyOptions, VerifyProgress, VerifyReport, verify};
