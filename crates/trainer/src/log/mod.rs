//! What a run writes down: metrics for programs, TensorBoard's events, a summary for spreadsheets, progress for people.

pub mod dashboard;
mod file;
pub mod jsonl;
pub mod progress;
mod summary;
mod tensorboard;

use std::path::Path;

use manyheads_data::Loader;
use manyheads_model::weights::timm::NamedTensor;

pub use self::file::Unsynced;
use self::jsonl::{Metrics, Record};
use self::summary::Summary;
use self::tensorboard::TensorBoard;
use crate::config::Loaded;
use crate::error::Result;

/// Something that follows the metrics of a run.
pub(crate) trait Sink {
    /// Takes a line of the metrics.
    ///
    /// # Errors
    /// Where it cannot be written.
    fn record(&mut self, record: &Record) -> Result<()>;

    /// Whether it has a use for the weights after an evaluation.
    fn wants_weights(&self) -> bool {
        false
    }

    /// Takes the weights after the evaluation at `step`.
    ///
    /// # Errors
    /// Where it cannot be written.
    fn weights(&mut self, _step: u64, _tensors: &[NamedTensor]) -> Result<()> {
        Ok(())
    }

    /// Adds its file to those that are to reach the disk; returns what people should know of it.
    ///
    /// # Errors
    /// Where it has been removed and cannot be put back.
    fn check(&mut self, _unsynced: &mut Vec<Unsynced>) -> Result<Option<String>> {
        Ok(None)
    }
}

/// The metrics of a run with all that follows them.
pub(crate) struct Log {
    metrics: Metrics,
    sinks: Vec<Box<dyn Sink>>,
}

impl Log {
    /// Opens what follows `metrics`, each restored to what they tell. The second part is what people should know of it.
    ///
    /// # Errors
    /// Where a file cannot be read or written.
    pub fn open(mut metrics: Metrics, run_dir: &Path, loaded: &Loaded, loader: &Loader) -> Result<(Self, Option<String>)> {
        let Loaded { config, architecture, .. } = loaded;
        let records = metrics.records()?;
        let mut sinks: Vec<Box<dyn Sink>> = vec![Box::new(Summary::open(run_dir, &records)?)];
        let mut notice = None;
        if config.log.tensorboard {
            let (events, lost) = TensorBoard::open(run_dir, &records, config, architecture, loader)?;
            sinks.push(Box::new(events));
            notice = lost;
        }
        Ok((Self { metrics, sinks }, notice))
    }

    /// Another follower, which first hears of what there is already, but for what happened long ago.
    ///
    /// # Errors
    /// Where the metrics cannot be read.
    pub fn follow(&mut self, mut sink: Box<dyn Sink>) -> Result<()> {
        for record in self.metrics.records()?.iter().filter(|record| !matches!(record, Record::Event { .. })) {
            sink.record(record)?;
        }
        self.sinks.push(sink);
        Ok(())
    }

    /// Appends a line to the metrics, and what follows from it to the rest.
    ///
    /// # Errors
    /// Where a file cannot be written.
    pub fn write(&mut self, record: &Record) -> Result<()> {
        self.metrics.write(record)?;
        self.sinks.iter_mut().try_for_each(|sink| sink.record(record))
    }

    /// Writes down the weights after the evaluation at `step`, where that is wanted.
    ///
    /// # Errors
    /// Where a file cannot be written.
    pub fn weights(&mut self, step: u64, tensors: impl FnOnce() -> Result<Vec<NamedTensor>>) -> Result<()> {
        let mut wanting = self.sinks.iter_mut().filter(|sink| sink.wants_weights()).peekable();
        if wanting.peek().is_none() {
            return Ok(());
        }
        let tensors = tensors()?;
        wanting.try_for_each(|sink| sink.weights(step, &tensors))
    }

    /// Takes back the lines of the metrics beyond `bytes` bytes: what they tell will be done again by a resumed run, which brings the
    /// rest in line with them.
    ///
    /// # Errors
    /// Where the file cannot be cut.
    pub fn cut(&mut self, bytes: u64) -> Result<()> {
        self.metrics.cut(bytes)
    }

    /// Length of `metrics.jsonl`.
    pub fn bytes(&self) -> u64 {
        self.metrics.bytes()
    }

    /// The files that are to reach the disk, and what people should know of them.
    ///
    /// # Errors
    /// Where one has been removed and cannot be put back.
    pub fn check(&mut self) -> Result<(Vec<Unsynced>, Vec<String>)> {
        let mut unsynced = Vec::new();
        let first = self.metrics.check(&mut unsynced)?;
        let rest = self.sinks.iter_mut().map(|sink| sink.check(&mut unsynced)).collect::<Result<Vec<_>>>()?;
        Ok((unsynced, std::iter::once(first).chain(rest).flatten().collect()))
    }
}
