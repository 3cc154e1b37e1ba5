//! Training and evaluation.

#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod choices;
pub mod device;
pub mod dry_run;
mod erase;
pub mod evaluate;
pub mod gradients;
pub mod protocol;
mod quiet;
pub mod step;
pub mod train;
pub(crate) mod upload;
pub mod watch;
