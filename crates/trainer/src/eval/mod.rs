//! Evaluation from the outside: of a run, or of weights files.

mod subset;
mod tables;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use manyheads_data::{Source, imagenet};

use crate::config::Interpolation;
use crate::dataset::{eval_loader, files_hash, open_images, open_val};
use crate::engine::device::{self, DeviceName};
use crate::engine::evaluate::{Evaluation, Job};
use crate::engine::protocol::Protocol;
use crate::error::{Error, Result};
use crate::log::progress::Console;
use crate::logits::StoredLogits;
use crate::network::{Naming, Network, Selection};

pub use subset::Subset;

/// What to evaluate.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    /// A checkpoint of a run: `last`, `best`, or a folder's name such as `step-00001250`.
    Run {
        /// The run's folder.
        dir: &'a Path,
        /// Which checkpoint.
        checkpoint: &'a str,
        /// The averaged weights instead of the trained ones.
        ema: bool,
    },
    /// Weights files.
    Weights {
        /// The files.
        files: &'a [PathBuf],
        /// The network's configuration; without one it follows from `naming` or the file.
        config: Option<&'a Path>,
        /// How to read them.
        naming: Naming<'a>,
    },
}

/// Files to leave behind.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outputs<'a> {
    /// The result of each class.
    pub per_class: Option<&'a Path>,
    /// The five best classes of each image.
    pub predictions: Option<&'a Path>,
    /// A line for each of the weights.
    pub csv: Option<&'a Path>,
    /// The network's output for every image, for a student to learn from.
    pub logits: Option<&'a Path>,
}

/// An evaluation to be done.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The weights.
    pub target: Target<'a>,
    /// The images, where they are not the configuration's.
    pub data: Option<&'a Path>,
    /// The labels of images that lie without class folders.
    pub labels: Option<&'a Path>,
    /// ReaL's labels.
    pub real_labels: Option<&'a Path>,
    /// How images with some of the classes are judged.
    pub subset: Option<Subset>,
    /// Settings that win over the configuration.
    pub sets: &'a [String],
    /// The device, where it is not the configuration's.
    pub device: Option<DeviceName>,
    /// Files to leave behind.
    pub outputs: Outputs<'a>,
}

/// An evaluation and what it is of.
#[derive(Debug)]
pub struct Report {
    /// The result.
    pub evaluation: Evaluation,
    /// The weights file.
    pub weights: PathBuf,
    /// `own` or `real`: the labels that were judged by.
    pub labels: &'static str,
    /// Classes of the images.
    pub classes: Vec<String>,
    /// Parameters of the network.
    pub parameters: u64,
    /// Height and width of the network's images.
    pub image: [usize; 2],
    /// Share of the resized side that the crop keeps.
    pub crop_pct: f64,
    /// Filter of the resize.
    pub interpolation: &'static str,
}

impl Report {
    /// Images a second over the whole evaluation, reading included.
    pub fn images_per_second(&self) -> f64 {
        self.evaluation.images as f64 / self.evaluation.seconds.max(1e-9)
    }
}

/// Evaluates everything that `request` names, in its order.
///
/// # Errors
/// Where weights do not fit the network, the images do not fit the weights, or the work fails. Of several weights files those before
/// the failure are in the csv.
pub fn run(request: &Request<'_>) -> Result<Vec<Report>> {
    let mut reports = Vec::new();
    let Outputs { per_class, predictions, csv, logits } = request.outputs;
    let mut networks: Vec<Selection<'_>> = Vec::new();
    match request.target {
        Target::Run { dir, checkpoint, ema } => {
            networks.push(Selection::Run { dir, checkpoint, ema, sets: request.sets });
        }
        Target::Weights { files, config, naming } => {
            if files.len() > 1 && (per_class.is_some() || predictions.is_some() || logits.is_some()) {
                return Err(Error::Usage(
                    "--per-class, --predictions and --logits are of one weights file; give one, or use --csv for several".into(),
                ));
            }
            for file in files {
                networks.push(Selection::of(file, config, naming, request.sets)?);
            }
        }
    }
    outputs(request)?;
    for selection in &networks {
        reports.push(one(request, selection)?);
        if let Some(path) = csv {
            tables::results(path, &reports)?;
        }
    }
    if let (Some(path), [report]) = (per_class, reports.as_slice()) {
        tables::per_class(path, report)?;
    }
    Ok(reports)
}

