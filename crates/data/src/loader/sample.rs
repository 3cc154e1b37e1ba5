//! One sample, and the batch it goes into: what is the same for any number of threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::images::{ImageRow, Spares, SplitImages};
use super::{Batch, OnError, Skipped};
use crate::augment::Patch;
use crate::decode::panic_message;
use crate::error::DataError;
use crate::random::{Purpose, stream};
use crate::sampler::Plan;
use crate::source::Source;
use crate::transform::{Scratch, Transform};

/// All that the samples of an epoch depend on.
pub(super) struct Epoch {
    pub(super) source: Arc<dyn Source>,
    pub(super) transform: Arc<Transform>,
    /// Random order of the source's items; none: the source's own.
    pub(super) order: Option<Arc<Vec<u32>>>,
    pub(super) plan: Plan,
    pub(super) seed: u64,
    pub(super) epoch: u64,
    pub(super) batch_size: usize,
    pub(super) on_error: OnError,
    pub(super) spares: Arc<Spares>,
}

/// A sample of the epoch.
struct Sample {
    item: usize,
    copy: u32,
    padding: bool,
}

/// What a sample has beside its pixels.
pub(super) struct Made {
    label: u32,
    /// What is erased in it, where its pixels are bytes.
    patches: Vec<Patch>,
}

/// What a thread keeps between samples.
#[derive(Default)]
pub(super) struct Kept {
    bytes: Vec<u8>,
    scratch: Scratch,
}

impl Epoch {
    fn sample(&self, position: usize) -> Sample {
        let place = self.plan.at(position);
        let item = self.order.as_ref().map_or(place.index, |order| order[place.index] as usize);
        Sample { item, copy: place.copy, padding: place.padding }
    }

    /// Samples of the epoch.
    pub(super) fn len(&self) -> usize {
        self.plan.len()
    }

    /// Values of one sample.
    fn sample_len(&self) -> usize {
        self.transform.sample_shape().iter().product()
    }

    /// Samples of a batch.
    fn batch_len(&self, batch: usize) -> usize {
        (self.len() - batch * self.batch_size).min(self.batch_size)
    }

    /// Reads, decodes and transforms the sample at a position into its row. A panic becomes an error.
    pub(super) fn make(&self, position: usize, kept: &mut Kept, row: &mut ImageRow) -> Result<Made, DataError> {
        let Sample { item, copy, .. } = self.sample(position);
        let made = catch_unwind(AssertUnwindSafe(|| {
            let Kept { bytes, scratch } = kept;
            let mut patches = Vec::new();
            let bytes = self.source.read_into(item, bytes)?;
            // Copies of an item in one epoch have streams of their own.
            let mut rng = stream(self.seed, Purpose::Augment, self.epoch, item as u64);
            rng.set_stream(copy.into());
            self.transform.load(bytes, &mut rng, scratch, row.output(&mut patches)).map_err(|error| match error {
                // The name costs an allocation, and only a message needs it.
                DataError::BadImage { reason, .. } => DataError::BadImage { name: self.source.name(item), reason },
                other => other,
            })?;
            Ok(Made { label: self.source.label(item) as u32, patches })
        }));
        made.unwrap_or_else(|panic| {
            // Half-changed buffers serve no other sample.
            *kept = Kept::default();
            let name = catch_unwind(AssertUnwindSafe(|| self.source.name(item))).unwrap_or_else(|_| format!("item {item}"));
            Err(DataError::WorkerPanic { name, message: panic_message(&*panic) })
        })
    }

    /// Whether an error ends the epoch.
    pub(super) fn is_fatal(&self, error: &DataError) -> bool {
        self.on_error == OnError::Fail || !error.is_item_error()
    }
}

/// A batch in the making: a row and an outcome for each place.
pub(super) struct Filling {
    images: SplitImages,
    /// Rows not yet taken, the next one last.
    rows: Vec<ImageRow>,
    outcomes: Vec<Option<Result<Made, DataError>>>,
}

impl Filling {
    pub(super) fn new(epoch: &Epoch, batch: usize) -> Self {
        let len = epoch.batch_len(batch);
        let (images, mut rows) = epoch.spares.take(len * epoch.sample_len()).split(epoch.sample_len());
        rows.reverse();
        Self { images, rows, outcomes: (0..len).map(|_| None).collect() }
    }

    pub(super) fn len(&self) -> usize {
        self.outcomes.len()
    }

    /// The next place's row; rows are taken in order.
    pub(super) fn take_row(&mut self) -> Option<ImageRow> {
        self.rows.pop()
    }

    pub(super) fn put(&mut self, place: usize, outcome: Result<Made, DataError>) {
        self.outcomes[place] = Some(outcome);
    }

    /// The batch, or the error of the first place that ends the epoch. Good rows move up over skipped ones.
    pub(super) fn finish(self, epoch: &Epoch, batch: usize) -> Result<Batch, DataError> {
        let [channels, height, width] = epoch.transform.sample_shape();
        let sample_len = epoch.sample_len();
        drop(self.rows);
        let mut images = self.images.join().expect("every row has been given back");
        let (mut labels, mut items, mut copies) = (Vec::new(), Vec::new(), Vec::new());
        let (mut erased, mut skipped, mut counted, mut failure) = (Vec::new(), Vec::new(), 0, None);
        for (place, outcome) in self.outcomes.into_iter().enumerate() {
            let Sample { item, copy, padding } = epoch.sample(batch * epoch.batch_size + place);
            match outcome {
                Some(Ok(Made { label, patches })) => {
                    let row = labels.len();
                    if row != place {
                        images.move_row(place, row, sample_len);
                    }
                    erased.extend(patches.into_iter().map(|patch| (row, patch)));
                    labels.push(label);
                    items.push(item);
                    copies.push(copy);
                    counted += usize::from(!padding);
                }
                Some(Err(error)) if epoch.is_fatal(&error) => {
                    failure = Some(error);
                    break;
                }
                // The rank that counts the item reports it.
                Some(Err(_)) if padding => {}
                Some(Err(error)) => {
                    skipped.push(Skipped { item, name: epoch.source.name(item), reason: error.to_string() });
                }
                // Only places after one that ends the epoch are left open.
                None => break,
            }
        }
        if let Some(error) = failure {
            epoch.spares.put(images);
            return Err(error);
        }
        images.complete(labels.len() * sample_len, erased);
        let shape = [labels.len(), channels, height, width];
        Ok(Batch { images, shape, labels, items, copies, counted, skipped, epoch: epoch.epoch, batch })
    }
}
