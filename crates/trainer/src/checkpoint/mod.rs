//! Checkpoints: a checkpoint exists or it does not (law 5).
//!
//! Each is a folder `step-00001250` with `manifest.json`, `model.safetensors` under timm's names, `optimizer.safetensors` and the
//! run's `config.toml`. It is written under another name, synced, and renamed into place; the manifest holds a hash of every file.

mod container;
mod manifest;
mod store;

pub(crate) use container::hex;
pub use container::{FileEntry, read_tensors};
pub use manifest::{Best, DataFingerprint, FORMAT, Manifest, PendingStep, Phase};
pub use store::{Checkpoint, Newest, Parts, Store, load_model};
