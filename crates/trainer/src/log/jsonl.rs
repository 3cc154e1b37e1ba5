//! `metrics.jsonl`: one JSON object a line, that two equal runs write alike but for keys that begin with `time_` or `rate_`.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::file::{LogFile, Unsynced};
use crate::error::{Error, Result};

/// A line of the metrics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Record {
    /// Training since the last such line.
    Train {
        /// Updates done since the start of the run.
        step: u64,
        /// Epoch of the last of them, from 0.
        epoch: u64,
        /// Mean loss of an image, with label smoothing.
        loss: f64,
        /// Learning rate of the last step.
        learning_rate: f64,
        /// L2 norm of the whole gradient of the last step, before clipping.
        gradient_norm: f64,
        /// Images trained on since the last line.
        images: u64,
        /// Seconds since the process started training.
        time_seconds: f64,
        /// Seconds since 1970.
        #[serde(default)]
        time_unix: f64,
        /// Images a second since the last line, waiting included.
        rate_images_per_second: f64,
        /// Share of the time since the last line in which the loop waited for the loader, 0 to 1.
        rate_data_wait: f64,
        /// Main memory that the process holds, in bytes, where the system tells.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate_memory_bytes: Option<u64>,
        /// Memory that the backend holds on a device of its own, what is kept for reuse included, in bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate_device_memory_bytes: Option<u64>,
    },
    /// An evaluation on the held-out images.
    Eval {
        /// Updates done.
        step: u64,
        /// Epoch that ended with it, from 0.
        epoch: u64,
        /// Percentage of images whose label ranks first.
        top1: f64,
        /// Percentage of images whose label is among the first five.
        top5: f64,
        /// Mean cross-entropy, without label smoothing.
        loss: f64,
        /// Images counted.
        n: u64,
        /// The averaged weights' percentage of images whose label ranks first, where an average is kept.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ema_top1: Option<f64>,
        /// Their percentage of images whose label is among the first five.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ema_top5: Option<f64>,
        /// Their mean cross-entropy.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ema_loss: Option<f64>,
        /// Images left out because they could not be read.
        skipped: u64,
        /// Seconds since the process started training.
        time_seconds: f64,
        /// Seconds since 1970.
        #[serde(default)]
        time_unix: f64,
        /// Seconds it took.
        time_evaluation_seconds: f64,
        /// Images a second.
        rate_images_per_second: f64,
    },
    /// A checkpoint that the configuration asks for at this step.
    Checkpoint {
        /// Its step.
        step: u64,
        /// Its folder below the run.
        path: String,
    },
    /// Something worth knowing.
    Event {
        /// Updates done when it happened.
        step: u64,
        /// What happened: `bad-image`.
        event: String,
        /// The file it is about.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Seconds since 1970.
pub fn unix_time() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// The open metrics of a run.
#[derive(Debug)]
pub struct Metrics {
    path: PathBuf,
    run_dir: PathBuf,
    log: LogFile,
}

impl Metrics {
    /// Opens the metrics to go on after `bytes` bytes; what stands behind them is of steps that will be done again.
    ///
    /// # Errors
    /// Where the file cannot be opened, or is shorter: then lines are missing that the checkpoint knows of.
    pub fn open(run_dir: &Path, bytes: u64) -> Result<Self> {
        let path = run_dir.join("metrics.jsonl");
        let open = || -> std::io::Result<(File, u64)> {
            let mut file = OpenOptions::new().create(true).write(true).read(true).truncate(false).open(&path)?;
            let length = file.metadata()?.len();
            if length >= bytes {
                if bytes > 0 {
                    let mut last = [0];
                    file.seek(SeekFrom::Start(bytes - 1))?;
                    file.read_exact(&mut last)?;
                    if last != *b"\n" {
                        return Err(std::io::Error::other(
                            "it has been edited: no line ends where the checkpoint's lines end. Put it back, or start a new run",
                        ));
                    }
                }
                file.set_len(bytes)?;
                file.seek(SeekFrom::End(0))?;
            }
            Ok((file, length))
        };
        let (file, length) = open().map_err(|e| Error::io("open", &path, &e))?;
        if length < bytes {
            return Err(Error::Failed(format!(
                "{} has {length} bytes, but {bytes} had been written when the checkpoint was taken; put the missing lines back, \
                 or start a new run",
                path.display()
            )));
        }
        Ok(Self { log: LogFile::adopt(path.clone(), file, bytes), run_dir: run_dir.into(), path })
    }

    /// Every line so far.
    ///
    /// # Errors
    /// Where the file cannot be read, naming the line.
    pub fn records(&mut self) -> Result<Vec<Record>> {
        let bytes = self.log.contents()?;
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).enumerate();
        lines
            .map(|(number, line)| {
                serde_json::from_slice(line).map_err(|e| {
                    let path = self.path.display();
                    Error::Failed(format!("{path}: line {} cannot be read: {e}. Put it back, or start a new run", number + 1))
                })
            })
            .collect()
    }

    /// Appends a line. It is handed to the system at once, so that it survives the process.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn write(&mut self, record: &Record) -> Result<()> {
        let mut line = serde_json::to_vec(record).expect("a record has only values that JSON can hold");
        line.push(b'\n');
        self.log.append(&line)
    }

    /// Takes back the lines beyond `bytes` bytes.
    ///
    /// # Errors
    /// Where the file cannot be cut.
    pub fn cut(&mut self, bytes: u64) -> Result<()> {
        self.log.cut(bytes)
    }

    /// Length of the file.
    pub fn bytes(&self) -> u64 {
        self.log.bytes()
    }

    /// Adds the file to those that are to reach the disk. One that was removed meanwhile is put back, which the returned text says.
    ///
    /// # Errors
    /// Where it cannot be put back.
    pub(crate) fn check(&mut self, unsynced: &mut Vec<Unsynced>) -> Result<Option<String>> {
        self.log.check(&self.run_dir, unsynced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(step: u64) -> Record {
        Record::Checkpoint { step, path: format!("checkpoints/step-{step:08}") }
    }

    #[test]
    fn reopening_cuts_what_a_checkpoint_does_not_know_and_goes_on_there() {
        let dir = tempfile::tempdir().unwrap();
        let mut metrics = Metrics::open(dir.path(), 0).unwrap();
        metrics.write(&record(1)).unwrap();
        let known = metrics.bytes();
        metrics.write(&record(2)).unwrap();
        let mut metrics = Metrics::open(dir.path(), known).unwrap();
        metrics.write(&record(3)).unwrap();
        assert_eq!(metrics.records().unwrap(), [record(1), record(3)]);
        let text = std::fs::read_to_string(dir.path().join("metrics.jsonl")).unwrap();
        let lines: Vec<Record> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines, [record(1), record(3)]);
        assert_eq!(metrics.bytes(), text.len() as u64);
        assert!(text.starts_with("{\"kind\":\"checkpoint\",\"step\":1,"));
        let error = Metrics::open(dir.path(), 10_000).unwrap_err();
        assert!(error.to_string().contains("metrics.jsonl"), "{error}");
    }
}
