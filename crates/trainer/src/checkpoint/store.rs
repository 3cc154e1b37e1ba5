//! The folder `checkpoints/` of a run: writing, finding the newest sound one, removing old ones.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use manyheads_model::weights::timm::NamedTensor;

use super::container::{read_tensors, sha256_hex, write_synced, write_tensors};
use super::manifest::Manifest;
use super::parts::Parts;
use crate::error::{Error, Result};

const MODEL: &str = "model.safetensors";
const EMA: &str = "ema.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const CONFIG: &str = "config.toml";
const MANIFEST: &str = "manifest.json";
/// A checkpoint being written; it never counts.
const WRITING: &str = ".writing-";
/// A link being made.
const LINK: &str = ".link-";
/// A checkpoint that one of the same step is about to replace.
const REPLACED: &str = ".replaced-";

/// The folder of a run's checkpoints.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
}

/// Which checkpoints stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// So many of the newest.
    pub newest: usize,
    /// That of this step, the best.
    pub best: Option<u64>,
    /// Those of every multiple of so many steps.
    pub every: Option<u64>,
}

/// A checkpoint read and found sound.
#[derive(Debug)]
pub struct Checkpoint {
    /// Its folder.
    pub path: PathBuf,
    /// State of the run.
    pub manifest: Manifest,
    /// Weights by timm's names.
    pub model: HashMap<String, NamedTensor>,
    /// The running average of the weights, where one was kept.
    pub ema: Option<HashMap<String, NamedTensor>>,
    /// Moments of the optimizer.
    pub optimizer: HashMap<String, NamedTensor>,
    /// The configuration that it was trained with.
    pub config: String,
}

/// The newest checkpoint that is whole.
#[derive(Debug)]
pub struct Newest {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// Steps of newer ones that are not sound, with the reasons.
    pub broken: Vec<(u64, String)>,
}

/// Name of the folder of `step`.
fn folder(step: u64) -> String {
    format!("step-{step:08}")
}

impl Store {
    /// The checkpoints of the run in `run_dir`.
    pub fn new(run_dir: &Path) -> Self {
        Self { dir: run_dir.join("checkpoints") }
    }

