//! Top-1, top-5 and loss on held-out images.

use std::time::Instant;

use burn::tensor::{Device, FloatDType, Tensor};
use manyheads_data::{Loader, Skipped};
use manyheads_model::VisionTransformer;
use serde::{Deserialize, Serialize};

use super::device::failed;
use super::protocol::Protocol;
use super::upload::shown;
use crate::config::Precision;
use crate::error::{Error, Result};
use crate::log::progress::Console;
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
    /// The result for each class of the dataset; the loss is that of its images.
    pub per_class: Vec<Score>,
    /// Images that went through the network, with and without a label that counts.
    pub images: u64,
    /// Images left out because they could not be read.
    pub skipped: Vec<Skipped>,
    /// Seconds it took.
    pub seconds: f64,
}

/// What is evaluated, and how.
pub struct Job<'a> {
    /// The network, without autodiff, on `device`.
    pub model: &'a VisionTransformer,
    /// The images, each once.
    pub loader: &'a Loader,
    /// Where the network is.
    pub device: &'a Device,
    /// Type of the matrix products; norms, softmax and token sums stay f32.
    pub compute: FloatDType,
    /// What counts as right.
    pub protocol: &'a Protocol,
}

/// One image with what the network says of it.
#[derive(Debug)]
pub struct Seen<'a> {
    /// Its number in the dataset.
    pub item: usize,
    /// Its label in the dataset.
    pub label: usize,
    /// The network's logits.
    pub logits: &'a [f32],
}

/// Counts over the images seen so far; every image counts once, whatever batch it came in.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    first: u64,
    five: u64,
    judged: u64,
    loss: f64,
    images: u64,
}

impl Counts {
    fn add(&mut self, rank: Option<usize>, loss: f64) {
        if let Some(rank) = rank {
            self.first += u64::from(rank == 0);
            self.five += u64::from(rank < 5);
            self.judged += 1;
        }
        self.loss += loss;
        self.images += 1;
    }

    fn score(&self) -> Score {
        let share = |count: u64| 100.0 * count as f64 / self.judged as f64;
        Score { top1: share(self.first), top5: share(self.five), loss: self.loss / self.images as f64, n: self.judged }
    }
}

/// Evaluates a network by the plain protocol, with matrix products in `precision`. `None` where `stop` was asked for.
///
/// # Errors
/// As [`Job::run`].
pub fn evaluate(
    model: &VisionTransformer,
    loader: &Loader,
    device: &Device,
    precision: Precision,
    stop: Option<&Stop>,
    console: &Console,
) -> Result<Option<Evaluation>> {
    let job = Job { model, loader, device, compute: precision.float(), protocol: &Protocol::default() };
    job.run(stop, console, &mut |_| Ok(()))
}

impl Job<'_> {
    /// Runs the network over all images; `each` sees every one, in order. `None` where `stop` was asked for.
    ///
    /// Ranks and losses are computed on the host in f64 from the logits, so that they do not depend on the batch or the device's
    /// sums.
    ///
    /// # Errors
    /// Where an image cannot be read, none counts, the model's output is not finite, or `each` fails.
    pub fn run(
        &self,
        stop: Option<&Stop>,
        console: &Console,
        each: &mut dyn FnMut(&Seen<'_>) -> Result<()>,
    ) -> Result<Option<Evaluation>> {
        let start = Instant::now();
        let classes = self.loader.source().classes().len();
        let mut all = Counts::default();
        let mut per_class = vec![Counts::default(); classes];
        let mut skipped = Vec::new();
        // The logits of a batch are read when the next one is already on its way.
        let mut ahead: Option<(Tensor<2>, Vec<u32>, Vec<usize>, usize)> = None;
        let mut batches = self.loader.epoch(0, 0);
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
                    let (mean, std) = self.loader.transform().normalisation();
                    let to = (self.model.byte_patch(), self.compute);
                    let pixels = shown(batch.images, batch.shape, [mean, std], self.device, to);
                    Some((self.model.forward(pixels, None), batch.labels, batch.items, batch.counted))
                }
            };
            let done = next.is_none();
            if let Some((logits, labels, items, counted)) = std::mem::replace(&mut ahead, next) {
                let rows = self.rows(logits)?;
                // What fills up this share is counted in another.
                let labelled = rows.iter().zip(labels).zip(items).take(counted);
                for ((row, label), item) in labelled.map(|((row, label), item)| ((row, label as usize), item)) {
                    if !row.iter().all(|value| value.is_finite()) {
                        return Err(Error::Failed(format!(
                            "the model's output for {} is not finite: the weights or the image's pixels are broken",
                            self.loader.source().name(item)
                        )));
                    }
                    let judged = self.protocol.judge(row, item, label);
                    all.add(judged.rank, judged.loss);
                    per_class[label].add(judged.rank, judged.loss);
                    each(&Seen { item, label, logits: row })?;
                }
                console.count(all.images, format!("evaluating | top-1 {:.2} %", all.score().top1));
            }
            if done {
                break;
            }
        }
        if all.images == 0 {
            return Err(Error::Failed("there is no image to evaluate on: all of them are unreadable".into()));
        }
        if all.judged == 0 {
            return Err(Error::Failed("none of the images has a label to compare with".into()));
        }
        Ok(Some(Evaluation {
            score: all.score(),
            per_class: per_class.iter().map(Counts::score).collect(),
            images: all.images,
            skipped,
            seconds: start.elapsed().as_secs_f64(),
        }))
    }

    fn rows(&self, logits: Tensor<2>) -> Result<Vec<Vec<f32>>> {
        let [_, classes] = logits.dims();
        let failed = |e: String| Error::Failed(failed("during the evaluation", &e));
        let data = logits.cast(FloatDType::F32).try_into_data().map_err(|e| failed(e.to_string()))?;
        let values: Vec<f32> = data.try_into_vec().map_err(|e| failed(e.to_string()))?;
        Ok(values.chunks_exact(classes).map(<[f32]>::to_vec).collect())
    }
}
