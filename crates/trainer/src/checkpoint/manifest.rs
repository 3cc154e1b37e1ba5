//! `manifest.json`: where a run stood and which files belong to it, with a hash of each and of itself.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::container::{FileEntry, sha256_hex};
use crate::engine::evaluate::Score;

/// Version of the checkpoint's form. A reader refuses others.
pub const FORMAT: u32 = 1;

/// What had been done at the checkpoint's step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The step's update; what follows it (evaluation at an epoch's end, saving) was still to come.
    Trained,
    /// Everything that belongs to the step.
    Done,
}

/// The best evaluation of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Step after which it was measured.
    pub step: u64,
    /// Percentage of images whose label ranks first.
    pub top1: f64,
}

/// A step whose loss is not yet in `metrics.jsonl`, because the line it belongs to comes later.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PendingStep {
    /// Its number, from 0.
    pub step: u64,
    /// Sum of the images' losses.
    pub loss_sum: f64,
    /// Images in the step.
    pub images: u64,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
}

/// What identifies the dataset of a run: a changed one must not be trained on unnoticed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataFingerprint {
    /// Number of training images.
    pub train_images: u64,
    /// Number of held-out images.
    pub val_images: u64,
    /// Class names in the order of the labels.
    pub classes: Vec<String>,
    /// Hash of the training images' labels and file names in their order. Another order is another run.
    pub train_files: String,
    /// The same of the held-out images.
    pub val_files: String,
}

/// The state of a run beside its tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// Version of the program that wrote it.
    pub version: String,
    /// Updates done since the start of the run. Learning rate, epoch, order of images follow from it.
    pub step: u64,
    /// What of the step was done.
    pub phase: Phase,
    /// The best evaluation so far.
    pub best: Option<Best>,
    /// The newest evaluation.
    pub last: Option<Score>,
    /// Steps since the last line of kind `train`.
    pub pending: Vec<PendingStep>,
    /// Steps left out since the start of the run because their numbers were not finite.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped_steps: u64,
    /// Length of `metrics.jsonl`; a resumed run goes on from there.
    pub metrics_bytes: u64,
    /// The dataset.
    pub data: DataFingerprint,
    /// The files beside this one.
    pub files: BTreeMap<String, FileEntry>,
    /// Hash of this file with this field empty.
    pub sha256: String,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Manifest {
    /// The bytes of the file, its own hash filled in.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut sealed = Manifest { sha256: String::new(), ..self.clone() };
        sealed.sha256 = sha256_hex(&sealed.text());
        sealed.text()
    }

    fn text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).expect("a manifest has only values that JSON can hold");
        text.push(b'\n');
        text
    }

    /// Reads a manifest, accepting exactly the bytes that [`Manifest::to_bytes`] writes.
    ///
    /// # Errors
    /// A reason, without the file's name.
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Self, String> {
        let name = path.display();
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(|e| format!("{name} is damaged: {e}"))?;
        if manifest.to_bytes() != bytes {
            return Err(format!("{name} is damaged: its own hash does not fit"));
        }
        if manifest.format != FORMAT {
            return Err(format!("{name} has format {}; this program reads format {FORMAT}", manifest.format));
        }
        Ok(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let manifest = Manifest {
            format: FORMAT,
            version: "0.1.0".into(),
            step: 12,
            phase: Phase::Trained,
            best: Some(Best { step: 10, top1: 81.846 }),
            last: Some(Score { top1: 81.8, top5: 95.6, loss: 0.82, n: 50_000 }),
            pending: vec![PendingStep { step: 11, loss_sum: 0.1f32 as f64, images: 3, gradient_norm: 1e-30 }],
            skipped_steps: 2,
            metrics_bytes: 345,
            data: DataFingerprint {
                train_images: 5,
                val_images: 6,
                classes: vec!["a".into()],
                train_files: "0a".into(),
                val_files: "0b".into(),
            },
            files: [("x".to_string(), FileEntry { bytes: 1, sha256: "00".into() })].into(),
            sha256: String::new(),
        };
        let bytes = manifest.to_bytes();
        let path = Path::new("manifest.json");
        let read = Manifest::from_bytes(&bytes, path).unwrap();
        assert_eq!(Manifest { sha256: String::new(), ..read }, manifest);
        for index in 0..bytes.len() {
            assert!(Manifest::from_bytes(&bytes[..index], path).is_err());
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[index] ^= 1 << bit;
                assert!(Manifest::from_bytes(&flipped, path).is_err(), "bit {bit} of byte {index}");
            }
        }
    }
}
