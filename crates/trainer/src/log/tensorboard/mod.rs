//! TensorBoard's event file of a run: `tensorboard/events.out.tfevents.manyheads`.
//!
//! What it holds is a function of `metrics.jsonl` but for the histograms, which are kept from the file itself. So a resumed run restores
//! it: whatever the checkpoint does not know of goes, a torn end is mended, missing numbers come back. As the steps that are done again
//! write events of the same length, even a TensorBoard that is reading along stays in place.
//!
//! Scalars (`train/loss`, …: the keys of the metrics without `rate_`), histograms of the weights after each evaluation by timm's names,
//! a page of samples (`samples`) and the resolved configuration (`config`).

mod event;
mod frames;
mod histogram;
mod page;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use manyheads_data::Loader;
use manyheads_model::Architecture;
use manyheads_model::weights::timm::NamedTensor;

use self::event::Holds;
use self::frames::frame;
use self::histogram::Histogram;
use super::Sink;
use super::file::{LogFile, Unsynced};
use super::jsonl::{Record, unix_time};
use crate::config::Config;
use crate::error::Result;

/// The file below the run. TensorBoard takes every file with `tfevents` in its name.
const FILE: &str = "tensorboard/events.out.tfevents.manyheads";

/// The open event file of a run.
#[derive(Debug)]
pub(super) struct TensorBoard {
    run_dir: PathBuf,
    log: LogFile,
    histograms: bool,
}

/// Frames of an existing file that cannot be made anew.
#[derive(Default)]
struct Stored<'a> {
    version: Option<&'a [u8]>,
    /// The text's event and what it says.
    config: Option<(&'a [u8], &'a [u8])>,
    samples: Option<&'a [u8]>,
    histograms: HashMap<u64, &'a [u8]>,
}

impl<'a> Stored<'a> {
    fn read(bytes: &'a [u8]) -> Self {
        let mut stored = Self::default();
        for record in frames::records(bytes) {
            match event::holds(record) {
                Some(Holds::Version) => stored.version = stored.version.or(Some(record)),
                Some(Holds::Text(text)) => stored.config = Some((record, text)),
                Some(Holds::Image) => stored.samples = Some(record),
                Some(Holds::Histograms(step)) => {
                    stored.histograms.insert(step, record);
                }
                Some(Holds::Scalars) | None => {}
            }
        }
        stored
    }
}

impl TensorBoard {
    /// Opens the event file so that it tells what `records` tell. The second part says what had been lost and cannot be made anew.
    ///
    /// # Errors
    /// Where the file cannot be read or written.
    pub fn open(
        run_dir: &Path,
        records: &[Record],
        config: &Config,
        architecture: &Architecture,
        loader: &Loader,
    ) -> Result<(Self, Option<String>)> {
        let path = run_dir.join(FILE);
        let bytes = match path.exists() {
            true => crate::files::read(&path)?,
            false => Vec::new(),
        };
        let stored = Stored::read(&bytes);
        let now = unix_time();
        let mut contents = frame(&stored.version.map_or_else(|| event::version(now), <[u8]>::to_vec));
        let text = format!("```toml\n{}```\n", config.to_toml());
        contents.extend(match stored.config {
            Some((record, known)) if known == text.as_bytes() => frame(record),
            _ => frame(&event::text(now, "config", &text)),
        });
        if let Some(record) = stored.samples {
            contents.extend(frame(record));
        } else if let Some(page) = page::page(config, architecture, loader) {
            contents.extend(frame(&event::image(now, "samples", &page)));
        }
        let mut lost = 0;
        for record in records {
            contents.extend(scalars(record).map(|event| frame(&event)).unwrap_or_default());
            if let Record::Eval { step, .. } = record {
                match stored.histograms.get(step) {
                    Some(record) => contents.extend(frame(record)),
                    None => lost += usize::from(config.log.histograms),
                }
            }
        }
        let lost = (lost > 0).then(|| {
            format!(
                "note: the histograms of {lost} evaluations are not in {} and cannot be made anew; all else is there",
                path.display()
            )
        });
        let log = LogFile::restore(path, &contents)?;
        Ok((Self { run_dir: run_dir.into(), log, histograms: config.log.histograms }, lost))
    }
}

impl Sink for TensorBoard {
    fn record(&mut self, record: &Record) -> Result<()> {
        scalars(record).map_or(Ok(()), |event| self.log.append(&frame(&event)))
    }

    fn wants_weights(&self) -> bool {
        self.histograms
    }

    fn weights(&mut self, step: u64, tensors: &[NamedTensor]) -> Result<()> {
        let histograms = tensors.iter().map(|tensor| (weight_tag(&tensor.name), Histogram::of(&tensor.values)));
        self.log.append(&frame(&event::histograms(unix_time(), step, histograms)))
    }

    fn check(&mut self, unsynced: &mut Vec<Unsynced>) -> Result<Option<String>> {
        self.log.check(&self.run_dir, unsynced)
    }
}

/// The event of a line of the metrics, where it has numbers.
fn scalars(record: &Record) -> Option<Vec<u8>> {
    match record {
        Record::Train {
            step,
            epoch,
            loss,
            learning_rate,
            gradient_norm,
            time_unix,
            rate_images_per_second,
            rate_data_wait,
            rate_memory_bytes,
            rate_device_memory_bytes,
            ..
        } => {
            let numbers = [
                ("train/loss", Some(*loss)),
                ("train/learning_rate", Some(*learning_rate)),
                ("train/gradient_norm", Some(*gradient_norm)),
                ("train/epoch", Some(*epoch as f64)),
                ("train/images_per_second", Some(*rate_images_per_second)),
                ("train/data_wait", Some(*rate_data_wait)),
                ("train/memory_bytes", rate_memory_bytes.map(|bytes| bytes as f64)),
                ("train/device_memory_bytes", rate_device_memory_bytes.map(|bytes| bytes as f64)),
            ];
            Some(event::scalars(*time_unix, *step, known(numbers)))
        }
        Record::Eval { step, top1, top5, loss, ema_top1, ema_top5, ema_loss, time_unix, rate_images_per_second, .. } => {
            let numbers = [
                ("eval/top1", Some(*top1)),
                ("eval/top5", Some(*top5)),
                ("eval/loss", Some(*loss)),
                ("eval/ema_top1", *ema_top1),
                ("eval/ema_top5", *ema_top5),
                ("eval/ema_loss", *ema_loss),
                ("eval/images_per_second", Some(*rate_images_per_second)),
            ];
            Some(event::scalars(*time_unix, *step, known(numbers)))
        }
        _ => None,
    }
}

/// The tags that have a number.
fn known<const N: usize>(numbers: [(&str, Option<f64>); N]) -> impl Iterator<Item = (&str, f64)> {
    numbers.into_iter().filter_map(|(tag, number)| Some((tag, number?)))
}

/// A parameter's tag. TensorBoard makes a group of what stands before the slash: a block each.
fn weight_tag(name: &str) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    let group = match parts.as_slice() {
        ["blocks", _, ..] => 2,
        [_, _, ..] => 1,
        _ => 0,
    };
    let (group, rest) = parts.split_at(group);
    std::iter::once("weights").chain(group.iter().copied()).collect::<Vec<_>>().join(".") + "/" + &rest.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_a_group() {
        assert_eq!(weight_tag("blocks.10.attn.qkv.weight"), "weights.blocks.10/attn.qkv.weight");
        assert_eq!(weight_tag("patch_embed.proj.bias"), "weights.patch_embed/proj.bias");
        assert_eq!(weight_tag("cls_token"), "weights/cls_token");
    }
}
