//! Batches from several threads, in an order and with values that do not depend on how many there are.
//!
//! The unit of work is one sample, so that all threads work on the batch that is wanted next; at most
//! [`LoaderConfig::prefetch`] batches are begun and not handed out. A bad image or a panic reaches the caller as an error that
//! names the item: always the first bad item in the epoch's order, whatever thread met one first. Nothing ends an epoch early
//! in silence.

mod images;
mod pool;
mod rows;
mod sample;

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::DataError;
use crate::sampler::{Plan, permutation};
use crate::source::Source;
use crate::transform::Transform;
use images::Spares;
pub use images::{Images, PixelFormat};
use pool::Pool;
use sample::{Epoch, Filling, Kept};

/// Most copies of an item in an epoch.
const MAX_REPEATS: usize = 1000;

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
    /// Batches begun and not handed out, at least 1.
    pub prefetch: usize,
    /// What happens when one image cannot be read.
    pub on_error: OnError,
    /// Which of `world` processes this is, from 0; see [`Plan`] for what each takes.
    pub rank: usize,
    /// How many processes share an epoch, at least 1.
    pub world: usize,
    /// Copies of each item in an epoch, differently augmented: 3 in DeiT's repeated augmentation; 1: none. See [`Plan`].
    pub repeats: usize,
    /// Floats or bytes.
    pub format: PixelFormat,
    /// Most bytes that the pixels of batches begun and not handed out may take: where `prefetch` batches would take more, fewer
    /// are begun, and always at least one. An encoded and a decoded image for each worker come on top.
    pub memory: usize,
}

impl Default for LoaderConfig {
    /// Batches of 64 floats in the source's order, made by one thread, 2 ahead, at most 4 GiB; a bad image is an error.
    fn default() -> Self {
        Self {
            seed: 0,
            batch_size: 64,
            shuffle: false,
            drop_last: false,
            workers: 1,
            prefetch: 2,
            on_error: OnError::Fail,
            rank: 0,
            world: 1,
            repeats: 1,
            format: PixelFormat::F32,
            memory: 4 << 30,
        }
    }
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
    /// Pixels, laid out as `shape` says.
    pub images: Images,
    /// [B, C, H, W]. B is smaller than the nominal size by the number of skipped images; 0 if all were.
    pub shape: [usize; 4],
    /// Class of each image.
    pub labels: Vec<u32>,
    /// Index in the source of each image.
    pub items: Vec<usize>,
    /// Which copy of its item each image is, from 0; see [`LoaderConfig::repeats`].
    pub copies: Vec<u32>,
    /// How many of the images, from the first, count in a score. Those after them fill up this rank's share and are counted by
    /// another rank.
    pub counted: usize,
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
    plan: Plan,
    spares: Arc<Spares>,
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
        if config.world == 0 || config.rank >= config.world {
            let reason = format!("{} of {}, but ranks are 0 to one below their number", config.rank, config.world);
            return Err(DataError::config("rank", reason));
        }
        if config.repeats == 0 || config.repeats > MAX_REPEATS {
            let reason = format!("{}, but an item comes 1 to {MAX_REPEATS} times", config.repeats);
            return Err(DataError::config("repeats", reason));
        }
        let batch_bytes = config.batch_size.checked_mul(transform.sample_bytes(config.format));
        let Some(batch_bytes) = batch_bytes.filter(|&bytes| bytes <= isize::MAX as usize) else {
            return Err(DataError::config("batch_size", format!("{}: a batch would not fit into memory", config.batch_size)));
        };
        let mut config = config;
        config.prefetch = config.prefetch.min((config.memory / batch_bytes.max(1)).max(1));
        let plan = Plan::new(source.len(), config.repeats, config.rank, config.world, config.batch_size, config.drop_last);
        if plan.is_empty() {
            let LoaderConfig { batch_size, world, .. } = config;
            let ranks = if world > 1 { format!(" for each of {world} ranks") } else { String::new() };
            let reason = format!(
                "{batch_size} is more than the {} images there are{ranks}, and drop_last leaves no batch. Use a smaller batch or \
                 keep the last",
                source.len() / world
            );
            return Err(DataError::config("batch_size", reason));
        }
        let spares = Arc::new(Spares::new(config.format, config.prefetch + 2));
        Ok(Self { source, transform: Arc::new(transform), config, order: Mutex::new(None), plan, spares })
    }

    /// Samples of an epoch on this rank, padding included: see [`Plan`].
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.plan.len()
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
        let places = places.map(|position| self.plan.at(position).index);
        if !self.config.shuffle {
            return places.collect();
        }
        let order = self.order(epoch);
        places.map(|place| order[place] as usize).collect()
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
            plan: self.plan,
            batch_size: self.config.batch_size,
            on_error: self.config.on_error,
            spares: Arc::clone(&self.spares),
        };
        let first = first_batch.min(self.batches_per_epoch());
        let maker = match self.config.workers {
            0 => Maker::Caller(Box::new((work, Kept::default()))),
            workers => match Pool::start(work, first, workers, self.config.prefetch) {
                Ok(pool) => Maker::Pool(pool),
                Err(error) => Maker::Failed(Some(error)),
            },
        };
        Batches { maker, next: first, end: self.batches_per_epoch() }
    }

    /// Takes back the pixels of a batch that is done with, so that their memory serves another batch. Not needed, but saves the
    /// cost of fresh memory.
    pub fn recycle(&self, images: Images) {
        self.spares.put(images);
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
    Caller(Box<(Epoch, Kept)>),
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
            Maker::Caller(caller) => {
                let (work, kept) = &mut **caller;
                let mut filling = Filling::new(work, batch);
                for place in 0..filling.len() {
                    let mut row = filling.take_row().expect("a batch has a row for each of its places");
                    let outcome = work.make(batch * work.batch_size + place, kept, &mut row);
                    let fatal = outcome.as_ref().is_err_and(|error| work.is_fatal(error));
                    filling.put(place, outcome);
                    if fatal {
                        break;
                    }
                }
                filling.finish(work, batch)
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
