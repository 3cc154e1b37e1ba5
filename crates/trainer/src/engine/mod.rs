//! Training and evaluation.

pub mod device;
pub mod evaluate;
mod gradients;
mod step;
pub mod train;
