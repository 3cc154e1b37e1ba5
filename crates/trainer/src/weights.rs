//! Weights between files and models.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use manyheads_model::weights::timm::{NamedTensor, import};
use manyheads_model::weights::{self, DType, Export, LoadOptions, WeightsError};
use manyheads_model::{Architecture, VisionTransformer};
use serde::Serialize;

use crate::config::Loaded;
use crate::error::{Error, Result};
use crate::info::group;
use crate::network::{self, Layout, Naming, Selection};

/// Puts `tensors` (timm's names) into `model`; all of them, and nothing else, must be its parameters.
///
/// # Errors
/// Every missing, misshapen and unknown tensor at once.
pub fn into_model(
    model: VisionTransformer,
    tensors: &mut HashMap<String, NamedTensor>,
) -> std::result::Result<VisionTransformer, WeightsError> {
    let mut names: Vec<String> = tensors.keys().cloned().collect();
    names.sort();
    import(model, &names, |name| tensors.remove(name))
}

/// A model of `architecture` on `device` with the given weights.
///
/// # Errors
/// As [`into_model`].
pub fn place(
    tensors: &mut HashMap<String, NamedTensor>,
    architecture: &Architecture,
    device: &burn::tensor::Device,
) -> std::result::Result<VisionTransformer, WeightsError> {
    // Every value is replaced, so which generator draws them first does not matter.
    let mut rng = manyheads_data::stream(0, manyheads_data::Purpose::Init, 0, 0);
    into_model(architecture.init(&mut rng, device), tensors)
}

/// What is in a weights file.
#[derive(Debug, Serialize)]
pub struct Inspection {
    /// The file.
    pub file: String,
    /// Whose names it carries.
    pub layout: &'static str,
    /// The preset named, or the only one that fits.
    pub preset: Option<String>,
    /// Every preset whose architecture and image size are the file's.
    pub presets: Vec<String>,
    /// The network as a `[model]` section; none where it cannot be told.
    pub model: Option<toml::Table>,
    /// What was found, chosen and assumed.
    pub notes: Vec<String>,
    /// Values of all tensors.
    pub parameters: u64,
    /// The tensors, in alphabetical order.
    pub tensors: Vec<Tensor>,
}

/// A tensor of a file.
#[derive(Debug, Serialize)]
pub struct Tensor {
    /// Its name without what wraps it.
    pub name: String,
    /// Its name in the file.
    pub stored_as: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its type.
    pub dtype: &'static str,
}

/// How the file of [`network::file_of`] is read: the averaged weights of a run are a file of their own.
fn inside<'a>(path: &Path, naming: Naming<'a>) -> Naming<'a> {
    Naming { ema: naming.ema && !network::is_run(path), ..naming }
}

/// Looks into a weights file. That its network cannot be told is no error here.
///
/// # Errors
/// Where it cannot be read, or a preset is unknown.
pub fn inspect(path: &Path, naming: Naming<'_>) -> Result<Inspection> {
    let file = network::file_of(path, naming.ema)?;
    let mut notes = Vec::new();
    let source = network::open(&file, &inside(path, naming), &mut |note| notes.push(note.to_owned()))?;
    let tensors: Vec<Tensor> = source
        .tensors()
        .map(|info| Tensor {
            name: info.name.clone(),
            stored_as: info.stored_as.clone(),
            shape: info.shape.clone(),
            dtype: match info.dtype {
                DType::F16 => "f16",
                DType::Bf16 => "bf16",
                DType::F32 => "f32",
                DType::F64 => "f64",
                DType::Other => "other",
            },
        })
        .collect();
    let parameters = tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>() as u64).sum();
    let (mut layout, mut preset, mut presets, mut model) = (naming.layout.unwrap_or(Layout::Timm), None, Vec::new(), None);
    let told = naming.preset.is_none() && (network::beside(&file).is_some() || source.metadata(network::MODEL_KEY).is_some());
    match network::recognise(&source, &naming) {
        Ok(recognised) => {
            layout = recognised.layout;
            preset = recognised.preset.map(|preset| preset.name());
            presets = recognised.fits.iter().map(|preset| preset.name()).collect();
            notes.extend(recognised.notes.iter().cloned());
            model = toml::Table::try_from(&recognised.config).ok();
        }
        Err(error @ Error::Usage(_)) => return Err(error),
        Err(_) if told => {}
        Err(error) => notes.push(error.to_string()),
    }
    // What a checkpoint or the file itself says is more than names and shapes can tell: the kinds of attention.
    if naming.preset.is_none() {
        if let Some(config) = network::beside(&file) {
            notes.push(format!("the network is that of {}", config.display()));
            model = toml::Table::try_from(&crate::config::load_without_images(&config, &[])?.config.model).ok();
        } else if let Some(own) = source.metadata(network::MODEL_KEY).and_then(|text| text.parse().ok()) {
            notes.push("the file says itself which network it holds".into());
            model = Some(own);
        }
    }
    let file = source.path().display().to_string();
    Ok(Inspection { file, layout: layout.name(), preset, presets, model, notes, parameters, tensors })
}