/// Checks, before hours of work, that what is to be left behind can be, and overwrites nothing that was read.
fn outputs(request: &Request<'_>) -> Result<()> {
    let Outputs { per_class, predictions, csv, logits } = request.outputs;
    let all = [("--per-class", per_class), ("--predictions", predictions), ("--csv", csv), ("--logits", logits)];
    let given: Vec<(&str, &Path)> = all.into_iter().filter_map(|(option, path)| Some((option, path?))).collect();
    for (place, (option, path)) in given.iter().enumerate() {
        let wanted = if *option == "--logits" { "safetensors" } else { "csv" };
        let wrong = |reason: String| Err(Error::Usage(format!("{option} {}: {reason}", path.display())));
        if path.extension().is_none_or(|extension| extension != wanted) {
            return wrong(format!("the file's name must end in .{wanted}, so that nothing else is overwritten"));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return wrong(format!("there is no folder {}", folder.display()));
        }
        if path.exists() && !path.is_file() {
            return wrong("it is there and no regular file".into());
        }
        let same = |other: &Path| path.canonicalize().is_ok_and(|path| other.canonicalize().is_ok_and(|other| path == other));
        if given[..place].iter().any(|(_, other)| other == path || same(other)) {
            return wrong("it is to be written twice".into());
        }
        let mut read: Vec<&Path> = [request.labels, request.real_labels, request.data].into_iter().flatten().collect();
        if let Target::Weights { files, .. } = request.target {
            read.extend(files.iter().map(PathBuf::as_path));
        }
        if read.into_iter().any(same) {
            return wrong("it is one of the files that are read".into());
        }
    }
    Ok(())
}

fn one(request: &Request<'_>, selection: &Selection<'_>) -> Result<Report> {
    let mut console = Console::default();
    let loaded = selection.configuration(request.data.is_none(), &mut |note| console.say(format!("note: {note}")))?;
    let source = match request.data {
        Some(path) => open_images("--data", path, request.labels)?,
        None => open_val(&loaded.config)?,
    };
    let open = device::open(&loaded.config, request.device)?;
    open.computes(loaded.config.eval.precision, "eval.precision")?;
    for notice in source.notices().iter().chain(&open.notice) {
        console.say(format!("note: {notice}"));
    }
    let network = selection.open(loaded, &open.device, &mut |note| console.say(format!("note: {note}")))?;
    let Network { loaded, model, names, weights, .. } = &network;
    let protocol = protocol(request, &network, &*source)?;
    let loader = eval_loader(&loaded.config, &loaded.architecture, Arc::clone(&source), open.eager)?;
    console.say(crate::predict::preparation(loaded));
    console.say(format!("evaluating {} on {} images, device {}", weights.display(), loader.len(), open.label));
    let mut table = request.outputs.predictions.map(tables::Predictions::create).transpose()?;
    let compute = loaded.config.eval.precision.float();
    console.start(loader.len() as u64, 0);
    let job = Job { model, loader: &loader, device: &open.device, compute, protocol: &protocol };
    let names = crate::predict::class_names(names, &network.labels, loaded.architecture.classes);
    let mut logits = request.outputs.logits.map(|_| Vec::new());
    let evaluation = job.run(None, &console, &mut |seen| {
        if let Some(logits) = &mut logits {
            logits.extend_from_slice(seen.logits);
        }
        match &mut table {
            Some(table) => table.add(seen, &protocol, source.name(seen.item), &source.classes()[seen.label], &names),
            None => Ok(()),
        }
    });
    console.finish();
    if let Some(table) = table {
        table.finish()?;
    }
    let evaluation = evaluation?.ok_or_else(|| Error::Failed("the evaluation was stopped".into()))?;
    if let (Some(path), Some(values)) = (request.outputs.logits, logits) {
        if let Some(bad) = evaluation.skipped.first() {
            return Err(Error::Failed(format!("--logits needs every image, but one could not be read: {}", bad.reason)));
        }
        StoredLogits::new(values, loaded.architecture.classes, files_hash(&*source)).write(path)?;
    }
    for bad in &evaluation.skipped {
        console.say(format!("left out: {}: {}", bad.name, bad.reason));
    }
    Ok(Report {
        evaluation,
        weights: weights.clone(),
        labels: if request.real_labels.is_some() { "real" } else { "own" },
        classes: source.classes().to_vec(),
        parameters: manyheads_model::cost(&loaded.architecture).parameters(),
        image: loaded.architecture.image,
        crop_pct: loaded.config.eval.crop_pct(),
        interpolation: match loaded.config.eval.interpolation() {
            Interpolation::Bilinear => "bilinear",
            Interpolation::Bicubic => "bicubic",
        },
    })
}

/// What counts as right on these images.
fn protocol(request: &Request<'_>, network: &Network, source: &dyn Source) -> Result<Protocol> {
    let classes = network.loaded.architecture.classes;
    let protocol = Protocol {
        classes: subset::classes(source, &network.names, classes, request.subset)?,
        restricted: request.subset == Some(Subset::Restrict),
        real: request.real_labels.map(|path| real_labels(path, source)).transpose()?,
    };
    protocol.check(source.classes().len(), source.len(), classes)?;
    Ok(protocol)
}

/// ReaL's labels of each image of `source`, found by the number in its file name.
fn real_labels(path: &Path, source: &dyn Source) -> Result<Vec<Vec<u32>>> {
    let labels = imagenet::real_labels(path)?;
    (0..source.len())
        .map(|item| {
            let name = source.name(item);
            let number = imagenet::val_index(&name).ok_or_else(|| {
                Error::Failed(format!(
                    "{name} is no image of ImageNet's validation set (ILSVRC2012_val_00000001.JPEG), so {} has no labels for it",
                    path.display()
                ))
            })?;
            labels
                .get(number)
                .cloned()
                .ok_or_else(|| Error::Failed(format!("{} has {} entries and none for {name}", path.display(), labels.len())))
        })
        .collect()
}
