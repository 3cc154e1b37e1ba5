//! From a file name and `--set` options to a checked configuration.

use std::path::{Path, PathBuf};

use manyheads_model::Architecture;
use serde::Deserialize;

use super::Config;
use super::check::{self, Images};
use super::layers::{Layer, merge};
use super::report::{nearest, render};
use crate::error::{Error, Result};

/// A configuration that was read and checked, with the texts it came from.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration with every default and preset value written out.
    pub config: Config,
    /// The network it describes.
    pub architecture: Architecture,
    layers: Vec<Layer>,
}

/// Reads a configuration file, what it extends, and `KEY=VALUE` settings that win over both; checks everything that can be
/// checked without opening the dataset.
///
/// # Errors
/// [`Error::Usage`] with file, line and the nearest known name.
pub fn load(path: &Path, sets: &[String]) -> Result<Loaded> {
    let mut layers = Vec::new();
    read_file(path, &mut Vec::new(), &mut layers)?;
    for set in sets {
        layers.push(setting(set)?);
    }
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    compose(layers, name, Images::Both)
}

/// Like [`load`], for work on images that the configuration need not name.
///
/// # Errors
/// As [`load`].
pub fn load_without_images(path: &Path, sets: &[String]) -> Result<Loaded> {
    let mut layers = Vec::new();
    read_file(path, &mut Vec::new(), &mut layers)?;
    for set in sets {
        layers.push(setting(set)?);
    }
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    compose(layers, name, Images::Elsewhere)
}

/// Like [`load`], for a text that is not a file of its own; `origin` is what errors call it.
///
/// # Errors
/// As [`load`].
pub fn load_text(text: &str, origin: &str, sets: &[String]) -> Result<Loaded> {
    let mut layers = vec![parse(text.into(), origin.into())?];
    for set in sets {
        layers.push(setting(set)?);
    }
    compose(layers, None, Images::Both)
}

/// Like [`load_text`], for work on images that the configuration does not name.
///
/// # Errors
/// As [`load`].
pub fn load_text_without_images(text: &str, origin: &str, sets: &[String]) -> Result<Loaded> {
    let mut layers = vec![parse(text.into(), origin.into())?];
    for set in sets {
        layers.push(setting(set)?);
    }
    compose(layers, None, Images::Elsewhere)
}

/// Reads `path` after the files it extends, so that later layers win.
fn read_file(path: &Path, within: &mut Vec<PathBuf>, layers: &mut Vec<Layer>) -> Result<()> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::Usage(format!("cannot read the configuration {}: {e}", path.display())))?;
    let identity = path.canonicalize().unwrap_or_else(|_| path.into());
    let layer = parse(text, path.display().to_string())?;
    if let Some(base) = layer.table.get("extends").and_then(toml::Value::as_str) {
        within.push(identity);
        let base = path.parent().unwrap_or(Path::new("")).join(base);
        if base.canonicalize().is_ok_and(|base| within.contains(&base)) {
            let place = layer.locate("extends");
            return Err(Error::Usage(render("a configuration extends itself", place.as_ref(), None)));
        }
        read_file(&base, within, layers).map_err(|e| match layer.locate("extends") {
            Some(place) if !base.exists() => Error::Usage(render(&format!("cannot read {}", base.display()), Some(&place), None)),
            _ => e,
        })?;
    }
    layers.push(layer);
    Ok(())
}

/// `a.b=c` as a layer: TOML where it is TOML, otherwise a text value.
fn setting(set: &str) -> Result<Layer> {
    let Some((key, value)) = set.split_once('=') else {
        return Err(Error::Usage(format!("--set {set}: expected KEY=VALUE, such as --set train.epochs=10")));
    };
    if key.trim() == "extends" {
        return Err(Error::Usage(format!("--set {set}: only a file can extend another; write the key into one")));
    }
    let origin = format!("--set {set}");
    let text = format!("{} = {}", key.trim(), value.trim());
    if text.parse::<toml::Table>().is_ok() {
        return parse(text, origin);
    }
    parse(format!("{} = {}", key.trim(), toml::Value::String(value.trim().into())), origin)
}

/// Parses one text and checks its keys and types by itself, so that errors have its line numbers.
fn parse(text: String, origin: String) -> Result<Layer> {
    let mut layer = Layer { origin, text, table: toml::Table::new() };
    match toml::from_str::<toml::Table>(&layer.text) {
        Ok(table) => layer.table = table,
        Err(e) => {
            let place = e.span().map(|span| layer.place(span));
            return Err(Error::Usage(render(&format!("not valid TOML: {}", e.message()), place.as_ref(), None)));
        }
    }
    match toml::from_str::<Config>(&layer.text) {
        Ok(_) => Ok(layer),
        Err(e) => Err(Error::Usage(explain(&layer, &e))),
    }
}

