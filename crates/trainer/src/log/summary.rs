//! `summary.csv`: a row an epoch, for spreadsheets. It follows from the metrics alone, so that a resumed run makes it anew.

use std::path::{Path, PathBuf};

use super::Sink;
use super::file::{LogFile, Unsynced};
use super::jsonl::Record;
use crate::error::Result;

const HEADER: &str =
    "step,epoch,train_loss,learning_rate,eval_loss,top1,top5,ema_loss,ema_top1,ema_top5,images_per_second,seconds\n";

/// The open summary of a run.
#[derive(Debug)]
pub(super) struct Summary {
    run_dir: PathBuf,
    log: LogFile,
    rows: Rows,
}

/// Turns lines of the metrics into rows.
#[derive(Debug, Default)]
struct Rows {
    open: Option<Epoch>,
}

/// An epoch whose row is still to come.
#[derive(Debug, Default)]
struct Epoch {
    number: u64,
    step: u64,
    loss_sum: f64,
    images: u64,
    learning_rate: f64,
    seconds: f64,
}

impl Epoch {
    /// Its row; epochs count from 0, as in the metrics. What was not measured is empty.
    fn row(&self, evaluation: [Option<f64>; 6]) -> String {
        let number = |number: Option<f64>| number.map(|number| number.to_string()).unwrap_or_default();
        let trained = |value: f64| (self.images > 0).then_some(value);
        let timed = |value: f64| (self.seconds > 0.0).then_some(value);
        let [loss, top1, top5, ema_loss, ema_top1, ema_top5] = evaluation;
        let cells = [
            trained(self.loss_sum / self.images as f64),
            trained(self.learning_rate),
            loss,
            top1,
            top5,
            ema_loss,
            ema_top1,
            ema_top5,
            timed(self.images as f64 / self.seconds),
            timed(self.seconds),
        ];
        format!("{},{},{}\n", self.step, self.number, cells.map(number).join(","))
    }
}

impl Rows {
    /// Takes a line of the metrics; returns the row that is complete with it. The row of an epoch without an evaluation comes with the
    /// first line of the next.
    fn take(&mut self, record: &Record) -> Option<String> {
        match record {
            Record::Train { step, epoch, loss, learning_rate, images, rate_images_per_second, .. } => {
                let before = self.open.take_if(|open| open.number != *epoch).map(|open| open.row([None; 6]));
                let open = self.open.get_or_insert(Epoch { number: *epoch, ..Epoch::default() });
                open.step = *step;
                open.loss_sum += loss * *images as f64;
                open.images += images;
                open.learning_rate = *learning_rate;
                // A process that only finished a line of the one before has no rate of its own.
                if *rate_images_per_second > 0.0 {
                    open.seconds += *images as f64 / rate_images_per_second;
                }
                before
            }
            Record::Eval { step, epoch, top1, top5, loss, ema_top1, ema_top5, ema_loss, .. } => {
                let before = self.open.take_if(|open| open.number != *epoch).map(|open| open.row([None; 6]));
                let open = self.open.take().unwrap_or(Epoch { number: *epoch, ..Epoch::default() });
                let open = Epoch { step: *step, ..open };
                let row = open.row([Some(*loss), Some(*top1), Some(*top5), *ema_loss, *ema_top1, *ema_top5]);
                Some(before.unwrap_or_default() + &row)
            }
            _ => None,
        }
    }
}

impl Summary {
    /// Opens the summary so that it tells what `records` tell.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn open(run_dir: &Path, records: &[Record]) -> Result<Self> {
        let mut rows = Rows::default();
        let text: String = records.iter().filter_map(|record| rows.take(record)).collect();
        let log = LogFile::restore(run_dir.join("summary.csv"), format!("{HEADER}{text}").as_bytes())?;
        Ok(Self { run_dir: run_dir.into(), log, rows })
    }
}

impl Sink for Summary {
    fn record(&mut self, record: &Record) -> Result<()> {
        self.rows.take(record).map_or(Ok(()), |row| self.log.append(row.as_bytes()))
    }

    fn check(&mut self, unsynced: &mut Vec<Unsynced>) -> Result<Option<String>> {
        self.log.check(&self.run_dir, unsynced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn train(step: u64, epoch: u64, loss: f64, images: u64) -> Record {
        Record::Train {
            step,
            epoch,
            loss,
            learning_rate: 0.5,
            gradient_norm: 1.0,
            images,
            time_seconds: 0.0,
            time_unix: 0.0,
            rate_images_per_second: 10.0,
            rate_data_wait: 0.0,
            rate_memory_bytes: None,
            rate_device_memory_bytes: None,
        }
    }

    fn eval(step: u64, epoch: u64) -> Record {
        Record::Eval {
            step,
            epoch,
            top1: 80.0,
            top5: 95.5,
            loss: 0.75,
            n: 10,
            ema_top1: Some(81.0),
            ema_top5: None,
            ema_loss: None,
            skipped: 0,
            time_seconds: 0.0,
            time_unix: 0.0,
            time_evaluation_seconds: 0.0,
            rate_images_per_second: 0.0,
        }
    }

    #[test]
    fn a_row_an_epoch_wherever_the_run_was_broken() {
        // Three lines of unequal weight, an epoch without an evaluation, and one in which no image could be read.
        let records = [
            train(2, 0, 3.0, 30),
            train(3, 0, 1.0, 10),
            eval(3, 0),
            train(6, 1, 1.0, 40),
            train(9, 2, 0.5, 40),
            eval(9, 2),
            eval(12, 3),
        ];
        let expected = format!(
            "{HEADER}3,0,2.5,0.5,0.75,80,95.5,,81,,10,4\n6,1,1,0.5,,,,,,,10,4\n9,2,0.5,0.5,0.75,80,95.5,,81,,10,4\n12,3,,,0.75,80,95.5,,81,,,\n"
        );
        for broken in 0..=records.len() {
            let dir = tempfile::tempdir().unwrap();
            let mut summary = Summary::open(dir.path(), &[]).unwrap();
            // The first process got further than its last checkpoint.
            records.iter().take(broken + 2).for_each(|record| summary.record(record).unwrap());
            let mut summary = Summary::open(dir.path(), &records[..broken]).unwrap();
            records[broken..].iter().for_each(|record| summary.record(record).unwrap());
            assert_eq!(std::fs::read_to_string(dir.path().join("summary.csv")).unwrap(), expected, "broken at {broken}");
        }
    }
}
