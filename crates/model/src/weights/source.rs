//! An opened checkpoint: which of its tensors are the model's, under which names.

use super::files::{read_text, regular};
use super::store::{Container, DType, SourceError, Store};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// How to open a checkpoint.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Take the averaged weights (`model_ema`, `state_dict_ema`) of a checkpoint that holds both. The trained weights otherwise, which
    /// are those that DeiT evaluates.
    pub ema: bool,
    /// Where in the checkpoint the model is, as `teacher` or `state_dict.backbone`, where it holds several.
    pub root: Option<String>,
}

/// A tensor of an opened checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name without container keys and wrappers' prefixes.
    pub name: String,
    /// Its name in the file.
    pub stored_as: String,
    /// Its shape in the file.
    pub shape: Vec<usize>,
    /// Its type in the file.
    pub dtype: DType,
}

/// Weights in a file, with names, shapes and types known and values still on disk.
pub struct Source {
    store: Store,
    tensors: BTreeMap<String, TensorInfo>,
    notes: Vec<String>,
    config: Option<Value>,
    /// `config.json` beside the file, where it was read.
    config_file: Option<PathBuf>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Source({}, {} tensors)", self.path().display(), self.tensors.len())
    }
}

/// The tensor by which a Vision Transformer is found: timm's and DeiT's name, and Hugging Face's.
const ANCHORS: [&str; 2] = ["patch_embed.proj.weight", "embeddings.patch_embeddings.projection.weight"];

/// First words of what training programs store beside the model.
const TRAINING_STATE: [&str; 12] = [
    "optimizer",
    "optimizers",
    "optimizer_states",
    "lr_scheduler",
    "lr_schedulers",
    "scheduler",
    "scaler",
    "loss_scaler",
    "amp",
    "amp_scaler",
    "args",
    "epoch",
];

impl Source {
    /// Opens a `.safetensors` file, a `.pt`, `.pth` or `.bin` file of any of PyTorch's containers, a `*.index.json` with its shards, or a
    /// directory that holds one of these. Reads names, shapes and types, and no values.
    ///
    /// The model may lie under keys (`model`, `state_dict`, `model_ema` …) and wrappers' prefixes (`module.`, `_orig_mod.`, `backbone.`
    /// …); they are taken off, and [`Self::notes`] says which. What training programs store beside it (optimizer states) is left out.
    ///
    /// # Errors
    /// Where the file, a shard, the index or a `config.json` beside it is no regular file; where it cannot be read or is damaged, where it holds no Vision Transformer, or several with nothing to choose by.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, SourceError> {
        let store = Store::open(path)?;
        let names: Vec<&str> = store.tensors.keys().map(String::as_str).collect();
        let mut notes = Vec::new();
        let root = choose_root(&names, options, store.path(), &mut notes)?;

        let roots: BTreeSet<String> = roots(&names);
        let mut tensors = BTreeMap::new();
        let mut left_out: BTreeMap<&str, usize> = BTreeMap::new();
        for (stored_as, stored) in &store.tensors {
            let name = match stored_as.strip_prefix(&root) {
                Some(name) => name,
                None => {
                    let first = stored_as.split('.').next().unwrap_or_default();
                    let other_model =
                        roots.iter().any(|other| *other != root && !other.is_empty() && stored_as.starts_with(other.as_str()));
                    if other_model || TRAINING_STATE.contains(&first) || is_average(first) {
                        *left_out.entry(first).or_default() += 1;
                        continue;
                    }
                    stored_as
                }
            };
            let info = TensorInfo {
                name: name.to_owned(),
                stored_as: stored_as.clone(),
                shape: stored.shape.clone(),
                dtype: stored.dtype,
            };
            if let Some(other) = tensors.insert(name.to_owned(), info) {
                return Err(SourceError::new(store.path(), format!("{} and {stored_as} are both {name}", other.stored_as)));
            }
        }
        if !left_out.is_empty() {
            let list: Vec<String> = left_out.iter().map(|(first, count)| format!("{first} ({count} tensors)")).collect();
            notes.push(format!("left out beside the model: {}", list.join(", ")));
        }
        let (config, config_file) = hugging_face_config(store.path(), &mut notes)?;
        Ok(Self { store, tensors, notes, config, config_file })
    }

    /// The file that was opened; the index, where there are shards.
    pub fn path(&self) -> &Path {
        self.store.path()
    }

    /// Every file that was read on opening or is still to be read: the file or the index and its shards, and a `config.json` beside them.
    /// What is written meanwhile must be none of them.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.store.opened().chain(self.config_file.as_deref())
    }

    /// The kind of file.
    pub fn container(&self) -> Container {
        self.store.container
    }

    /// The model's tensors, in alphabetical order.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.values()
    }

    /// What was chosen on opening, a sentence each, for the user to read.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Hugging Face's `config.json` beside the file, where there is one of a ViT or DeiT.
    pub fn hugging_face_config(&self) -> Option<&Value> {
        self.config.as_ref()
    }

    /// What the file says of itself under a key, where it is a safetensors file.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.store.metadata.get(key).map(String::as_str)
    }

    /// A tensor's values as f32, in row-major order.
    ///
    /// # Errors
    /// Where there is no such tensor, where it holds no floats, where a value is NaN, infinite or beyond the range of f32, or where the file cannot be read.
    pub fn read(&self, name: &str) -> Result<Vec<f32>, SourceError> {
        let stored_as = self.tensors.get(name).map_or(name, |info| &info.stored_as);
        self.store.read(stored_as)
    }
}