/// An error of deserialisation with its place and the nearest known name.
fn explain(layer: &Layer, error: &toml::de::Error) -> String {
    let span = error.span();
    let place = span.clone().map(|span| layer.place(span));
    let message = error.message();
    // serde's wording: "unknown field `a`, expected one of `b`, `c`" and "unknown variant `a`, expected `b` or `c`".
    let mut words = message.split('`').skip(1).step_by(2);
    let unknown = message.strip_prefix("unknown ").and_then(|m| m.split_once(' ')).map(|(what, _)| what);
    let (Some(what), Some(word)) = (unknown, words.next()) else {
        return render(message, place.as_ref(), None);
    };
    let known: Vec<&str> = words.collect();
    let path = layer.path_at(span.map_or(0, |span| span.start));
    let section = path.split_last().map_or(String::new(), |(_, tables)| tables.join("."));
    let near = nearest(word, known.iter().copied());
    let help = match (what, near) {
        (_, Some(near)) => format!("did you mean `{near}`?"),
        ("field", None) => match elsewhere(word) {
            Some(full) => format!("did you mean `{full}`?"),
            None => format!("known keys: {}", known.join(", ")),
        },
        _ => format!("known values: {}", known.join(", ")),
    };
    let title = match what {
        "field" if section.is_empty() => format!("unknown key `{word}`"),
        "field" => format!("unknown key `{word}` in [{section}]"),
        _ => format!("unknown value `{word}`"),
    };
    render(&title, place.as_ref(), Some(&help))
}

/// The full path of a key of any section that is called like `word`.
fn elsewhere(word: &str) -> Option<String> {
    let schema = Config::json_schema();
    let sections = schema["properties"].as_object()?;
    let mut names: Vec<(String, String)> = Vec::new();
    for (section, property) in sections {
        let Some(definition) = property["$ref"].as_str().and_then(|r| r.rsplit('/').next()) else { continue };
        if let Some(keys) = schema["$defs"][definition]["properties"].as_object() {
            names.extend(keys.keys().map(|key| (key.clone(), format!("{section}.{key}"))));
        }
    }
    let near = nearest(word, names.iter().map(|(key, _)| key.as_str()))?.to_string();
    names.into_iter().find(|(key, _)| *key == near).map(|(_, full)| full)
}

fn compose(layers: Vec<Layer>, name: Option<String>, images: Images) -> Result<Loaded> {
    let mut table = toml::Table::new();
    for layer in &layers {
        merge(&mut table, &layer.table);
    }
    table.remove("extends");
    let config = Config::deserialize(table).map_err(|e| {
        // Text and table are read by different rules in small things, such as the length of an array.
        let wrong = layers.iter().rev().find(|layer| Config::deserialize(layer.table.clone()).is_err());
        let origin = wrong.map_or("the composed configuration", |layer| &layer.origin);
        Error::Usage(format!("{origin}: {}", e.to_string().trim().replace('\n', " ")))
    })?;
    let mut config = config;
    config.run.name = config.run.name.take().or(name).or(Some("run".into()));
    resolve(config, layers, images)
}

/// Checks a composed configuration and writes its defaults out.
fn resolve(mut config: Config, layers: Vec<Layer>, images: Images) -> Result<Loaded> {
    let wrong = |path: &str, message: &str, help: Option<&str>| located(&layers, path, message, help);
    let model_error = |e: manyheads_model::ModelError| wrong(&format!("model.{}", e.key), &e.message, e.help.as_deref());
    let mut architecture = config.model.resolve().map_err(model_error)?;
    architecture.ops = config.run.ops;
    check::fill_from_preset(&mut config);
    check::check(&config, &architecture, images).map_err(|p| wrong(p.key, &p.message, p.help.as_deref()))?;
    config.model = config.model.resolved().map_err(model_error)?;
    check::fill(&mut config);
    Ok(Loaded { config, architecture, layers })
}

/// An error about the key `path`, pointing at the last text that sets it, if one does.
fn located(layers: &[Layer], path: &str, message: &str, help: Option<&str>) -> Error {
    let place = layers.iter().rev().find_map(|layer| layer.locate(path));
    let message = match &place {
        Some(_) => message.to_string(),
        None => format!("{path}: {message}"),
    };
    Error::Usage(render(&message, place.as_ref(), help))
}

impl Loaded {
    /// Checks that need the number of training images; call it once the dataset is open.
    ///
    /// # Errors
    /// [`Error::Usage`] pointing at the key.
    pub fn check_data(&self, train_images: usize, classes: usize, class_hint: &str) -> Result<()> {
        check::check_data(&self.config, self.architecture.classes, train_images, classes, class_hint)
            .map_err(|p| self.error(p.key, &p.message, p.help.as_deref()))
    }

    /// An error about the key `path` (as `train.epochs`), pointing at the text that sets it, if one does.
    pub fn error(&self, path: &str, message: &str, help: Option<&str>) -> Error {
        located(&self.layers, path, message, help)
    }
}
