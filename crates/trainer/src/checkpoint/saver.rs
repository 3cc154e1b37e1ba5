//! Checkpoints written while training goes on.

use std::thread::JoinHandle;

use super::manifest::Manifest;
use super::parts::Parts;
use super::store::{Keep, Store};
use crate::error::{Error, Result};
use crate::log::Unsynced;

/// A checkpoint to be written.
#[derive(Debug)]
pub struct Job {
    /// State of the run.
    pub manifest: Manifest,
    /// Its tensors.
    pub parts: Parts,
    /// The logs as far as the manifest knows them; they reach the disk before the checkpoint does.
    pub logs: Vec<Unsynced>,
    /// Which checkpoints stay once this one is on the disk.
    pub keep: Keep,
}

/// Writes checkpoints in a thread of their own, one at a time, in the order in which they are asked for.
///
/// One that is asked for while another is written waits for it: so no more than one copy of the state is in memory, and neither the last nor
/// the best is ever left out. Dropping it waits too, so that a run that ends, for whatever reason, leaves nothing half-written.
#[derive(Debug)]
pub struct Saver {
    store: Store,
    flight: Option<(u64, JoinHandle<Result<()>>)>,
}

impl Saver {
    /// A writer of checkpoints into `store`.
    pub fn new(store: Store) -> Self {
        Self { store, flight: None }
    }

    /// The step whose checkpoint is being written.
    pub fn writing(&self) -> Option<u64> {
        self.flight.as_ref().map(|(step, _)| *step)
    }

    /// Starts to write; returns the step of the checkpoint that was waited for.
    ///
    /// # Errors
    /// Where the checkpoint before could not be written, or there is no thread to be had.
    pub fn start(&mut self, job: Job) -> Result<Option<u64>> {
        let before = self.wait()?;
        let step = job.manifest.step;
        let store = self.store.clone();
        let write = move || {
            let Job { manifest, parts, logs, keep } = job;
            logs.iter().try_for_each(Unsynced::sync)?;
            store.save(manifest, parts)?;
            store.settle(step, &keep)
        };
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(write);
        self.flight = Some((step, thread.map_err(|e| Error::Failed(format!("cannot start the thread that saves: {e}")))?));
        Ok(before)
    }

    /// The step whose checkpoint has been finished since this was last called, without waiting.
    ///
    /// # Errors
    /// Why it could not be written.
    pub fn poll(&mut self) -> Result<Option<u64>> {
        match &self.flight {
            Some((_, thread)) if thread.is_finished() => self.wait(),
            _ => Ok(None),
        }
    }

    /// Waits until nothing is being written; returns the step of the checkpoint that was.
    ///
    /// # Errors
    /// Why it could not be written.
    pub fn wait(&mut self) -> Result<Option<u64>> {
        let Some((step, thread)) = self.flight.take() else { return Ok(None) };
        let failed =
            |_| Error::Failed(format!("checkpoint step-{step:08} was not written: its thread failed in the way told above"));
        thread.join().map_err(failed)??;
        Ok(Some(step))
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        // Who wants to know how it went has waited before.
        let _ = self.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::checkpoint::{DataFingerprint, FORMAT, Part, Phase};
    use manyheads_model::weights::timm::NamedTensor;

    fn job(step: u64, value: f32, keep: Keep) -> Job {
        let data = DataFingerprint {
            train_images: 1,
            val_images: 1,
            classes: vec!["a".into()],
            train_files: String::new(),
            val_files: String::new(),
        };
        let manifest = Manifest {
            format: FORMAT,
            version: "0".into(),
            step,
            phase: Phase::Done,
            best: None,
            last: None,
            pending: Vec::new(),
            skipped_steps: 0,
            metrics_bytes: 0,
            data,
            files: Default::default(),
            sha256: String::new(),
        };
        let tensor = || Part::from(NamedTensor { name: "x".into(), shape: vec![1], values: vec![value] });
        let parts = Parts { model: vec![tensor()], ema: None, optimizer: vec![tensor()], config: String::new() };
        Job { manifest, parts, logs: Vec::new(), keep }
    }

    #[test]
    fn every_checkpoint_is_written_and_those_to_keep_stay() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        store.create().unwrap();
        let mut saver = Saver::new(store.clone());
        for step in 1..=9 {
            let keep = Keep { newest: 2, best: Some(3), every: Some(4) };
            let before = saver.start(job(step, step as f32, keep)).unwrap();
            assert_eq!(before, (step > 1).then_some(step - 1), "one waits for the other");
            assert_eq!(saver.writing(), Some(step));
        }
        assert_eq!(saver.wait().unwrap(), Some(9));
        assert_eq!((saver.wait().unwrap(), saver.writing()), (None, None));
        assert_eq!(store.steps().unwrap(), [3, 4, 8, 9]);
        for step in [3, 4, 8, 9] {
            assert_eq!(store.load(step).unwrap().model["x"].values, [step as f32]);
        }
    }

    #[test]
    fn an_error_is_told_once_and_leaves_the_checkpoint_before() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        store.create().unwrap();
        let keep = Keep { newest: 1, best: None, every: None };
        let mut saver = Saver::new(store.clone());
        saver.start(job(1, 1.0, keep)).unwrap();
        saver.wait().unwrap();
        saver.start(job(2, f32::INFINITY, keep)).unwrap();
        let error = saver.wait().unwrap_err().to_string();
        assert!(error.contains("after step 2 the tensor x is not finite") && error.contains("step-00000001"), "{error}");
        assert_eq!(saver.poll().unwrap(), None);
        assert_eq!(store.steps().unwrap(), [1]);
        assert!(
            fs::read_dir(dir.path().join("checkpoints"))
                .unwrap()
                .flatten()
                .all(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        );
        fs::rename(dir.path().join("checkpoints"), dir.path().join("gone")).unwrap();
        saver.start(job(3, 1.0, keep)).unwrap();
        while saver.writing().is_some() {
            if let Err(error) = saver.poll() {
                assert!(error.to_string().contains("step-00000003 was not written"), "{error}");
            }
        }
    }

    #[test]
    fn dropping_it_waits() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        store.create().unwrap();
        let mut saver = Saver::new(store.clone());
        saver.start(job(5, 1.0, Keep { newest: 1, best: None, every: None })).unwrap();
        drop(saver);
        assert_eq!(store.steps().unwrap(), [5]);
    }
}
