//! Training, checkpoints and evaluation of Vision Transformers.
//!
//! [`config::load`] reads and checks a configuration; [`train`] trains it, [`resume`] continues a run bit for bit, and [`eval`]
//! measures top-1. Reading order: [`config`], [`recipe`], [`engine`], [`checkpoint`].

pub mod bench;
pub mod bench_attention;
pub mod checkpoint;
pub mod config;
pub mod data_tools;
mod dataset;
pub mod engine;
pub mod environment;
pub mod error;
pub mod eval;
mod files;
pub mod gpu_check;
pub mod info;
pub mod log;
pub mod logits;
mod memory;
pub mod network;
pub mod predict;
pub mod recipe;

pub mod run_dir;
mod sheet;
mod signals;
mod space;
mod unchanged;
pub mod weights;

pub use engine::device::DeviceName;
pub use engine::dry_run::{DryRun, dry_run};
pub use engine::train::{Changes, Outcome, Summary, resume, train};
pub use error::{Error, Result};
pub use log::progress::View;

/// The version of Burn that the program is built on.
pub const BURN_VERSION: &str = "0.22.1";
