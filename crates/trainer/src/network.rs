//! From a weights file or a run to a network that is ready for images.
//!
//! A weights file says by names and shapes what network it is of; a preset or a configuration says it in words, and the file must
//! then fit. What was recognised, chosen or reshaped is told to the caller, line by line: nothing is silent.

use std::io::Read;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use manyheads_model::weights::{
    self, Hints, LoadError, LoadOptions, LoadReport, OpenOptions, RecogniseError, Recognised, Source, SourceError,
};
use manyheads_model::{Architecture, ModelConfig, Preset, VisionTransformer};
use sha2::{Digest, Sha256};

use crate::checkpoint::{Manifest, Store, hex, load_model};
use crate::config::{self, Loaded};
use crate::error::{Error, Result};

pub use manyheads_model::weights::Layout;

mod preparation;

/// How to read a weights file.
#[derive(Debug, Clone, Copy, Default)]
pub struct Naming<'a> {
    /// timm's name of the network.
    pub preset: Option<&'a str>,
    /// Whose names the tensors have, where it is not to be recognised.
    pub layout: Option<Layout>,
    /// Heads of attention, which no shape tells.
    pub heads: Option<usize>,
    /// Height and width of the images that the weights were trained on, where the grid of positions leaves it open.
    pub image: Option<[usize; 2]>,
    /// Which of several models in a file, as `teacher`.
    pub root: Option<&'a str>,
    /// Take the averaged weights where there are both.
    pub ema: bool,
    /// Patterns of tensors that may be missing from the file, or be in it and have no place in the network.
    pub expect: &'a [String],
}

/// A choice of weights.
#[derive(Debug, Clone)]
pub enum Selection<'a> {
    /// A checkpoint of a run.
    Run {
        /// The run's folder.
        dir: &'a Path,
        /// `last`, `best`, or a folder's name.
        checkpoint: &'a str,
        /// The averaged weights instead of the trained ones.
        ema: bool,
        /// Settings that win over the run's configuration.
        sets: &'a [String],
    },
    /// A file, or a folder that holds one.
    File {
        /// The file.
        weights: &'a Path,
        /// The network's configuration.
        config: Option<&'a Path>,
        /// How to read it.
        naming: Naming<'a>,
        /// Settings that win over the configuration.
        sets: &'a [String],
    },
}

/// A network with its weights.
#[derive(Debug)]
pub struct Network {
    /// Its configuration, with how images are prepared for it.
    pub loaded: Loaded,
    /// The network, without autodiff.
    pub model: VisionTransformer,
    /// The classes it was trained on, as its dataset calls them, where that is known: images must have the same.
    pub names: Vec<String>,
    /// What to call its classes, where the file says it.
    pub labels: Vec<String>,
    /// The weights file.
    pub weights: PathBuf,
}

impl<'a> Selection<'a> {
    /// What `weights` stands for: the folder of a run is its last checkpoint, anything else a weights file.
    ///
    /// # Errors
    /// Where a run is given with a configuration or a preset, which it has itself.
    pub fn of(weights: &'a Path, config: Option<&'a Path>, naming: Naming<'a>, sets: &'a [String]) -> Result<Self> {
        if !is_run(weights) {
            return Ok(Self::File { weights, config, naming, sets });
        }
        if config.is_some() || naming.preset.is_some() || naming.layout.is_some() || naming.heads.is_some() {
            return Err(Error::Usage(format!(
                "{} is the folder of a run, which knows its own network: leave out configuration, preset, layout and heads",
                weights.display()
            )));
        }
        Ok(Self::Run { dir: weights, checkpoint: "last", ema: naming.ema, sets })
    }

