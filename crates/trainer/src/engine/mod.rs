//! Training and evaluation.

pub mod device;
pub mod evaluate;
pub mod gradients;
pub mod protocol;
mod quiet;
pub mod step;
pub mod train;
