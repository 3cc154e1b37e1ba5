//! Checkpoints: a checkpoint exists or it does not (law 5).
//!
//! Each is a folder `step-00001250` with `manifest.json`, `model.safetensors` under timm's names, `optimizer.safetensors` and the
//! run's `config.toml`. It is written under another name, synced, and renamed into place; the manifest holds a hash of every file.
//! All that happens in a thread, while training goes on.

mod container;
mod manifest;
mod parts;
mod saver;
mod store;

pub(crate) use container::hex;
pub use container::{FileEntry, read_tensors};
pub use manifest::{Best, DataFingerprint, FORMAT, Manifest, PendingStep, Phase};
pub use parts::{Part, Parts};
pub use saver::{Job, Saver};
pub use store::{Checkpoint, Keep, Newest, Store, load_model};
