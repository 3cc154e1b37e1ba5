//! Top-1, top-5 and loss on held-out images.

use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};
use manyheads_data::{Loader, Skipped};
use manyheads_model::VisionTransformer;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::log::progress::Console;
use crate::recipe::loss::judge;
use crate::signals::Stop;

/// The result of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Percentage of images whose label ranks first.
    pub top1: f64,
    /// Percentage of images whose label is among the first five.
    pub top5: f64,
    /// Mean cross-entropy of an image, without label smoothing.
    pub loss: f64,
    /// Images counted.
    pub n: u64,
}

/// An evaluation with what happened on the way.
#[derive(Debug)]
pub struct Evaluation {
    /// The result.
    pub score: Score,
    /// Images left out because they could not be read.
    pub skipped: Vec<Skipped>,
    /// Seconds it took.
    pub seconds: f64,
}

/// Counts over the images seen so far; every image counts once, whatever batch it came in.
#[derive(Debug, Default)]
struct Counts {
    first: u64,
    five: u64,
    loss: f64,
    n: u64,
}

/// Runs `model` (without autodiff, on `device`) over all of `loader`. `None` where `stop` was asked for.
///
/// Ranks and losses are computed on the host in f64 from the logits, so that they do not depend on the batch or the device's sums.
///
/// # Errors
/// Where an image cannot be read, no image can, or the model's output is not finite.
pub fn evaluate(
    model: &VisionTransformer,
    loader: &Loader,
    device: &Device,
    stop: Option<&Stop>,
    console: &Console,
) -> Result<Option<Evaluation>> {
    let start = Instant::now();
    let mut counts = Counts::default();
    let mut skipped = Vec::new();
    // The logits of a batch are read when the next one is already on its way.
    let mut ahead: Option<(Tensor<2>, Vec<u32>, Vec<usize>)> = None;
    let mut batches = loader.epoch(0, 0);
    loop {
        if stop.is_some_and(Stop::asked) {
            return Ok(None);
        }
        let next = match batches.next().transpose()? {
            None => None,
            Some(batch) => {
                skipped.extend(batch.skipped);
                if batch.items.is_empty() {
                    continue;
                }
                let images = Tensor::from_data(TensorData::new(batch.images, batch.shape), device);
                Some((model.forward(images, None), batch.labels, batch.items))
            }
        };
        let done = next.is_none();
        if let Some((logits, labels, items)) = std::mem::replace(&mut ahead, next) {
            counts.add(logits, &labels, &items)?;
            console.count(counts.n, format!("evaluating | top-1 {:.2} %", counts.score().top1));
        }
        if done {
            break;
        }
    }
    if counts.n == 0 {
        return Err(Error::Failed("there is no image to evaluate on: all of them are unreadable".into()));
    }
    Ok(Some(Evaluation { score: counts.score(), skipped, seconds: start.elapsed().as_secs_f64() }))
}

impl Counts {
    fn add(&mut self, logits: Tensor<2>, labels: &[u32], items: &[usize]) -> Result<()> {
        let [_, classes] = logits.dims();
        let data = logits.try_into_data().map_err(|e| Error::Failed(format!("the device failed during the evaluation: {e}")))?;
        let logits: Vec<f32> = data.try_into_vec().map_err(|e| Error::Failed(format!("logits cannot be read back: {e}")))?;
        for ((row, label), item) in logits.chunks_exact(classes).zip(labels).zip(items) {
            if !row.iter().all(|value| value.is_finite()) {
                return Err(Error::Failed(format!(
                    "the model's output for image {item} of the held-out set is not finite: the weights or the image's pixels are broken"
                )));
            }
            let verdict = judge(row, *label as usize);
            self.first += u64::from(verdict.rank == 0);
            self.five += u64::from(verdict.rank < 5);
            self.loss += verdict.loss;
            self.n += 1;
        }
        Ok(())
    }

    fn score(&self) -> Score {
        let n = self.n as f64;
        Score { top1: 100.0 * self.first as f64 / n, top5: 100.0 * self.five as f64 / n, loss: self.loss / n, n: self.n }
    }
}