    /// Steps that have a checkpoint folder, sound or not, oldest first.
    ///
    /// # Errors
    /// Where the folder cannot be listed.
    pub fn steps(&self) -> Result<Vec<u64>> {
        let step = |name: &String| name.strip_prefix("step-")?.parse().ok().filter(|step| folder(*step) == *name);
        let names = self.names()?;
        let mut steps: Vec<u64> = names.iter().filter(|name| self.dir.join(name).is_dir()).filter_map(step).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    fn names(&self) -> Result<Vec<String>> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(Error::io("list", &self.dir, &e)),
        };
        entries
            .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
            .collect::<std::io::Result<_>>()
            .map_err(|e| Error::io("list", &self.dir, &e))
    }

    /// Makes the empty folder of a new run. A run without it has lost its checkpoints.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn create(&self) -> Result<()> {
        fs::create_dir_all(&self.dir).map_err(|e| Error::io("create", &self.dir, &e))
    }

    /// Writes a checkpoint; when this returns, it is on the disk under its name. [`Store::settle`] then points the links to it.
    ///
    /// # Errors
    /// Says what could not be written and that the earlier checkpoints are untouched. Nothing half-written is left.
    pub fn save(&self, mut manifest: Manifest, parts: Parts) -> Result<PathBuf> {
        let name = folder(manifest.step);
        let writing = self.dir.join(format!("{WRITING}{name}"));
        let target = self.dir.join(&name);
        let written = self.write(&writing, &target, &mut manifest, parts);
        written.map_err(|(doing, e)| {
            // What was written so far only takes up the space that may be missing.
            let _ = fs::remove_dir_all(&writing);
            let kept = match self.steps().ok().and_then(|steps| steps.last().copied()) {
                Some(step) => format!("{} and older ones are untouched", folder(step)),
                None => "there is no earlier one".into(),
            };
            let run = self.dir.parent().unwrap_or(&self.dir).display();
            if e.kind() == std::io::ErrorKind::InvalidData {
                return Error::Failed(format!(
                    "after step {} {e}, so checkpoint {name} is not written; {kept}. Lower optimizer.learning_rate or set \
                     optimizer.clip_norm = 1.0",
                    manifest.step
                ));
            }
            Error::Failed(format!(
                "checkpoint {name} was not written: cannot {doing}: {e}; {kept}. Mend that, then continue with: manyheads resume {run}"
            ))
        })?;
        Ok(target)
    }

    fn write(
        &self,
        writing: &Path,
        target: &Path,
        manifest: &mut Manifest,
        parts: Parts,
    ) -> std::result::Result<(), (String, std::io::Error)> {
        let at = |doing: &str, path: &Path| {
            let what = format!("{doing} {}", path.display());
            move |e| (what, e)
        };
        // The folder is there since the run began; if somebody has removed it, a new one would hide that.
        if writing.exists() {
            fs::remove_dir_all(writing).map_err(at("remove", writing))?;
        }
        fs::create_dir(writing).map_err(at("create", writing))?;
        manifest.files.clear();
        for (name, tensors) in [(MODEL, Some(parts.model)), (EMA, parts.ema), (OPTIMIZER, Some(parts.optimizer))] {
            let Some(tensors) = tensors else { continue };
            let path = writing.join(name);
            let entry = write_synced(&path, |out| write_tensors(out, tensors)).map_err(at("write", &path))?;
            manifest.files.insert(name.into(), entry);
        }
        let path = writing.join(CONFIG);
        let entry = write_synced(&path, |out| out.write_all(parts.config.as_bytes())).map_err(at("write", &path))?;
        manifest.files.insert(CONFIG.into(), entry);
        let path = writing.join(MANIFEST);
        write_synced(&path, |out| out.write_all(&manifest.to_bytes())).map_err(at("write", &path))?;
        sync_dir(writing).map_err(at("sync", writing))?;

        let replaced = self.dir.join(format!("{REPLACED}{}", folder(manifest.step)));
        if target.exists() {
            // A folder cannot be renamed onto a full one. Dying between the two renames is mended by `tidy`.
            if replaced.exists() {
                fs::remove_dir_all(&replaced).map_err(at("remove", &replaced))?;
            }
            fs::rename(target, &replaced).map_err(at("rename", target))?;
        }
        fs::rename(writing, target).map_err(at("rename", writing))?;
        sync_dir(&self.dir).map_err(at("sync", &self.dir))?;
        if replaced.exists() {
            fs::remove_dir_all(&replaced).map_err(at("remove", &replaced))?;
        }
        Ok(())
    }

    /// Points `name` to the folder of `step`, replacing an older link in one move.
    fn link(&self, name: &str, step: u64) -> std::io::Result<()> {
        if fs::read_link(self.dir.join(name)).is_ok_and(|target| target == Path::new(&folder(step))) {
            return Ok(());
        }
        let aside = self.dir.join(format!("{LINK}{name}"));
        match fs::remove_file(&aside) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        #[cfg(unix)]
        std::os::unix::fs::symlink(folder(step), &aside)?;
        #[cfg(not(unix))]
        fs::write(&aside, folder(step))?;
        fs::rename(&aside, self.dir.join(name))?;
        sync_dir(&self.dir)
    }

    /// The folder that `last`, `best`, or a step's folder name stands for.
    ///
    /// # Errors
    /// Where there is no such checkpoint; lists those there are.
    pub fn resolve(&self, name: &str) -> Result<PathBuf> {
        let mut parts = Path::new(name).components();
        let plain = matches!((parts.next(), parts.next()), (Some(std::path::Component::Normal(_)), None));
        if !plain {
            return Err(Error::Usage(format!("--checkpoint {name:?}: it is last, best, or a name such as step-00001250")));
        }
        let path = self.dir.join(name);
        // Where links are plain files, they hold the folder's name.
        let path = match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => {
                let target = fs::read_to_string(&path).map_err(|e| Error::io("read", &path, &e))?;
                self.dir.join(target.trim())
            }
            _ => fs::canonicalize(&path).unwrap_or(path),
        };
        if path.is_dir() {
            return Ok(path);
        }
        let found: Vec<String> = self.steps()?.into_iter().map(folder).collect();
        let found = if found.is_empty() { "there are none".into() } else { format!("there are {}", found.join(", ")) };
        Err(Error::Failed(format!("no checkpoint `{name}` in {}: {found}", self.dir.display())))
    }

    /// Removes what a killed process left half-done. Only for the one process that may write here.
    ///
    /// # Errors
    /// Where a leftover cannot be removed.
    pub fn tidy(&self) -> Result<()> {
        for name in self.names()? {
            let path = self.dir.join(&name);
            if let Some(step) = name.strip_prefix(REPLACED)
                && !self.dir.join(step).exists()
            {
                fs::rename(&path, self.dir.join(step)).map_err(|e| Error::io("rename", &path, &e))?;
            } else if name.starts_with(WRITING) || name.starts_with(REPLACED) {
                fs::remove_dir_all(&path).map_err(|e| Error::io("remove", &path, &e))?;
            } else if name.starts_with(LINK) {
                fs::remove_file(&path).map_err(|e| Error::io("remove", &path, &e))?;
            }
        }
        Ok(())
    }

    /// Points `last` and `best` to their checkpoints after a save of `step` and removes those that need not be kept. Done again on
    /// resume, since a process may be killed between putting a checkpoint in place and this.
    ///
    /// # Errors
    /// Where a link cannot be written or a folder not be removed.
    pub fn settle(&self, step: u64, keep: &Keep) -> Result<()> {
        let best = keep.best;
        self.link("last", step).map_err(|e| Error::io("link", &self.dir.join("last"), &e))?;
        match best.filter(|best| self.dir.join(folder(*best)).is_dir()) {
            Some(best) => self.link("best", best).map_err(|e| Error::io("link", &self.dir.join("best"), &e))?,
            // What the link led to is gone or no longer the best.
            None => match fs::remove_file(self.dir.join("best")) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::io("remove", &self.dir.join("best"), &e));
                }
                _ => {}
            },
        }
        self.retain(keep)
    }

    /// The newest checkpoint that is whole, with the reasons why newer ones are not. `None` where there is no checkpoint at all.
    ///
    /// # Errors
    /// Where there are checkpoints and none is sound: it lists what is wrong with each.
    pub fn newest_sound(&self) -> Result<Option<Newest>> {
        if !self.dir.is_dir() {
            return Err(Error::Failed(format!("{} has been removed: the run cannot be resumed", self.dir.display())));
        }
        let steps = self.steps()?;
        if steps.is_empty() && self.dir.join("last").is_symlink() {
            return Err(Error::Failed(format!(
                "all checkpoints in {} have been removed: the run cannot be resumed",
                self.dir.display()
            )));
        }
        let mut broken = Vec::new();
        for step in steps.into_iter().rev() {
            match load(&self.dir.join(folder(step))) {
                Ok(checkpoint) if checkpoint.manifest.step == step => return Ok(Some(Newest { checkpoint, broken })),
                Ok(other) => broken.push((step, format!("it holds step {}", other.manifest.step))),
                Err(reason) => broken.push((step, reason.to_string())),
            }
        }
        if broken.is_empty() {
            return Ok(None);
        }
        let list: Vec<String> = broken.into_iter().map(|(step, reason)| format!("\n  {}: {reason}", folder(step))).collect();
        Err(Error::Failed(format!("no sound checkpoint in {}:{}", self.dir.display(), list.concat())))
    }

    /// The checkpoint of `step`, read and compared with its hashes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn load(&self, step: u64) -> Result<Checkpoint> {
        load(&self.dir.join(folder(step)))
    }

    /// Sets a broken checkpoint aside as `step-N.broken`, so that the run can write that step again and nothing is lost.
    ///
    /// # Errors
    /// Where it cannot be renamed.
    pub fn set_aside(&self, step: u64) -> Result<PathBuf> {
        let path = self.dir.join(folder(step));
        let aside = self.dir.join(format!("{}.broken", folder(step)));
        if aside.is_dir() {
            fs::remove_dir_all(&aside).map_err(|e| Error::io("remove", &aside, &e))?;
        }
        fs::rename(&path, &aside).map_err(|e| Error::io("rename", &path, &e))?;
        Ok(aside)
    }

    /// Removes the checkpoints that need not be kept.
    ///
    /// # Errors
    /// Where one cannot be removed.
    fn retain(&self, keep: &Keep) -> Result<()> {
        let Keep { newest, best, every } = *keep;
        let steps = self.steps()?;
        let goes = |step: &&u64| Some(**step) != best && !every.is_some_and(|every| step.is_multiple_of(every));
        for step in steps.iter().rev().skip(newest).filter(goes) {
            let path = self.dir.join(folder(*step));
            // Under another name first: half a checkpoint must not look like one.
            let aside = self.dir.join(format!("{WRITING}{}", folder(*step)));
            fs::rename(&path, &aside).and_then(|()| fs::remove_dir_all(&aside)).map_err(|e| Error::io("remove", &path, &e))?;
        }
        Ok(())
    }
}