/// The prefixes under which an anchor is found. Hugging Face's own `vit.` and `deit.` are part of its names.
fn roots(names: &[&str]) -> BTreeSet<String> {
    names
        .iter()
        .filter_map(|name| ANCHORS.iter().find_map(|anchor| name.strip_suffix(anchor)))
        .filter(|root| root.is_empty() || root.ends_with('.'))
        .map(|root| match root.strip_suffix("vit.") {
            // `deit.` ends in `it.` but not in `vit.`; `my_vit.` does, and is a wrapper's.
            Some(outer) if outer.is_empty() || outer.ends_with('.') => outer.to_owned(),
            _ => match root.strip_suffix("deit.") {
                Some(outer) if outer.is_empty() || outer.ends_with('.') => outer.to_owned(),
                _ => root.to_owned(),
            },
        })
        .collect()
}

fn is_average(root: &str) -> bool {
    root.split('.').any(|word| word == "ema" || word.ends_with("_ema") || word.starts_with("ema_"))
}

fn choose_root(names: &[&str], options: &OpenOptions, path: &Path, notes: &mut Vec<String>) -> Result<String, SourceError> {
    let roots = roots(names);
    let list = |roots: &[&String]| {
        roots
            .iter()
            .map(|root| if root.is_empty() { "the top".into() } else { format!("`{}`", root.trim_end_matches('.')) })
            .collect::<Vec<String>>()
            .join(", ")
    };
    if roots.is_empty() {
        let some: Vec<&str> = names.iter().take(5).copied().collect();
        return Err(SourceError::new(
            path,
            format!("holds no Vision Transformer: none of its {} tensors is named {} or {}", names.len(), ANCHORS[0], ANCHORS[1]),
        )
        .help(format!("its first names are {}", some.join(", "))));
    }
    let (averages, plain): (Vec<&String>, Vec<&String>) = roots.iter().partition(|root| is_average(root));
    if let Some(wanted) = &options.root {
        let wanted = if wanted.is_empty() || wanted.ends_with('.') { wanted.clone() } else { format!("{wanted}.") };
        if roots.contains(&wanted) {
            return Ok(wanted);
        }
        let under: Vec<&String> = roots.iter().filter(|root| root.starts_with(&wanted)).collect();
        return match under.as_slice() {
            [root] => Ok((*root).clone()),
            _ => Err(SourceError::new(path, format!("holds {} models under `{}`", under.len(), wanted.trim_end_matches('.')))
                .help(format!("models are at {}; say which with --root NAME", list(&roots.iter().collect::<Vec<_>>())))),
        };
    }
    let candidates = match (options.ema, averages.is_empty(), plain.is_empty()) {
        (true, true, _) => {
            return Err(SourceError::new(path, "holds no averaged weights (model_ema, state_dict_ema)")
                .help(format!("models are at {}", list(&plain))));
        }
        (true, false, _) | (false, _, true) => &averages,
        (false, _, false) => &plain,
    };
    let [root] = candidates.as_slice() else {
        let help = match candidates.iter().any(|root| root.is_empty()) {
            true => "say which one with --root NAME; --root '' is the top",
            false => "say which one with --root NAME",
        };
        return Err(SourceError::new(path, format!("holds several models: {}", list(candidates))).help(help));
    };
    if !root.is_empty() {
        notes.push(format!("the model is at `{}`", root.trim_end_matches('.')));
    }
    if !options.ema && !averages.is_empty() {
        notes.push(match plain.is_empty() {
            true => "these are averaged weights (EMA); the file holds no others".to_owned(),
            false => format!("trained weights taken; averaged ones (EMA) are at {}", list(&averages)),
        });
    } else if options.ema {
        notes.push("averaged weights (EMA) taken".to_owned());
    }
    Ok((*root).clone())
}

