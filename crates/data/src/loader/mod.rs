//! Batches from several threads, in an order and with values that do not depend on how many there are.
//!
//! The unit of work is one sample, so that all threads work on the batch that is wanted next; at most
//! [`LoaderConfig::prefetch`] batches are begun and not handed out. A bad image or a panic reaches the caller as an error that
//! names the item: always the first bad item in the epoch's order, whatever thread met one first. Nothing ends an epoch early
//! in silence.

mod pool;
mod sample;

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::DataError;
use crate::sampler::permutation;
use crate::source::Source;
use crate::transform::Transform;
use pool::Pool;
use sample::{Epoch, Filled};

/// What happens when one image cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// The epoch ends with an error that names it.
    #[default]
    Fail,
    /// It is left out of its batch and listed in [`Batch::skipped`].
    Skip,
}

/// How an epoch is cut into batches and who makes them.
#[derive(Clone, Debug, PartialEq)]
pub struct LoaderConfig {
    /// Seed of the order and of every random transform.
    pub seed: u64,
    /// Samples in a batch.
    pub batch_size: usize,
    /// Whether each epoch has its own random order; otherwise the source's.
    pub shuffle: bool,
    /// Whether a last batch smaller than `batch_size` is left out.
    pub drop_last: bool,
    /// Threads that read, decode and transform; 0: the caller's own. Changes the speed and nothing else.
    pub workers: usize,
    /// Batches begun and not handed out, at least 1. Each takes `batch_size * C * H * W * 4` bytes.
    pub prefetch: usize,
    /// What happens when one image cannot be read.
    pub on_error: OnError,
}

/// An image left out of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its index in the source.
    pub item: usize,
    /// Its name.
    pub name: String,
    /// What is wrong with it, with its name.
    pub reason: String,
}

/// A batch in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Normalised pixels, laid out as `shape` says.
    pub images: Vec<f32>,
    /// [B, C, H, W]. B is smaller than the nominal size by the number of skipped images; 0 if all were.
    pub shape: [usize; 4],
    /// Class of each image.
    pub labels: Vec<u32>,
    /// Index in the source of each image.
    pub items: Vec<usize>,
    /// Images left out, in order.
    pub skipped: Vec<Skipped>,
    /// Epoch, from 0.
    pub epoch: u64,
    /// Position in the epoch, from 0.
    pub batch: usize,
}

/// Makes the batches of any epoch from any position.
pub struct Loader {
    source: Arc<dyn Source>,
    transform: Arc<Transform>,
    config: LoaderConfig,
    /// The order last asked for; making one of 1.28 million items takes some 10 ms.
    order: Mutex<Option<(u64, Arc<Vec<u32>>)>>,
}

