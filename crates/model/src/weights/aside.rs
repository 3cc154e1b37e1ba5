//! A file written aside, then put in its place whole.

use super::files::kind;
use super::store::SourceError;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A new file in the folder of the one it is to become. Dropped before [`Aside::put`], it is removed.
pub(crate) struct Aside<'a> {
    target: &'a Path,
    path: PathBuf,
    put: bool,
}

impl<'a> Aside<'a> {
    /// A new, empty file for `target`, whose name no other file has.
    ///
    /// # Errors
    /// Where the target exists and is no regular file, or the folder takes no new file.
    pub fn new(target: &'a Path) -> Result<(Self, File), SourceError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        replaceable(target)?;
        loop {
            let name = format!(".manyheads-{}-{}.partial", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let path = target.with_file_name(name);
            match File::create_new(&path) {
                Ok(file) => return Ok((Self { target, path, put: false }, file)),
                // Left behind by a process of the same number that was killed.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(broken(target, error)),
            }
        }
    }

    /// Puts the file in place of its target. Where that is a symbolic link the link is replaced, and the file it leads to stays.
    ///
    /// # Errors
    /// Where the target has become something else than a regular file, or cannot be replaced.
    pub fn put(mut self) -> Result<(), SourceError> {
        replaceable(self.target)?;
        std::fs::rename(&self.path, self.target).map_err(|error| broken(self.target, error))?;
        self.put = true;
        Ok(())
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        if !self.put {
            // The error that matters is the one that kept the file from its place.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn broken(path: &Path, error: std::io::Error) -> SourceError {
    SourceError::new(path, format!("cannot write: {error}"))
}

fn replaceable(target: &Path) -> Result<(), SourceError> {
    if target.file_name().is_none() {
        return Err(SourceError::new(target, "names no file to write"));
    }
    match std::fs::metadata(target) {
        Ok(metadata) if metadata.is_file() => Ok(()),
        Ok(metadata) => {
            Err(SourceError::new(target, format!("is {}, and only a regular file is replaced", kind(metadata.file_type())))
                .help("name a file to write"))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(broken(target, error)),
    }
}
