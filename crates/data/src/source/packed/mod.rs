//! A dataset in one file, mapped into memory: the fastest form, and the one that checks itself.
//!
//! [`crate::pack`] makes such files. Every image and what stands before it have checksums, compared at each read; the header and
//! the index are checked when the file is opened. Reading every image leaves no bit of the file unchecked.

pub(crate) mod build;
mod encode;
mod format;
mod map;
mod paths;

use std::borrow::Cow;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Source;
use super::shards::open_regular;
use crate::error::{DataError, printable};
use crate::ordered::{in_order, threads};
use format::{Header, Index, MAGIC, RECORD, Record};
use map::Map;

/// A packed file. Items keep the order of the source that was packed, so a seeded run sees the same batches from both.
///
/// Images are handed out without a copy. The file must not be cut or changed while it is open.
pub struct Packed {
    path: PathBuf,
    file: Arc<File>,
    map: Map,
    header: Header,
    index: Index,
    classes: Vec<String>,
    notices: Vec<String>,
    /// Tells the thread that reads ahead to stop.
    stop: Arc<AtomicBool>,
}

/// Whether a file begins as a packed file does.
pub(super) fn is_packed(start: &[u8]) -> bool {
    start.starts_with(&MAGIC)
}

impl Packed {
    /// Opens a packed file and checks its header and index.
    ///
    /// # Errors
    /// [`DataError::BadContainer`] saying what is damaged; [`DataError::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref().to_owned();
        let io_error = |e| DataError::io(path.display().to_string(), e);
        let bad = |reason: String| DataError::BadContainer { path: path.clone(), reason };
        let file = open_regular(&path).map_err(io_error)?;
        if file.metadata().map_err(io_error)?.len() == 0 {
            return Err(bad("an empty file, not a packed dataset".to_owned()));
        }
        let map = Map::new(&file).map_err(io_error)?;
        let header = Header::read(&map).map_err(bad)?;
        if header.index_start == 0 {
            return Err(bad("packing was not finished. Run it again to go on where it stopped".to_owned()));
        }
        let end = header.index_start.checked_add(header.index_len);
        if end != Some(map.len() as u64) {
            let reason =
                format!("{} bytes, where {} are expected: it is cut, or has something appended", map.len(), end.unwrap_or(0));
            return Err(bad(reason));
        }
        let bytes = &map[header.index_start as usize..];
        if crc32fast::hash(bytes) != header.index_crc {
            return Err(bad("its index is damaged: the checksum differs. Copy or pack it again".to_owned()));
        }
        let index = Index::read(bytes, &header).map_err(bad)?;
        if index.count() == 0 {
            return Err(DataError::NoImages { path, detail: String::new() });
        }
        let classes = index.classes(bytes);
        map.expect_random();
        let mut notices = Vec::new();
        if header.short_side > 0 {
            let Header { short_side, quality, .. } = header;
            notices.push(format!(
                "packed images larger than {short_side} pixels on their short side were shrunk to that, at JPEG quality {quality}"
            ));
        }
        let stop = Arc::new(AtomicBool::new(false));
        Ok(Self { path, file: Arc::new(file), map, header, index, classes, notices, stop })
    }

    /// Short side and JPEG quality that larger images were shrunk to; none if all bytes are the originals.
    pub fn shrunk(&self) -> Option<(u32, u32)> {
        (self.header.short_side > 0).then_some((self.header.short_side, self.header.quality))
    }

    /// Begins to read the whole file in its order, on a thread of its own, so that a first epoch in random order after a cold
    /// start finds it in memory. Does nothing where the file is larger than the memory that is free. Ends with `self`.
    ///
    /// Returns whether it began.
    pub fn read_ahead(&self) -> bool {
        let len = self.map.len() as u64;
        if available_memory().is_none_or(|free| len > free / 10 * 8) {
            return false;
        }
        let (file, stop) = (Arc::clone(&self.file), Arc::clone(&self.stop));
        let read = move || {
            let mut buffer = vec![0; 4 << 20];
            let mut at = 0;
            while at < len && !stop.load(Ordering::Relaxed) {
                match file.read_at(&mut buffer, at) {
                    Ok(read) if read > 0 => at += read as u64,
                    // The loader will meet the same fault and name the image.
                    _ => return,
                }
            }
        };
        std::thread::Builder::new().name("read-ahead".to_owned()).spawn(read).is_ok()
    }

    fn bytes(&self) -> &[u8] {
        &self.map[self.header.index_start as usize..]
    }

    /// Checks every byte on `threads` threads (0: all cores); calls `progress` with the number of items done.
    ///
    /// # Errors
    /// The first damaged item, by name; [`DataError::Cancelled`] once `stop` is set. The header and the index were checked when
    /// the file was opened.
    pub fn verify(&self, workers: usize, stop: &AtomicBool, mut progress: impl FnMut(usize)) -> Result<(), DataError> {
        let workers = threads(workers)?;
        let check = |_: &mut (), item: usize| self.read(item).map(|_| ());
        let checked = in_order(
            0..Source::len(self),
            workers,
            64 * workers,
            || (),
            check,
            |item, result| {
                use std::ops::ControlFlow::{Break, Continue};
                if stop.load(Ordering::Relaxed) {
                    let detail = format!("{item} of {} items are sound so far", Source::len(self));
                    return Break(DataError::Cancelled { what: "checking the packed file", detail });
                }
                progress(item + 1);
                result.map_or_else(Break, Continue)
            },
        )?;
        checked.break_value().map_or(Ok(()), Err)
    }

    fn damaged(&self, item: usize) -> DataError {
        DataError::bad_image(
            &self.name(item),
            "its bytes in the packed file are damaged: the checksum differs. Copy or pack it again",
        )
    }
}

