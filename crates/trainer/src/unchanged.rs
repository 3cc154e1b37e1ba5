//! What must not have changed between a checkpoint and the run that continues it.

use std::path::Path;

use crate::checkpoint::{Checkpoint, DataFingerprint};
use crate::config::{Config, load_text};
use crate::error::{Error, Result};
use crate::log::progress::Console;

/// Keys that may change, because no number of the steps already done depends on them.
const FREE: [&str; 7] = ["run.device", "run.name", "data.workers", "data.prefetch", "data.bad_image", "checkpoint", "log"];

/// Refuses a configuration or dataset that is not the checkpoint's, or with `allowed` says what is different.
///
/// # Errors
/// Lists every key with both values.
pub fn check(
    checkpoint: &Checkpoint,
    config: &Config,
    data: &DataFingerprint,
    allowed: bool,
    config_path: &Path,
    console: &Console,
) -> Result<()> {
    let saved = load_text(&checkpoint.config, &checkpoint.path.join("config.toml").display().to_string(), &[])?.config;
    let mut changes = Vec::new();
    compare("", &table(&saved), &table(config), &mut changes);
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
    for (what, before, now) in
        [("training", before.train_images, data.train_images), ("held-out", before.val_images, data.val_images)]
    {
        if before != now {
            changes.push(format!("number of {what} images: {before} in the checkpoint, {now} in the dataset"));
        }
    }
    for (what, before, now) in
        [("training", &before.train_files, &data.train_files), ("held-out", &before.val_files, &data.val_files)]
    {
        if before != now {
            changes.push(format!("the {what} images have other file names or another order than in the checkpoint"));
        }
    }
    if changes.is_empty() {
        return Ok(());
    }
    let list = changes.iter().map(|change| format!("\n  {change}")).collect::<String>();
    if allowed {
        console.say(format!("continuing with what is different from the checkpoint:{list}"));
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{} is not what the checkpoint was trained with:{list}\nChange it back, or continue all the same with --override; \
         the run is then no longer what its start says",
        config_path.display()
    )))
}

fn table(config: &Config) -> toml::Table {
    toml::Table::try_from(config).expect("a configuration has only values that TOML can hold")
}

/// Lists the keys in which two configurations differ.
fn compare(path: &str, before: &toml::Table, now: &toml::Table, changes: &mut Vec<String>) {
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
                changes.push(format!("{path}: {} in the checkpoint, {} in the configuration", show(before), show(now)));
            }
            _ => {}
        }
    }
}
