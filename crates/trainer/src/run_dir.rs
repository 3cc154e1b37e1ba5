//! The folder of a run.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::engine::device::OpenDevice;
use crate::environment::{Environment, Session};
use crate::error::{Error, Result};

/// Held by the process that works on the run.
const LOCK: &str = ".lock";

/// A run's folder, held against other processes until it is dropped.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    _lock: File,
}

fn empty(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

impl RunDir {
    /// Creates the folder for a new run. `out` as given; otherwise `runs/<name>`, with a number where that is taken.
    ///
    /// # Errors
    /// Where `out` has a run already or cannot be created.
    pub fn create(out: Option<&Path>, name: &str) -> Result<Self> {
        if let Some(out) = out {
            if out.join("config.toml").exists() {
                return Err(Error::Usage(format!(
                    "{} already holds a run. Continue it with `manyheads resume {0}`, or choose another --out",
                    out.display()
                )));
            }
            // A run that ended before it began leaves hidden files and an empty folder for checkpoints.
            let left = |entry: fs::DirEntry| {
                entry.file_name().to_string_lossy().starts_with('.')
                    || (entry.file_name() == "checkpoints" && empty(&entry.path()))
            };
            if fs::read_dir(out).is_ok_and(|entries| entries.flatten().any(|entry| !left(entry))) {
                return Err(Error::Usage(format!("{} is not empty. Choose another --out", out.display())));
            }
            fs::create_dir_all(out).map_err(|e| Error::io("create", out, &e))?;
            return Self::lock(out);
        }
        let runs = Path::new("runs");
        fs::create_dir_all(runs).map_err(|e| Error::io("create", runs, &e))?;
        let mut number = 1;
        loop {
            let path = runs.join(if number == 1 { name.to_string() } else { format!("{name}-{number}") });
            match fs::create_dir(&path) {
                Ok(()) => return Self::lock(&path),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
                Err(e) => return Err(Error::io("create", &path, &e)),
            }
        }
    }

    /// Opens the folder of an existing run.
    ///
    /// # Errors
    /// Where it is no run, or another process works on it.
    pub fn open(path: &Path) -> Result<Self> {
        if !path.join("config.toml").is_file() {
            return Err(Error::Usage(format!("{} is not a run: it has no config.toml", path.display())));
        }
        Self::lock(path)
    }

    fn lock(path: &Path) -> Result<Self> {
        let file = path.join(LOCK);
        let lock = File::create(&file).map_err(|e| Error::io("create", &file, &e))?;
        // A process that was killed a moment ago may have been starting another program, which holds its files until it has begun.
        let deadline = Instant::now() + Duration::from_secs(2);
        let mut locked = lock.try_lock();
        while matches!(locked, Err(TryLockError::WouldBlock)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
            locked = lock.try_lock();
        }
        match locked {
            Ok(()) => Ok(Self { path: path.into(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(Error::Failed(format!(
                "another process is working on the run {}; wait for it to end, or stop it",
                path.display()
            ))),
            // Some network file systems have no locks; the run itself does not need them.
            Err(TryLockError::Error(_)) => Ok(Self { path: path.into(), _lock: lock }),
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file of the run in one move.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn write(&self, name: &str, contents: &[u8]) -> Result<()> {
        let path = self.path.join(name);
        let aside = self.path.join(format!(".{name}.new"));
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&aside)?;
            std::io::Write::write_all(&mut file, contents)?;
            file.sync_all()?;
            fs::rename(&aside, &path)
        };
        write().map_err(|e| Error::io("write", &path, &e))
    }

    /// Notes in `environment.json` that a process starts to work on the run.
    ///
    /// # Errors
    /// Where the file cannot be written, or an existing one cannot be read.
    pub fn note_session(&self, from_step: u64, device: &OpenDevice, config: &Config) -> Result<()> {
        let path = self.path.join("environment.json");
        let mut environment = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|e| Error::Failed(format!("{} is damaged: {e}; remove it to go on", path.display())))?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Environment::new(),
            Err(e) => return Err(Error::io("read", &path, &e)),
        };
        environment.sessions.push(Session::now(from_step, device, config));
        let mut text = serde_json::to_vec_pretty(&environment).expect("plain values");
        text.push(b'\n');
        self.write("environment.json", &text)
    }
}