    /// The configuration of the network. `images`: it must name the images to evaluate on. `note` is told what was recognised.
    ///
    /// # Errors
    /// Where configuration, preset or file do not tell a network.
    pub fn configuration(&self, images: bool, note: &mut dyn FnMut(&str)) -> Result<Loaded> {
        match self {
            Self::Run { dir, sets, .. } => {
                let path = dir.join("config.toml");
                if !path.is_file() {
                    return Err(Error::Usage(format!("{} is not a run: it has no config.toml", dir.display())));
                }
                config::load(&path, sets)
            }
            Self::File { config: Some(_), naming: Naming { preset: Some(preset), .. }, .. } => Err(Error::Usage(format!(
                "--preset {preset} is of no use beside a configuration, which names the network itself (model.preset)"
            ))),
            Self::File { config: Some(path), sets, .. } if images => config::load(path, sets),
            Self::File { config: Some(path), sets, .. } => config::load_without_images(path, sets),
            Self::File { weights, naming: Naming { preset: None, .. }, sets, .. } if let Some(config) = beside(weights) => {
                note(&format!("the network is that of {}", config.display()));
                if images { config::load(&config, sets) } else { config::load_without_images(&config, sets) }
            }
            Self::File { weights, naming, sets, .. } => {
                let source = open(weights, naming, &mut *note)?;
                let mut table = match source.metadata(MODEL_KEY).filter(|_| naming.preset.is_none()) {
                    Some(text) => {
                        note("the file says itself which network it holds");
                        let model = text.parse().map_err(|e| {
                            Error::Failed(format!("{}: its metadata `{MODEL_KEY}` are no TOML: {e}", weights.display()))
                        })?;
                        toml::Table::from_iter([("model".to_owned(), toml::Value::Table(model))])
                    }
                    None => {
                        let recognised = recognise(&source, naming)?;
                        recognised.notes.iter().for_each(|text| note(text));
                        model_table(&recognised)?
                    }
                };
                if naming.preset.is_none() {
                    preparation::read(source.path(), &mut table, note)?;
                }
                config::load_text_without_images(&table.to_string(), &format!("the network of {}", weights.display()), sets)
            }
        }
    }

    /// The network with its weights on `device`, under a configuration of [`Self::configuration`]. `note` is told what became of the
    /// file's tensors, where not all of them are loaded as they are.
    ///
    /// # Errors
    /// Where the file cannot be read or is not of the configuration's network.
    pub fn open(&self, loaded: Loaded, device: &Device, note: &mut dyn FnMut(&str)) -> Result<Network> {
        match self {
            Self::Run { dir, checkpoint, ema, .. } => {
                let path = Store::new(dir).resolve(checkpoint)?;
                let (manifest, mut tensors, weights) = load_model(&path, *ema)?;
                let model = crate::weights::place(&mut tensors, &loaded.architecture, device)
                    .map_err(|e| Error::Failed(format!("{}: {e}", weights.display())))?;
                Ok(Network { loaded, model, names: manifest.data.classes, labels: Vec::new(), weights })
            }
            Self::File { weights, config, naming, .. } => {
                // Without a configuration the file was opened before, and its notes were told.
                let source = open(weights, naming, &mut |text| {
                    if config.is_some() {
                        note(text);
                    }
                })?;
                let options = LoadOptions { layout: naming.layout, expect: naming.expect.to_vec(), ..LoadOptions::default() };
                let (model, report) = weights::load(&source, &loaded.architecture, &options, device)
                    .map_err(|e| load_error(weights, e, &loaded.architecture))?;
                tell(&report, note);
                let (names, labels) = (trained_classes(weights), labels(&source));
                Ok(Network { loaded, model, names, labels, weights: source.path().to_path_buf() })
            }
        }
    }
}

/// Opens a weights file and tells what was chosen in it.
pub(crate) fn open(path: &Path, naming: &Naming<'_>, note: &mut dyn FnMut(&str)) -> Result<Source> {
    let options = OpenOptions { ema: naming.ema, root: naming.root.map(str::to_owned) };
    let source = Source::open(path, &options).map_err(source_error)?;
    source.notes().iter().for_each(|text| note(text));
    Ok(source)
}

/// Tells what became of a file's tensors, where not all were loaded as they are.
fn tell(report: &LoadReport, note: &mut dyn FnMut(&str)) {
    let LoadReport { reshaped, missing, unused, ignored, .. } = report;
    if !(reshaped.is_empty() && missing.is_empty() && unused.is_empty() && ignored.is_empty()) {
        note(&report.to_string());
    }
}

