//! Weights in and out: the names, shapes and layouts other programs store.

pub mod timm;

mod error;

pub use error::{MalformedTensor, MisshapenTensor, MissingTensor, WeightsError};