impl Drop for Packed {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Memory that programs can have without others being pushed out, in bytes; none where the system does not say.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

impl Source for Packed {
    fn len(&self) -> usize {
        self.index.count()
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: usize) -> usize {
        self.index.entry(self.bytes(), index).label as usize
    }

    fn name(&self, index: usize) -> String {
        let path = String::from_utf8_lossy(self.index.path(self.bytes(), index));
        printable(&format!("{}:{path}", self.path.display())).into_owned()
    }

    fn relative_path(&self, index: usize) -> Vec<u8> {
        self.index.path(self.bytes(), index).to_vec()
    }

    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, DataError> {
        let entry = self.index.entry(self.bytes(), index);
        let bytes = &self.map[entry.offset as usize..][..entry.len as usize];
        let expected = Record { item: index as u32, len: entry.len.into(), crc: entry.crc };
        let record = Record::read(&self.map[(entry.offset - RECORD) as usize..][..RECORD as usize]);
        if record != Some(expected) || crc32fast::hash(bytes) != entry.crc {
            return Err(self.damaged(index));
        }
        Ok(Cow::Borrowed(bytes))
    }

    fn size(&self, index: usize) -> Option<u64> {
        Some(self.index.entry(self.bytes(), index).len.into())
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.path.clone()]
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }
}

/// Writes every item of a packed file to its path below a folder, which is made if need be. Returns how many.
///
/// If the file was packed without shrinking, these are the bytes of the original files.
///
/// # Errors
/// [`DataError::BadContainer`] if a path leads out of the folder or comes twice; a damaged item; [`DataError::Io`], also where a
/// file is there already.
pub fn unpack(path: impl AsRef<Path>, folder: impl AsRef<Path>) -> Result<usize, DataError> {
    let packed = Packed::open(path)?;
    let folder = folder.as_ref();
    let mut seen = HashSet::new();
    let mut targets = Vec::with_capacity(Source::len(&packed));
    for item in 0..Source::len(&packed) {
        let relative = packed.relative_path(item);
        let below = Path::new(OsStr::from_bytes(&relative));
        let inside = below.components().all(|part| matches!(part, Component::Normal(_))) && !relative.is_empty();
        if !inside || !seen.insert(relative.clone()) {
            let fault = if inside { "comes twice" } else { "leads out of the folder" };
            let reason = format!("the path {:?} {fault}", String::from_utf8_lossy(&relative));
            return Err(DataError::BadContainer { path: packed.path.clone(), reason });
        }
        targets.push(folder.join(below));
    }
    for (item, target) in targets.iter().enumerate() {
        let write = |bytes: &[u8]| -> io::Result<()> {
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            let mut file = fs::OpenOptions::new().write(true).create_new(true).open(target)?;
            io::Write::write_all(&mut file, bytes)
        };
        write(&packed.read(item)?).map_err(|e| DataError::io(target.display().to_string(), e))?;
    }
    Ok(targets.len())
}