/// The network of a file, by its tensors and what the command line says of it.
///
/// # Errors
/// Where the preset is unknown or the file's network cannot be told.
pub(crate) fn recognise(source: &Source, naming: &Naming<'_>) -> Result<Recognised> {
    let preset = naming.preset.map(|name| Preset::find(name).map_err(|e| Error::Usage(format!("--preset: {e}")))).transpose()?;
    let hints = Hints { preset, layout: naming.layout, heads: naming.heads, image: naming.image };
    let recognised = match (weights::recognise(source, &hints), preset) {
        (Ok(recognised), _) => recognised,
        // A preset of another network may leave nothing to go by; that it is another is what there is to say.
        (Err(error), Some(_)) => match weights::recognise(source, &Hints { heads: Some(1), ..hints }) {
            Ok(recognised) => recognised,
            Err(_) => return Err(untold(error)),
        },
        (Err(error), None) => return Err(untold(error)),
    };
    if let Some(preset) = preset {
        let model = ModelConfig { preset: Some(preset), ..ModelConfig::default() };
        let named = model.resolve().map_err(|e| Error::Usage(format!("--preset {}: {e}", preset.name())))?;
        let differences = differences(&recognised.config, &named);
        if !differences.is_empty() {
            return Err(Error::Usage(format!(
                "--preset {}: not the network of {}: {}",
                preset.name(),
                source.path().display(),
                differences.join(", ")
            )));
        }
    }
    Ok(recognised)
}

fn untold(error: RecogniseError) -> Error {
    let help = error.help.as_ref().map_or(String::new(), |help| format!(". {help}"));
    Error::Failed(format!("{error}{help}"))
}

/// In what a file's network is another than a wanted one, of what makes all of its tensors differ.
fn differences(file: &ModelConfig, wanted: &Architecture) -> Vec<String> {
    let Ok(file) = file.resolve() else { return Vec::new() };
    let parts = [
        ("width", file.width, wanted.width),
        ("depth", file.depth, wanted.depth),
        ("patch size", file.patch, wanted.patch),
        ("features of the MLP", file.mlp_hidden, wanted.mlp_hidden),
    ];
    let differ = parts.into_iter().filter(|(_, file, wanted)| file != wanted);
    differ.map(|(what, file, wanted)| format!("{what} is {file} in the file and not {wanted}")).collect()
}

/// A configuration for a recognised network: what the file shows, under the name of the preset, which says how images are prepared.
/// Where the two differ in small things the file is right, and a note of the recognition says so.
fn model_table(recognised: &Recognised) -> Result<toml::Table> {
    let model = ModelConfig { preset: recognised.preset, ..recognised.config.clone() };
    let table = toml::Table::try_from(&model).map_err(|e| Error::Failed(format!("the network cannot be written down: {e}")))?;
    Ok(toml::Table::from_iter([("model".to_owned(), toml::Value::Table(table))]))
}

/// The key under which a file that we write says which network it holds: a `[model]` section.
pub(crate) const MODEL_KEY: &str = "manyheads.model";

/// Whether a path is the folder of a run.
pub(crate) fn is_run(path: &Path) -> bool {
    path.join("checkpoints").is_dir()
}

/// The weights file of a path: of a run its last checkpoint's, or with `ema` their average.
pub(crate) fn file_of(path: &Path, ema: bool) -> Result<PathBuf> {
    if !is_run(path) {
        return Ok(path.to_path_buf());
    }
    Ok(Store::new(path).resolve("last")?.join(if ema { "ema.safetensors" } else { "model.safetensors" }))
}

/// The configuration beside the weights of a checkpoint: names and shapes do not tell the kinds of attention.
pub(crate) fn beside(weights: &Path) -> Option<PathBuf> {
    let folder = if weights.is_dir() { weights } else { weights.parent()? };
    let config = folder.join("config.toml");
    (config.is_file() && folder.join("manifest.json").is_file()).then_some(config)
}

