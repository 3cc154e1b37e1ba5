//! The tables that an evaluation leaves as files, as comma-separated values.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use manyheads_data::imagenet;

use super::Report;
use crate::engine::evaluate::Seen;
use crate::engine::protocol::Protocol;
use crate::error::{Error, Result};

/// A csv file being written; it says its own name when something goes wrong.
pub(super) struct Table {
    writer: csv::Writer<BufWriter<File>>,
    path: PathBuf,
}

impl Table {
    pub fn create(path: &Path, columns: &[&str]) -> Result<Self> {
        let file = File::create(path).map_err(|e| Error::io("create", path, &e))?;
        let mut table = Self { writer: csv::Writer::from_writer(BufWriter::new(file)), path: path.into() };
        table.row(columns)?;
        Ok(table)
    }

    pub fn row<T: AsRef<[u8]>>(&mut self, cells: impl IntoIterator<Item = T>) -> Result<()> {
        self.writer.write_record(cells).map_err(|e| Error::Failed(format!("cannot write {}: {e}", self.path.display())))
    }

    pub fn finish(mut self) -> Result<()> {
        self.writer.flush().map_err(|e| Error::io("write", &self.path, &e))
    }
}

/// Classes that a line of the predictions names.
const BEST: usize = 5;

/// The predictions of each image.
pub(super) struct Predictions {
    table: Table,
}

impl Predictions {
    pub fn create(path: &Path) -> Result<Self> {
        let mut columns: Vec<String> = ["path", "label", "class", "correct"].map(String::from).to_vec();
        for place in 1..=BEST {
            columns.extend([format!("index{place}"), format!("name{place}"), format!("probability{place}")]);
        }
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        Ok(Self { table: Table::create(path, &columns)? })
    }

    /// Adds a line. `path` is the image's name, `class` the name of its label, `names` are the network's classes.
    pub fn add(&mut self, seen: &Seen<'_>, protocol: &Protocol, path: String, class: &str, names: &[String]) -> Result<()> {
        let correct = protocol.judge(seen.logits, seen.item, seen.label).rank.map(|rank| rank == 0);
        let mut cells = vec![
            path,
            seen.label.to_string(),
            class.to_owned(),
            correct.map_or(String::new(), |correct| u8::from(correct).to_string()),
        ];
        let best = protocol.best(seen.logits, BEST);
        let probabilities = protocol.probabilities(seen.logits, &best);
        for ((index, _), probability) in best.iter().zip(probabilities) {
            let name = names.get(*index).cloned().unwrap_or_default();
            cells.extend([index.to_string(), name, format!("{probability:.6}")]);
        }
        // A network of fewer classes has fewer best ones.
        cells.resize(4 + 3 * BEST, String::new());
        self.table.row(cells)
    }

    pub fn finish(self) -> Result<()> {
        self.table.finish()
    }
}

/// Writes the result of each class of the dataset.
pub(super) fn per_class(path: &Path, report: &Report) -> Result<()> {
    let mut table = Table::create(path, &["label", "class", "name", "top1", "top5", "loss", "n"])?;
    for (label, (class, score)) in report.classes.iter().zip(&report.evaluation.per_class).enumerate() {
        let name = imagenet::index(class).and_then(imagenet::name).unwrap_or(class);
        let mut cells = vec![label.to_string(), class.clone(), name.to_owned()];
        // A class without an image has no share of right ones.
        match score.n {
            0 => cells.extend(["", "", ""].map(String::from)),
            _ => cells.extend([format!("{:.3}", score.top1), format!("{:.3}", score.top5), format!("{:.5}", score.loss)]),
        }
        cells.push(score.n.to_string());
        table.row(cells)?;
    }
    table.finish()
}

/// Writes a line for each of the weights. The first columns are those of timm's result tables.
pub(super) fn results(path: &Path, reports: &[Report]) -> Result<()> {
    let columns = [
        "model",
        "top1",
        "top1_err",
        "top5",
        "top5_err",
        "param_count",
        "img_size",
        "crop_pct",
        "interpolation",
        "loss",
        "n",
        "labels",
        "images_per_second",
    ];
    let mut table = Table::create(path, &columns)?;
    for report in reports {
        let score = &report.evaluation.score;
        let [height, width] = report.image;
        let size = if height == width { height.to_string() } else { format!("{height}x{width}") };
        table.row([
            report.weights.display().to_string(),
            format!("{:.3}", score.top1),
            format!("{:.3}", 100.0 - score.top1),
            format!("{:.3}", score.top5),
            format!("{:.3}", 100.0 - score.top5),
            // Millions, as timm has it.
            format!("{:.2}", report.parameters as f64 / 1e6),
            size,
            report.crop_pct.to_string(),
            report.interpolation.to_owned(),
            format!("{:.5}", score.loss),
            score.n.to_string(),
            report.labels.to_owned(),
            format!("{:.1}", report.images_per_second()),
        ])?;
    }
    table.finish()
}