impl Loader {
    /// Checks the settings and makes a loader. No thread is started yet.
    ///
    /// # Errors
    /// [`DataError::Config`] naming the setting.
    pub fn new(source: Arc<dyn Source>, transform: Transform, config: LoaderConfig) -> Result<Self, DataError> {
        transform.validate()?;
        if config.batch_size == 0 {
            return Err(DataError::config("batch_size", "0, but a batch has at least 1 sample"));
        }
        if config.prefetch == 0 {
            return Err(DataError::config("prefetch", "0, but at least 1 batch must be in the making"));
        }
        if source.is_empty() || u32::try_from(source.len()).is_err() {
            let reason = format!("a source of {} images, but 1 to {} are possible", source.len(), u32::MAX);
            return Err(DataError::config("source", reason));
        }
        let [channels, height, width] = transform.sample_shape();
        if config.batch_size.checked_mul(channels * height * width * 4).is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(DataError::config("batch_size", format!("{}: a batch would not fit into memory", config.batch_size)));
        }
        let loader = Self { source, transform: Arc::new(transform), config, order: Mutex::new(None) };
        if loader.batches_per_epoch() == 0 {
            let reason = format!(
                "{} is more than the {} images there are, and drop_last leaves no batch. Use a smaller batch or keep the last",
                loader.config.batch_size,
                loader.source.len()
            );
            return Err(DataError::config("batch_size", reason));
        }
        Ok(loader)
    }

    /// Samples of an epoch: all, or with `drop_last` those in whole batches.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        let (all, batch) = (self.source.len(), self.config.batch_size);
        if self.config.drop_last { all / batch * batch } else { all }
    }

    /// Batches of an epoch, at least 1.
    pub fn batches_per_epoch(&self) -> usize {
        self.len().div_ceil(self.config.batch_size)
    }

    /// Samples of a batch before any is skipped; 0 past the end.
    pub fn batch_len(&self, batch: usize) -> usize {
        let start = batch.saturating_mul(self.config.batch_size);
        self.len().saturating_sub(start).min(self.config.batch_size)
    }

    /// Indices in the source of a batch's samples, in order and before any is skipped; empty past the end.
    pub fn items(&self, epoch: u64, batch: usize) -> Vec<usize> {
        let start = batch.saturating_mul(self.config.batch_size);
        let places = start..start + self.batch_len(batch);
        if places.is_empty() || !self.config.shuffle {
            return places.collect();
        }
        self.order(epoch)[places].iter().map(|&item| item as usize).collect()
    }

    /// Batches of an epoch from `first_batch` on; those before cost nothing. Past the end there are none.
    ///
    /// Starts the threads; dropping the iterator stops them, waiting for the samples in hand and no more.
    pub fn epoch(&self, epoch: u64, first_batch: usize) -> Batches {
        let work = Epoch {
            source: Arc::clone(&self.source),
            transform: Arc::clone(&self.transform),
            order: self.config.shuffle.then(|| self.order(epoch)),
            seed: self.config.seed,
            epoch,
            batch_size: self.config.batch_size,
            len: self.len(),
            on_error: self.config.on_error,
        };
        let first = first_batch.min(self.batches_per_epoch());
        let maker = match self.config.workers {
            0 => Maker::Caller(Box::new(work)),
            workers => match Pool::start(work, first, workers, self.config.prefetch) {
                Ok(pool) => Maker::Pool(pool),
                Err(error) => Maker::Failed(Some(error)),
            },
        };
        Batches { maker, next: first, end: self.batches_per_epoch() }
    }

    /// Where the images come from.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    /// What is done with each.
    pub fn transform(&self) -> &Transform {
        &self.transform
    }

    /// The settings.
    pub fn config(&self) -> &LoaderConfig {
        &self.config
    }

    fn order(&self, epoch: u64) -> Arc<Vec<u32>> {
        let mut cached = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cached {
            Some((known, order)) if *known == epoch => Arc::clone(order),
            _ => {
                let order = Arc::new(permutation(self.source.len(), self.config.seed, epoch));
                *cached = Some((epoch, Arc::clone(&order)));
                order
            }
        }
    }
}

enum Maker {
    Caller(Box<Epoch>),
    Pool(Pool),
    Failed(Option<DataError>),
}

/// The batches of one epoch, in order. After an error there are no more.
pub struct Batches {
    maker: Maker,
    next: usize,
    end: usize,
}

impl Iterator for Batches {
    type Item = Result<Batch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.end {
            // Threads are of no use any more.
            self.maker = Maker::Failed(None);
            return None;
        }
        let batch = self.next;
        let result = match &mut self.maker {
            Maker::Caller(work) => {
                let mut filled = Filled::new(work, batch);
                let mut row = vec![0.0; work.sample_len()];
                for place in 0..filled.len() {
                    let outcome = work.make(batch * work.batch_size + place, &mut row);
                    filled.put(place, outcome, &row);
                    if filled.failed() {
                        break;
                    }
                }
                filled.finish(work, batch)
            }
            Maker::Pool(pool) => pool.take(batch),
            Maker::Failed(error) => Err(error.take()?),
        };
        self.next += 1;
        if result.is_err() {
            self.next = self.end;
            self.maker = Maker::Failed(None);
        }
        Some(result)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.end.saturating_sub(self.next)))
    }
}

impl std::iter::FusedIterator for Batches {}
