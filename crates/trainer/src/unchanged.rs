//! What must not have changed between a checkpoint and the run that continues it.

use std::path::Path;

use crate::checkpoint::{Checkpoint, DataFingerprint};
use crate::config::{Config, load_text};
use crate::error::{Error, Result};

/// Keys that may change, because no number of the steps already done depends on them.
const FREE: [&str; 10] = [
    "run.device",
    "run.name",
    "run.check_resources",
    "data.workers",
    "data.prefetch",
    "data.bad_image",
    "train.recompute",
    "train.skip_non_finite",
    "checkpoint",
    "log",
];

/// Something that is not as it was at the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key of the configuration, or that of the dataset's half.
    pub key: String,
    /// What was and what is.
    pub what: String,
}

/// Whether `key` is one of `allowed`, or in one of its sections.
fn allows(allowed: &[String], key: &str) -> bool {
    allowed.iter().any(|allow| key.strip_prefix(allow.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

/// Refuses a configuration or dataset that is not the checkpoint's, but for the keys or sections in `allowed`; returns what is different.
///
/// # Errors
/// Lists every key with both values.
pub fn check(
    checkpoint: &Checkpoint,
    config: &Config,
    data: &DataFingerprint,
    allowed: &[String],
    config_path: &Path,
) -> Result<Vec<Change>> {
    let saved = load_text(&checkpoint.config, &checkpoint.path.join("config.toml").display().to_string(), &[])?.config;
    let (saved, config) = (table(&saved), table(config));
    for allow in allowed {
        let known = |table: &toml::Table| {
            let mut keys = allow.split('.');
            let first = keys.next().and_then(|key| table.get(key));
            keys.try_fold(first, |value, key| value.map(|value| value.get(key))).flatten().is_some()
        };
        if !known(&saved) && !known(&config) {
            return Err(Error::Usage(format!("--allow {allow}: the configuration has no such key or section")));
        }
    }
    let mut changes = Vec::new();
    compare("", &saved, &config, &mut changes);
    let before = &checkpoint.manifest.data;
    if before.classes != data.classes {
        return Err(Error::Failed(format!(
            "the classes of the dataset have changed: the checkpoint was trained on {} classes ({}), the dataset has {} ({}). \
             The run cannot be continued on it",
            before.classes.len(),
            before.classes.join(", "),
            data.classes.len(),
            data.classes.join(", ")
        )));
    }
    let halves = [
        ("data.train", "training", (before.train_images, data.train_images), before.train_files == data.train_files),
        ("data.val", "held-out", (before.val_images, data.val_images), before.val_files == data.val_files),
    ];
    for (key, half, (before, now), same_files) in halves {
        let what = if before != now {
            format!("number of {half} images: {before} in the checkpoint, {now} in the dataset")
        } else if !same_files {
            format!("the {half} images have other file names or another order than in the checkpoint")
        } else {
            continue;
        };
        changes.push(Change { key: key.into(), what });
    }
    let refused: Vec<&Change> = changes.iter().filter(|change| !allows(allowed, &change.key)).collect();
    if refused.is_empty() {
        return Ok(changes);
    }
    let list: String = refused.iter().map(|change| format!("\n  {}", change.text())).collect();
    let mut keys: Vec<&str> = refused.iter().map(|change| change.key.as_str()).collect();
    keys.dedup();
    let options: String = keys.iter().map(|key| format!(" --allow {key}")).collect();
    Err(Error::Usage(format!(
        "{} is not what the checkpoint was trained with:{list}\nChange it back, or continue all the same with{options}; \
         the run is then no longer what its start says, which its events will tell",
        config_path.display()
    )))
}

impl Change {
    /// What has changed, with its key.
    pub fn text(&self) -> String {
        format!("{}: {}", self.key, self.what)
    }
}

fn table(config: &Config) -> toml::Table {
    toml::Table::try_from(config).expect("a configuration has only values that TOML can hold")
}

/// Lists the keys in which two configurations differ.
fn compare(path: &str, before: &toml::Table, now: &toml::Table, changes: &mut Vec<Change>) {
    let mut keys: Vec<&String> = before.keys().chain(now.keys()).collect();
    keys.sort();
    keys.dedup();
    for key in keys {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        if FREE.contains(&path.as_str()) {
            continue;
        }
        match (before.get(key), now.get(key)) {
            (Some(toml::Value::Table(before)), Some(toml::Value::Table(now))) => compare(&path, before, now, changes),
            (before, now) if before != now => {
                let show = |value: Option<&toml::Value>| value.map_or("not set".into(), toml::Value::to_string);
                let what = format!("{} in the checkpoint, {} in the configuration", show(before), show(now));
                changes.push(Change { key: path, what });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::allows;

    #[test]
    fn a_key_is_allowed_by_itself_or_by_its_section() {
        let allowed = ["train.epochs".to_owned(), "data".to_owned()];
        for (key, expected) in
            [("train.epochs", true), ("data.train", true), ("train", false), ("train.epochs_more", false), ("database.x", false)]
        {
            assert_eq!(allows(&allowed, key), expected, "{key}");
        }
    }
}