/// Reads a file of a checkpoint and compares it with the manifest's hash.
fn read_verified(path: &Path, manifest: &Manifest, name: &str) -> Result<Vec<u8>> {
    let file = path.join(name);
    let entry =
        manifest.files.get(name).ok_or_else(|| Error::Failed(format!("{} is not listed in {MANIFEST}", file.display())))?;
    let bytes = read_file(&file)?;
    if bytes.len() as u64 != entry.bytes {
        return Err(Error::Failed(format!("{} has {} bytes instead of {}", file.display(), bytes.len(), entry.bytes)));
    }
    if sha256_hex(&bytes) != entry.sha256 {
        return Err(Error::Failed(format!("{} is damaged: its hash is not the manifest's", file.display())));
    }
    Ok(bytes)
}

/// Reads a regular file; a pipe in its place could wait for ever.
fn read_file(file: &Path) -> Result<Vec<u8>> {
    match fs::metadata(file) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(Error::Failed(format!("{} is missing", file.display()))),
        Ok(metadata) if !metadata.is_file() => Err(Error::Failed(format!("{} is no regular file", file.display()))),
        _ => fs::read(file).map_err(|e| Error::io("read", file, &e)),
    }
}

fn read_manifest(path: &Path) -> Result<Manifest> {
    let file = path.join(MANIFEST);
    let bytes = read_file(&file)?;
    Manifest::from_bytes(&bytes, &file).map_err(Error::Failed)
}