impl Inspection {
    /// A table of the tensors, and what they are.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        let width = self.tensors.iter().map(|tensor| tensor.stored_as.chars().count()).max().unwrap_or(0);
        for Tensor { stored_as, shape, dtype, .. } in &self.tensors {
            let shape: Vec<String> = shape.iter().map(usize::to_string).collect();
            let _ = writeln!(out, "{stored_as:width$}  {dtype:4}  [{}]", shape.join(", "));
        }
        let _ = writeln!(out, "\n{} tensors, {} values", self.tensors.len(), group(self.parameters));
        for note in &self.notes {
            let _ = writeln!(out, "{note}");
        }
        match &self.preset {
            Some(preset) => drop(writeln!(out, "preset {preset}")),
            None if !self.presets.is_empty() => drop(writeln!(out, "presets that fit: {}", self.presets.join(", "))),
            None => {}
        }
        if let Some(model) = &self.model {
            let section = toml::Table::from_iter([("model".to_owned(), toml::Value::Table(model.clone()))]);
            let _ = write!(out, "\n{section}");
        }
        out
    }
}

/// A conversion to be done.
#[derive(Debug, Clone, Copy)]
pub struct Convert<'a> {
    /// A weights file, a folder that holds one, or a run.
    pub file: &'a Path,
    /// How to read it.
    pub naming: Naming<'a>,
    /// Whose names to write.
    pub to: Layout,
    /// The file to write; for Hugging Face the folder.
    pub out: &'a Path,
}

/// What a conversion wrote.
#[derive(Debug)]
pub struct Converted {
    /// Tensors written.
    pub tensors: usize,
    /// The file.
    pub out: PathBuf,
}

/// Writes weights under the names of another library. No network is made: a few tensors are in memory at a time.
///
/// # Errors
/// Where the file's network cannot be told, the layout cannot hold it, or a file cannot be read or written.
pub fn convert(request: &Convert<'_>, note: &mut dyn FnMut(&str)) -> Result<Converted> {
    let Convert { file: path, naming, to, out } = *request;
    let file = network::file_of(path, naming.ema)?;
    let loaded = configuration_of(path, naming, note)?;
    let mut export = Export::new(&loaded.architecture, to).map_err(|e| Error::Failed(format!("{}: {e}", path.display())))?;
    export.notes.iter().for_each(|text| note(text));
    // Heads, eps and kinds of attention are in no tensor: with them the way back is exact.
    export
        .metadata
        .insert(network::MODEL_KEY.into(), toml::Table::try_from(&loaded.config.model).unwrap_or_default().to_string());
    let target = match to {
        Layout::HuggingFace => {
            std::fs::create_dir_all(out).map_err(|e| Error::io("create", out, &e))?;
            out.join("model.safetensors")
        }
        Layout::Timm if out.is_dir() => {
            return Err(Error::Usage(format!("--out {}: a folder; name the file to write, as model.safetensors", out.display())));
        }
        Layout::Timm => out.to_path_buf(),
    };
    let source = network::open(&file, &inside(path, naming), &mut |_| ())?;
    // Reading goes on while writing; and nothing that is read is to be lost.
    let mut targets = vec![target.clone()];
    targets.extend(export.config.is_some().then(|| out.join("config.json")));
    for target in &targets {
        let same = |file: &Path| target.canonicalize().is_ok_and(|target| file.canonicalize().is_ok_and(|file| target == file));
        if source.files().any(same) {
            return Err(Error::Usage(format!("--out {}: it is one of the files to be converted", target.display())));
        }
        if target.exists() && !target.is_file() {
            return Err(Error::Usage(format!("--out {}: it is there and no regular file", target.display())));
        }
    }
    let options = LoadOptions { layout: naming.layout, expect: naming.expect.to_vec(), ..LoadOptions::default() };
    let report = weights::convert(&source, &loaded.architecture, &options, &export, &target)
        .map_err(|e| Error::Failed(format!("{}: {e}", file.display())))?;
    if !report.ignored.is_empty() || !report.unused.is_empty() {
        note(&report.to_string());
    }
    if let Some(config) = &mut export.config {
        let path = out.join("config.json");
        name_classes(config, &network::labels(&source));
        let text = serde_json::to_string_pretty(config).map_err(|e| Error::Failed(e.to_string()))?;
        std::fs::write(&path, text + "\n").map_err(|e| Error::io("write", &path, &e))?;
    }
    Ok(Converted { tensors: export.tensors().count(), out: target })
}

/// Writes the names of the classes into Hugging Face's `config.json`.
fn name_classes(config: &mut serde_json::Value, names: &[String]) {
    if names.is_empty() {
        return;
    }
    let by_index = names.iter().enumerate().map(|(index, name)| (index.to_string(), name.as_str().into()));
    config["id2label"] = serde_json::Value::Object(by_index.collect());
    let by_name = names.iter().enumerate().map(|(index, name)| (name.clone(), index.into()));
    config["label2id"] = serde_json::Value::Object(by_name.collect());
}

/// The configuration of the network of a file to be converted: a run's own, else what the file and what lies beside it tell.
fn configuration_of(path: &Path, naming: Naming<'_>, note: &mut dyn FnMut(&str)) -> Result<Loaded> {
    Selection::of(path, None, naming, &[])?.configuration(false, note)
}