/// The classes of the dataset that a checkpoint was trained on; empty for other files.
fn trained_classes(weights: &Path) -> Vec<String> {
    let folder = if weights.is_dir() { Some(weights) } else { weights.parent() };
    let manifest = folder.map(|folder| folder.join("manifest.json"));
    let read = |path: PathBuf| Manifest::from_bytes(&std::fs::read(&path).ok()?, &path).ok();
    manifest.and_then(read).map_or(Vec::new(), |manifest| manifest.data.classes)
}

/// The names of the classes in Hugging Face's `config.json`, where it has any.
pub(crate) fn labels(source: &Source) -> Vec<String> {
    let Some(map) = source.hugging_face_config().and_then(|config| config.get("id2label")?.as_object()) else {
        return Vec::new();
    };
    let name = |index: usize| map.get(&index.to_string()).and_then(|name| name.as_str()).map(str::to_owned);
    let names: Vec<String> = (0..map.len()).map_while(name).collect();
    // What transformers writes where nobody named the classes.
    let unnamed = names.iter().enumerate().all(|(index, name)| *name == format!("LABEL_{index}"));
    if unnamed || names.len() != map.len() { Vec::new() } else { names }
}

fn source_error(error: SourceError) -> Error {
    let help = error.help.as_ref().map_or(String::new(), |help| format!(". {help}"));
    Error::Failed(format!("{error}{help}"))
}

/// An error of loading, with the file's name once and the tensors below it.
fn load_error(path: &Path, error: LoadError, architecture: &Architecture) -> Error {
    match error {
        LoadError::Source(error) => source_error(error),
        LoadError::Fit(error) => Error::Failed(format!(
            "{}: {error}\nThe network has width {}, depth {}, patch {}, {} classes and images of {} × {}",
            path.display(),
            architecture.width,
            architecture.depth,
            architecture.patch,
            architecture.classes,
            architecture.image[0],
            architecture.image[1]
        )),
    }
}

/// SHA-256 of the weights file of `path`; of shards, of their index.
///
/// # Errors
/// Where it cannot be read.
pub fn weights_hash(path: &Path) -> Result<String> {
    let file = open(&file_of(path, false)?, &Naming::default(), &mut |_| ())?.path().to_path_buf();
    let failed = |e: std::io::Error| Error::io("read", &file, &e);
    let mut reader = std::fs::File::open(&file).map_err(failed)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match reader.read(&mut buffer).map_err(failed)? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(&buffer[..read]),
        }
    }
}

/// Puts the weights of `path` (a file, a folder that holds one, or a run) into a network that is to be trained further. A head for
/// other classes keeps its initial values, and the position embedding is brought to the network's grid; whatever else does not fit is
/// an error. Attention of any kind takes the same projections.
///
/// # Errors
/// Where the file cannot be read, or its tensors are not the network's.
pub fn fine_tune(
    path: &Path,
    model: VisionTransformer,
    architecture: &Architecture,
    note: &mut dyn FnMut(&str),
) -> Result<VisionTransformer> {
    let file = file_of(path, false)?;
    let source = open(&file, &Naming::default(), note)?;
    let hints = Hints { heads: Some(architecture.heads), ..Hints::default() };
    if let Ok(recognised) = weights::recognise(&source, &hints) {
        let differences = differences(&recognised.config, architecture);
        if !differences.is_empty() {
            return Err(Error::Usage(format!(
                "train.weights: {} is not of the network of the configuration: {}",
                file.display(),
                differences.join(", ")
            )));
        }
    }
    let expect = ["head.*", "head_dist.*", "dist_token"].map(String::from).to_vec();
    let options = LoadOptions { expect, ..LoadOptions::default() };
    let (model, report) =
        weights::load_into(model, &source, architecture, &options).map_err(|e| load_error(&file, e, architecture))?;
    note(&format!("starting from {}: {report}", file.display()));
    if report.missing.iter().any(|name| name.starts_with("head")) {
        note(&format!("the head for {} classes begins anew: the file has none for them", architecture.classes));
    }
    Ok(model)
}
