//! One sample, and the batch it goes into: what is the same for any number of threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{Batch, OnError, Skipped};
use crate::decode::{decode_rgb, panic_message};
use crate::error::DataError;
use crate::random::{Purpose, stream};
use crate::source::Source;
use crate::transform::Transform;

/// All that the samples of an epoch depend on.
pub(super) struct Epoch {
    pub(super) source: Arc<dyn Source>,
    pub(super) transform: Arc<Transform>,
    /// Random order of the source's items; none: the source's own.
    pub(super) order: Option<Arc<Vec<u32>>>,
    pub(super) seed: u64,
    pub(super) epoch: u64,
    pub(super) batch_size: usize,
    /// Samples of the epoch.
    pub(super) len: usize,
    pub(super) on_error: OnError,
}

impl Epoch {
    /// Index in the source of the sample at a position of the epoch.
    pub(super) fn item(&self, position: usize) -> usize {
        self.order.as_ref().map_or(position, |order| order[position] as usize)
    }

    /// Values of one sample.
    pub(super) fn sample_len(&self) -> usize {
        self.transform.sample_shape().iter().product()
    }

    /// Samples of a batch.
    pub(super) fn batch_len(&self, batch: usize) -> usize {
        (self.len - batch * self.batch_size).min(self.batch_size)
    }

    /// Reads, decodes and transforms the sample at a position into `out`; returns its label. A panic becomes an error.
    pub(super) fn make(&self, position: usize, out: &mut [f32]) -> Result<u32, DataError> {
        let item = self.item(position);
        let made = catch_unwind(AssertUnwindSafe(|| {
            let bytes = self.source.read(item)?;
            let name = || self.source.name(item);
            // The name costs an allocation, and only a message needs it.
            let pixels = decode_rgb(&bytes, "").map_err(|error| match error {
                DataError::BadImage { reason, .. } => DataError::BadImage { name: name(), reason },
                other => other,
            })?;
            let mut rng = stream(self.seed, Purpose::Augment, self.epoch, item as u64);
            self.transform.apply(&pixels, &mut rng, out)?;
            Ok(self.source.label(item) as u32)
        }));
        made.unwrap_or_else(|panic| {
            let name = catch_unwind(AssertUnwindSafe(|| self.source.name(item))).unwrap_or_else(|_| format!("item {item}"));
            Err(DataError::WorkerPanic { name, message: panic_message(&*panic) })
        })
    }

    /// Whether an error ends the epoch.
    pub(super) fn is_fatal(&self, error: &DataError) -> bool {
        self.on_error == OnError::Fail || !error.is_item_error()
    }
}

/// A batch in the making: a row of values and an outcome for each place.
pub(super) struct Filled {
    images: Vec<f32>,
    outcomes: Vec<Option<Result<u32, DataError>>>,
    sample_len: usize,
    on_error: OnError,
    failed: bool,
}

impl Filled {
    pub(super) fn new(epoch: &Epoch, batch: usize) -> Self {
        let (len, sample_len) = (epoch.batch_len(batch), epoch.sample_len());
        Self {
            images: vec![0.0; len * sample_len],
            outcomes: (0..len).map(|_| None).collect(),
            sample_len,
            on_error: epoch.on_error,
            failed: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.outcomes.len()
    }

    /// Whether an outcome ends the epoch.
    pub(super) fn failed(&self) -> bool {
        self.failed
    }

    pub(super) fn put(&mut self, place: usize, outcome: Result<u32, DataError>, row: &[f32]) {
        match &outcome {
            Ok(_) => self.images[place * self.sample_len..][..self.sample_len].copy_from_slice(row),
            Err(error) => self.failed |= self.on_error == OnError::Fail || !error.is_item_error(),
        }
        self.outcomes[place] = Some(outcome);
    }

    /// The batch, or the error of the first place that ends the epoch. Good rows move up over skipped ones.
    pub(super) fn finish(mut self, epoch: &Epoch, batch: usize) -> Result<Batch, DataError> {
        let [channels, height, width] = epoch.transform.sample_shape();
        let (mut labels, mut items, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
        for (place, outcome) in self.outcomes.into_iter().enumerate() {
            let item = epoch.item(batch * epoch.batch_size + place);
            match outcome {
                Some(Ok(label)) => {
                    let from = place * self.sample_len;
                    if labels.len() != place {
                        self.images.copy_within(from..from + self.sample_len, labels.len() * self.sample_len);
                    }
                    labels.push(label);
                    items.push(item);
                }
                Some(Err(error)) if epoch.is_fatal(&error) => return Err(error),
                Some(Err(error)) => {
                    skipped.push(Skipped { item, name: epoch.source.name(item), reason: error.to_string() });
                }
                // Only places after one that ends the epoch are left open.
                None => break,
            }
        }
        self.images.truncate(labels.len() * self.sample_len);
        let shape = [labels.len(), channels, height, width];
        Ok(Batch { images: self.images, shape, labels, items, skipped, epoch: epoch.epoch, batch })
    }
}
