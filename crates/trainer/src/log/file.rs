//! A file that grows while a run works, and that nothing is lost from.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A file that is only ever appended to.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    bytes: u64,
}

/// A file as far as it was written when it was asked for.
#[derive(Debug)]
pub struct Unsynced {
    path: PathBuf,
    file: File,
}

impl Unsynced {
    /// Waits until everything written is on the disk.
    ///
    /// # Errors
    /// Where the disk refuses.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| Error::io("sync", &self.path, &e))
    }
}

impl LogFile {
    /// Goes on at the end of `file`, which is at `path` and `bytes` long.
    pub fn adopt(path: PathBuf, file: File, bytes: u64) -> Self {
        Self { path, file, bytes }
    }

    /// Opens the file so that it holds `contents` and nothing else. Where it begins with them, what follows is cut off in place, so
    /// that a program that is reading along stays with it; otherwise it is written anew aside and moved into place.
    ///
    /// # Errors
    /// Where the file or its folder cannot be made or written.
    pub fn restore(path: PathBuf, contents: &[u8]) -> Result<Self> {
        let restore = || -> io::Result<File> {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            if let Some(file) = begins_with(&path, contents)? {
                file.set_len(contents.len() as u64)?;
                return Ok(file);
            }
            replace(&path, contents)
        };
        let mut file = restore().map_err(|e| Error::io("write", &path, &e))?;
        file.seek(SeekFrom::End(0)).map_err(|e| Error::io("write", &path, &e))?;
        Ok(Self { path, file, bytes: contents.len() as u64 })
    }

    /// Appends. It is handed to the system at once, so that it survives the process.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|e| Error::io("write", &self.path, &e))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Takes back what was appended beyond `bytes`.
    ///
    /// # Errors
    /// Where the file cannot be cut.
    pub fn cut(&mut self, bytes: u64) -> Result<()> {
        let cut = self.file.set_len(bytes).and_then(|()| self.file.seek(SeekFrom::Start(bytes)));
        cut.map_err(|e| Error::io("cut", &self.path, &e))?;
        self.bytes = bytes;
        Ok(())
    }

    /// Length of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Everything written so far.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub fn contents(&mut self) -> Result<Vec<u8>> {
        read_all(&mut self.file).map_err(|e| Error::io("read", &self.path, &e))
    }

    /// Sees to it that the file is there, and adds it to those that are to reach the disk. One that was removed or replaced meanwhile is
    /// put back, whole, which the returned text says. Where the folder of the run is gone, nothing is made in its place: the checkpoint
    /// that is about to be written says so.
    ///
    /// # Errors
    /// Where it cannot be put back.
    pub fn check(&mut self, run_dir: &Path, unsynced: &mut Vec<Unsynced>) -> Result<Option<String>> {
        let notice = self.put_back(run_dir)?;
        let file = self.file.try_clone().map_err(|e| Error::io("open", &self.path, &e))?;
        unsynced.push(Unsynced { path: self.path.clone(), file });
        Ok(notice)
    }

    fn put_back(&mut self, run_dir: &Path) -> Result<Option<String>> {
        if self.in_place() || !run_dir.is_dir() {
            return Ok(None);
        }
        let mut mend = || -> io::Result<File> {
            if let Some(folder) = self.path.parent().filter(|folder| *folder != run_dir && !folder.is_dir()) {
                fs::create_dir(folder)?;
            }
            replace(&self.path, &read_all(&mut self.file)?)
        };
        self.file = mend().map_err(|e| Error::io("put back", &self.path, &e))?;
        Ok(Some(format!("note: {} had been removed or replaced during the run; it has been put back", self.path.display())))
    }

    /// Whether the open file is still the one that the path names.
    #[cfg(unix)]
    fn in_place(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let id = |found: io::Result<fs::Metadata>| found.map(|found| (found.dev(), found.ino())).ok();
        id(fs::metadata(&self.path)) == id(self.file.metadata())
    }

    /// Whether there is a file at the path.
    #[cfg(not(unix))]
    fn in_place(&self) -> bool {
        self.path.exists()
    }
}

fn read_all(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The file, where there is one that begins with `contents`.
fn begins_with(path: &Path, contents: &[u8]) -> io::Result<Option<File>> {
    let mut file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    if file.metadata()?.len() < contents.len() as u64 {
        return Ok(None);
    }
    let mut start = Vec::with_capacity(contents.len());
    Read::by_ref(&mut file).take(contents.len() as u64).read_to_end(&mut start)?;
    Ok((start == contents).then_some(file))
}

/// Writes a file aside, synced, and moves it into place; leaves it open at its end.
fn replace(path: &Path, contents: &[u8]) -> io::Result<File> {
    // TensorBoard reads every file with "tfevents" in its name.
    let aside = path.with_file_name(".log.new");
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&aside)?;
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(&aside, path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restoring_cuts_in_place_or_writes_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("folder/x.csv");
        let mut log = LogFile::restore(path.clone(), b"one\n").unwrap();
        log.append(b"two\n").unwrap();
        assert_eq!((log.bytes(), log.contents().unwrap()), (8, b"one\ntwo\n".to_vec()));
        let mut along = File::open(&path).unwrap();
        let mut log = LogFile::restore(path.clone(), b"one\n").unwrap();
        log.append(b"TWO\n").unwrap();
        let mut text = String::new();
        along.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one\nTWO\n", "who reads along stays with the file");
        log.cut(4).unwrap();
        log.append(b"2\n").unwrap();
        assert_eq!((log.bytes(), fs::read(&path).unwrap()), (6, b"one\n2\n".to_vec()));
        for torn in [&b"on"[..], b"", b"other contents"] {
            fs::write(&path, torn).unwrap();
            let mut log = LogFile::restore(path.clone(), b"one\n").unwrap();
            log.append(b"2\n").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"one\n2\n");
        }
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left aside");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_was_removed_or_replaced_is_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("folder/x.csv");
        let check = |log: &mut LogFile, folder: &Path| {
            let mut unsynced = Vec::new();
            let notice = log.check(folder, &mut unsynced).unwrap();
            unsynced.iter().try_for_each(Unsynced::sync).unwrap();
            assert_eq!(unsynced.len(), 1);
            notice
        };
        let mut log = LogFile::restore(path.clone(), b"one\n").unwrap();
        assert_eq!(check(&mut log, dir.path()), None);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
        log.append(b"two\n").unwrap();
        assert!(check(&mut log, dir.path()).unwrap().contains("x.csv"));
        assert_eq!(fs::read(&path).unwrap(), b"one\ntwo\n");
        fs::write(dir.path().join("y"), "mine").unwrap();
        fs::rename(dir.path().join("y"), &path).unwrap();
        log.append(b"three\n").unwrap();
        assert!(check(&mut log, dir.path()).is_some());
        log.append(b"four\n").unwrap();
        assert_eq!(check(&mut log, dir.path()), None);
        assert_eq!(fs::read(&path).unwrap(), b"one\ntwo\nthree\nfour\n");
        // Without the run's folder there is nothing to put it into.
        let gone = dir.path().join("gone");
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
        assert_eq!(check(&mut log, &gone), None);
        assert!(!gone.exists());
    }
}