/// `config.json` beside a file, where it is of a model whose layout is known, and its path where it was read.
fn hugging_face_config(path: &Path, notes: &mut Vec<String>) -> Result<(Option<Value>, Option<PathBuf>), SourceError> {
    let file = path.with_file_name("config.json");
    if !file.exists() {
        return Ok((None, None));
    }
    regular(&file)?;
    let text = match read_text(&file) {
        Ok(text) => text,
        Err(error) => {
            notes.push(format!("config.json beside the file {} and is not used", error.message));
            return Ok((None, None));
        }
    };
    let config: Value = match serde_json::from_str(&text) {
        Ok(config) => config,
        Err(error) => {
            notes.push(format!("config.json beside the file is no sound JSON and is not used: {error}"));
            return Ok((None, Some(file)));
        }
    };
    let kind = config.get("model_type").and_then(Value::as_str).unwrap_or("nothing of a model");
    let known = matches!(kind, "vit" | "deit");
    notes.push(match known {
        true => format!("config.json beside the file says {kind}"),
        false => format!("config.json beside the file says {kind} and is not used"),
    });
    Ok((known.then_some(config), Some(file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(names: &[&str], options: &OpenOptions) -> Result<String, SourceError> {
        choose_root(names, options, Path::new("file.pth"), &mut Vec::new())
    }

    #[test]
    fn roots_are_container_keys_and_prefixes() {
        let plain = OpenOptions::default();
        for (name, expected) in [
            ("patch_embed.proj.weight", ""),
            ("model.module.patch_embed.proj.weight", "model.module."),
            ("_orig_mod.backbone.patch_embed.proj.weight", "_orig_mod.backbone."),
            ("vit.embeddings.patch_embeddings.projection.weight", ""),
            ("deit.embeddings.patch_embeddings.projection.weight", ""),
            ("model.deit.embeddings.patch_embeddings.projection.weight", "model."),
            ("embeddings.patch_embeddings.projection.weight", ""),
            ("my_vit.patch_embed.proj.weight", "my_vit."),
        ] {
            assert_eq!(root(&[name, "head.weight"], &plain).as_deref(), Ok(expected), "{name}");
        }
    }

    #[test]
    fn averages_are_taken_when_asked_for_or_alone() {
        let both = ["model.patch_embed.proj.weight", "model_ema.patch_embed.proj.weight"];
        let ema = OpenOptions { ema: true, root: None };
        assert_eq!(root(&both, &OpenOptions::default()).as_deref(), Ok("model."));
        assert_eq!(root(&both, &ema).as_deref(), Ok("model_ema."));
        assert_eq!(root(&both[1..], &OpenOptions::default()).as_deref(), Ok("model_ema."));
        assert!(root(&both[..1], &ema).expect_err("no average").message.contains("no averaged weights"));
    }

    #[test]
    fn several_models_need_a_choice() {
        let both = ["student.patch_embed.proj.weight", "teacher.patch_embed.proj.weight"];
        let error = root(&both, &OpenOptions::default()).expect_err("two models");
        assert!(error.message.contains("`student`, `teacher`"), "{error}");
        assert!(error.help.is_some_and(|help| help.contains("--root NAME")));
        let teacher = OpenOptions { ema: false, root: Some("teacher".into()) };
        assert_eq!(root(&both, &teacher).as_deref(), Ok("teacher."));
        let nobody = OpenOptions { ema: false, root: Some("nobody".into()) };
        assert!(root(&both, &nobody).is_err());
    }

    #[test]
    fn the_top_and_a_model_that_holds_another_can_be_chosen() {
        let names = ["patch_embed.proj.weight", "a.patch_embed.proj.weight", "a.b.patch_embed.proj.weight"];
        let error = root(&names, &OpenOptions::default()).expect_err("three models");
        assert!(error.help.is_some_and(|help| help.contains("--root '' is the top")));
        for (said, expected) in [("", ""), ("a", "a."), ("a.b", "a.b.")] {
            let options = OpenOptions { ema: false, root: Some(said.into()) };
            assert_eq!(root(&names, &options).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn a_file_of_another_kind_shows_its_names() {
        let error = root(&["conv1.weight"], &OpenOptions::default()).expect_err("no ViT");
        assert!(error.message.contains("no Vision Transformer") && error.help.expect("names").contains("conv1.weight"));
    }
}
