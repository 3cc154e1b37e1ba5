//! Evaluation from the outside: of a run, or of a weights file under a configuration.

use std::path::{Path, PathBuf};

use manyheads_model::VisionTransformer;

use crate::checkpoint::{Store, load_model};
use crate::config::Loaded;
use crate::dataset::{eval_loader, open_val};
use crate::engine::device::{self, DeviceName, OpenDevice};
use crate::engine::evaluate::{Evaluation, evaluate};
use crate::error::{Error, Result};
use crate::log::progress::Console;

/// An evaluation and the weights it is of.
#[derive(Debug)]
pub struct Report {
    /// The result.
    pub evaluation: Evaluation,
    /// The weights file.
    pub weights: PathBuf,
}

/// Evaluates a checkpoint of the run in `run_dir`: `last`, `best`, or a folder's name such as `step-00001250`.
///
/// # Errors
/// Where it is not there, not sound, or the evaluation fails.
pub fn evaluate_run(run_dir: &Path, checkpoint: &str, sets: &[String], device: Option<DeviceName>) -> Result<Report> {
    let config_path = run_dir.join("config.toml");
    if !config_path.is_file() {
        return Err(Error::Usage(format!("{} is not a run: it has no config.toml", run_dir.display())));
    }
    let loaded = crate::config::load(&config_path, sets)?;
    let path = Store::new(run_dir).resolve(checkpoint)?;
    let (manifest, mut tensors) = load_model(&path)?;
    let weights = path.join("model.safetensors");
    let source = open_val(&loaded.config)?;
    if source.classes() != manifest.data.classes {
        return Err(Error::Failed(format!(
            "the classes of the held-out images are not those that {} was trained on: {} against {}",
            weights.display(),
            source.classes().join(", "),
            manifest.data.classes.join(", ")
        )));
    }
    let open = device::open(&loaded.config, device)?;
    let model = crate::weights::place(&mut tensors, &loaded.architecture, &open.device)
        .map_err(|e| Error::Failed(format!("{}: {e}", weights.display())))?;
    report(&loaded, source, &model, &open, weights)
}

/// Evaluates a safetensors file with timm's names under a configuration's model and data.
///
/// # Errors
/// Where the weights do not fit the model, or the evaluation fails.
pub fn evaluate_weights(loaded: &Loaded, weights: &Path, device: Option<DeviceName>) -> Result<Report> {
    let source = open_val(&loaded.config)?;
    let open = device::open(&loaded.config, device)?;
    let model = crate::weights::load(weights, &loaded.architecture, &open.device)?;
    report(loaded, source, &model, &open, weights.into())
}

fn report(
    loaded: &Loaded,
    source: std::sync::Arc<dyn manyheads_data::Source>,
    model: &VisionTransformer,
    open: &OpenDevice,
    weights: PathBuf,
) -> Result<Report> {
    let classes = source.classes().len();
    if classes != loaded.architecture.classes {
        return Err(loaded.error(
            "model.classes",
            &format!("the model has {} classes, the held-out images {classes}", loaded.architecture.classes),
            None,
        ));
    }
    let mut console = Console::default();
    for notice in source.notices().iter().chain(&open.notice) {
        console.say(format!("note: {notice}"));
    }
    let loader = eval_loader(&loaded.config, &loaded.architecture, source)?;
    console.say(format!("evaluating {} on {} images, device {}", weights.display(), loader.len(), open.label));
    console.start(loader.len() as u64, 0);
    let evaluation = evaluate(model, &loader, &open.device, None, &console);
    console.finish();
    let evaluation = evaluation?.ok_or_else(|| Error::Failed("the evaluation was stopped".into()))?;
    for bad in &evaluation.skipped {
        console.say(format!("left out: {}: {}", bad.name, bad.reason));
    }
    Ok(Report { evaluation, weights })
}