fn load(path: &Path) -> Result<Checkpoint> {
    let manifest = read_manifest(path)?;
    let tensors = |name: &str| read_tensors(&read_verified(path, &manifest, name)?, &path.join(name));
    let (model, optimizer) = (tensors(MODEL)?, tensors(OPTIMIZER)?);
    let ema = manifest.files.contains_key(EMA).then(|| tensors(EMA)).transpose()?;
    let config = String::from_utf8(read_verified(path, &manifest, CONFIG)?)
        .map_err(|_| Error::Failed(format!("{} is not text", path.join(CONFIG).display())))?;
    Ok(Checkpoint { path: path.into(), manifest, model, ema, optimizer, config })
}

/// Reads the weights of the checkpoint in `path`, or with `ema` their average, and what it says of the run, without the optimizer.
/// The third part is the file.
///
/// # Errors
/// Where a file is missing or not as the manifest says.
pub fn load_model(path: &Path, ema: bool) -> Result<(Manifest, HashMap<String, NamedTensor>, PathBuf)> {
    let manifest = read_manifest(path)?;
    if ema && !manifest.files.contains_key(EMA) {
        return Err(Error::Failed(format!(
            "{} holds no averaged weights: the run keeps none (ema.enabled = true)",
            path.display()
        )));
    }
    let name = if ema { EMA } else { MODEL };
    let file = path.join(name);
    let model = read_tensors(&read_verified(path, &manifest, name)?, &file)?;
    Ok((manifest, model, file))
}

/// Makes the names in a folder durable.
fn sync_dir(path: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    fs::File::open(path)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}
