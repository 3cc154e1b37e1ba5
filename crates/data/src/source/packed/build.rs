//! Making packed files.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow::{Break, Continue};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::encode::encode_jpeg;
use super::format::{Entry, HEADER, Header, Index, MAGIC, RECORD, Record};
use super::paths::packed_paths;
use crate::decode::decode_rgb;
use crate::error::DataError;
use crate::ordered::{in_order, threads};
use crate::source::{MAX_FILE, Source};
use crate::transform::MAX_SIDE;
use crate::transform::resize::{Interpolation, Rect, View, resize};

/// How a dataset is packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackOptions {
    /// Images whose short side has more pixels are shrunk to this, and written as JPEG; none: bytes are kept as they are.
    ///
    /// 352 loses nothing that a crop of 224 pixels can show of ImageNet's usual sizes, but is another dataset: say so where
    /// results are compared.
    pub short_side: Option<u32>,
    /// JPEG quality of shrunk images, 1 to 100.
    pub quality: u8,
    /// Threads that read and shrink; 0: all cores.
    pub threads: usize,
    /// Whether a file of that name is replaced, and the beginning of another packing thrown away.
    pub overwrite: bool,
}

impl Default for PackOptions {
    fn default() -> Self {
        Self { short_side: None, quality: 90, threads: 0, overwrite: false }
    }
}

/// How far packing has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackProgress {
    /// Items in the file.
    pub items: usize,
    /// Items in all.
    pub of: usize,
    /// Bytes of the images in the file.
    pub bytes: u64,
}

/// What packing did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PackReport {
    /// Items in the file.
    pub items: usize,
    /// Items that an earlier, stopped packing had left.
    pub resumed: usize,
    /// Items shrunk in this run.
    pub shrunk: usize,
    /// Bytes of the file.
    pub file_bytes: u64,
}

/// Writes a source into one packed file, items in the source's order.
///
/// The file is written as `<path>.partial` and renamed when it is whole and on disk: it exists or it does not. If packing is
/// stopped, by `stop`, a kill or a crash, calling it again goes on after the last whole item, found by reading what is there and
/// comparing checksums. If the dataset changed in between, which sizes of images show too, that is refused. Images are not decoded unless they are to be shrunk; [`crate::verify()`] finds broken ones.
///
/// An item keeps its [`Source::relative_path`] where [`crate::unpack`] could write a file of that name. Items with other paths
/// (equal ones, `..`, no name or class, no image's extension, as parquet rows may have) get one of their own: class, number of
/// the item, and the extension of their content.
///
/// # Errors
/// [`DataError::Config`] naming a wrong setting; [`DataError::BadContainer`] if the file is there already (or, whatever the
/// options, is no regular file or one that the source is read from), or `<path>.partial` is no unfinished packing, or one of
/// another dataset or other settings, or another process writes it; [`DataError::Thread`]; the first item that cannot be read or, where
/// it is to be shrunk, decoded; [`DataError::Io`]; [`DataError::Cancelled`].
pub fn pack(
    source: &dyn Source,
    path: impl AsRef<Path>,
    options: &PackOptions,
    stop: &AtomicBool,
    mut progress: impl FnMut(PackProgress),
) -> Result<PackReport, DataError> {
    let path = path.as_ref();
    let workers = threads(options.threads)?;
    check(source, path, options)?;
    let mut partial = Partial::open(source, path, options)?;
    let resumed = partial.entries.len();
    let count = source.len();
    let mut shrunk = 0;
    let mut bytes = partial.entries.iter().map(|entry| u64::from(entry.len)).sum();
    progress(PackProgress { items: resumed, of: count, bytes });
    let make = |buffer: &mut Vec<u8>, item: usize| -> Result<(Vec<u8>, bool), DataError> {
        let bytes = source.read_into(item, buffer)?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(DataError::bad_image(&source.name(item), "more bytes than an image may have"));
        }
        if let Some(side) = options.short_side
            && let Some(small) = shrink(bytes, side as usize, options.quality).map_err(|e| named(source, item, e))?
        {
            return Ok((small, true));
        }
        Ok((bytes.to_vec(), false))
    };
    let written = in_order(resumed..count, workers, 16 * workers, Vec::new, make, |item, made| {
        if stop.load(Ordering::Relaxed) {
            let detail = format!("{item} of {count} items are in {}; pack again to go on", partial.path.display());
            return Break(DataError::Cancelled { what: "packing", detail });
        }
        let (image, small) = match made {
            Ok(made) => made,
            Err(error) => return Break(error),
        };
        shrunk += usize::from(small);
        bytes += image.len() as u64;
        if let Err(e) = partial.append(item, source.label(item), &image) {
            return Break(partial.error(e));
        }
        progress(PackProgress { items: item + 1, of: count, bytes });
        Continue(())
    })?;
    if let Some(error) = written.break_value() {
        // What is buffered may serve the next attempt; if it cannot be written, that attempt makes it again.
        let _ = partial.file.flush();
        return Err(error);
    }
    let file_bytes = partial.finish(source, path, options.overwrite)?;
    Ok(PackReport { items: count, resumed, shrunk, file_bytes })
}

fn check(source: &dyn Source, path: &Path, options: &PackOptions) -> Result<(), DataError> {
    if !(1..=100).contains(&options.quality) {
        return Err(DataError::config("quality", format!("{}, but JPEG qualities are 1 to 100", options.quality)));
    }
    if options.short_side.is_some_and(|side| side == 0 || side as usize > MAX_SIDE) {
        return Err(DataError::config("short_side", format!("it must be 1 to {MAX_SIDE} pixels")));
    }
    if source.is_empty() || u32::try_from(source.len()).is_err() {
        return Err(DataError::config("source", format!("{} images, but 1 to {} can be packed", source.len(), u32::MAX)));
    }
    check_out(source, path, options.overwrite)
}

/// Whether a packed file may be put under this name.
fn check_out(source: &dyn Source, path: &Path, overwrite: bool) -> Result<(), DataError> {
    let bad = |reason: &str| DataError::BadContainer { path: path.to_owned(), reason: reason.to_owned() };
    // Of the name itself: renaming would put the packed file in the place of a link, not of what it leads to.
    let there = fs::symlink_metadata(path).ok();
    if let Some(there) = &there {
        if there.is_dir() {
            return Err(bad("a folder. Give the name of a file to pack into"));
        }
        if !there.is_file() {
            return Err(bad("no regular file but a link, device or the like, which is never replaced. Give another name"));
        }
        if is_of(source, there) {
            return Err(bad("the dataset that is to be packed. Give another name"));
        }
    }
    if !overwrite && there.is_some() {
        let reason = "there is such a file already. Give another name, or allow to overwrite it".to_owned();
        return Err(DataError::BadContainer { path: path.to_owned(), reason });
    }
    Ok(())
}

/// Whether a file is one of those that the source is read from, under whatever name.
fn is_of(source: &dyn Source, file: &fs::Metadata) -> bool {
    let same = |own: &PathBuf| fs::metadata(own).is_ok_and(|own| (own.dev(), own.ino()) == (file.dev(), file.ino()));
    source.files().iter().any(same)
}

/// The name of an item that could not be decoded.
fn named(source: &dyn Source, item: usize, error: DataError) -> DataError {
    match error {
        DataError::BadImage { reason, .. } => DataError::BadImage { name: source.name(item), reason },
        other => other,
    }
}

/// A smaller image; none if it is small already.
fn shrink(bytes: &[u8], side: usize, quality: u8) -> Result<Option<Vec<u8>>, DataError> {
    let pixels = decode_rgb(bytes, "")?;
    let (short, long) = (pixels.width.min(pixels.height), pixels.width.max(pixels.height));
    if short <= side {
        return Ok(None);
    }
    let long = ((long as f64 * side as f64 / short as f64).round() as usize).max(side);
    let [height, width] = if pixels.height <= pixels.width { [side, long] } else { [long, side] };
    let whole = Rect { x: 0, y: 0, width, height };
    let small = resize(View::new(&pixels), [height, width], Interpolation::Bicubic, None, whole);
    encode_jpeg(&small, quality).map(Some).map_err(|reason| DataError::bad_image("", reason))
}

/// What is packed and how: two packings with one identity give the same file.
fn identity(source: &dyn Source, options: &PackOptions) -> [u8; 32] {
    let mut hash = Sha256::new();
    let short_side = options.short_side.unwrap_or(0);
    let quality = options.short_side.map_or(0, |_| options.quality);
    hash.update(short_side.to_le_bytes());
    hash.update([quality]);
    for class in source.classes() {
        hash.update((class.len() as u64).to_le_bytes());
        hash.update(class);
    }
    hash.update((source.len() as u64).to_le_bytes());
    let sizes: Vec<Option<u64>> = (0..source.len()).into_par_iter().map(|item| source.size(item)).collect();
    // Where the images' own sizes are not known, those of their files show most changes.
    if sizes.iter().any(Option::is_none) {
        for file in source.files() {
            hash.update(fs::metadata(file).map_or(u64::MAX, |metadata| metadata.len()).to_le_bytes());
        }
    }
    for (item, size) in sizes.into_iter().enumerate() {
        let path = source.relative_path(item);
        hash.update(size.unwrap_or(u64::MAX).to_le_bytes());
        hash.update((source.label(item) as u64).to_le_bytes());
        hash.update((path.len() as u64).to_le_bytes());
        hash.update(path);
    }
    hash.finalize().into()
}

/// The file in the making.
struct Partial {
    path: PathBuf,
    file: BufWriter<File>,
    header: Header,
    entries: Vec<Entry>,
    end: u64,
}

impl Partial {
    fn open(source: &dyn Source, path: &Path, options: &PackOptions) -> Result<Self, DataError> {
        let mut name = OsString::from(path);
        name.push(".partial");
        let partial = PathBuf::from(name);
        let io_error = |e: io::Error| DataError::io(partial.display().to_string(), e);
        let bad = |reason: &str| DataError::BadContainer { path: partial.clone(), reason: reason.to_owned() };
        if fs::symlink_metadata(&partial).is_ok_and(|there| !there.is_file()) {
            return Err(bad(
                "no regular file, but a packing is written under this name first. Move it away, or pack to another name",
            ));
        }
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&partial).map_err(io_error)?;
        let busy = || DataError::BadContainer { path: partial.clone(), reason: "another process is writing it".to_owned() };
        file.try_lock().map_err(|_| busy())?;
        if is_of(source, &file.metadata().map_err(io_error)?) {
            return Err(bad(
                "the dataset that is to be packed, but a packing is written under this name first. Pack to another name",
            ));
        }
        if !is_ours(&file).map_err(io_error)? {
            return Err(bad(
                "no unfinished packing, but a packing is written under this name first. Move it away, or pack to another name",
            ));
        }
        let header = Header {
            count: source.len() as u64,
            classes: source.classes().len() as u64,
            index_start: 0,
            index_len: 0,
            index_crc: 0,
            short_side: options.short_side.unwrap_or(0),
            quality: options.short_side.map_or(0, |_| options.quality.into()),
            identity: identity(source, options),
        };
        let (mut entries, mut end) = (Vec::new(), HEADER);
        if let Some(found) = read_header(&file).map_err(io_error)? {
            if found.identity == header.identity {
                (entries, end) = whole_items(&file, source).map_err(io_error)?;
            } else if !options.overwrite {
                let settings = (found.short_side, found.quality) != (header.short_side, header.quality);
                return Err(bad(if settings {
                    "the beginning of a packing with other settings. Remove it, or allow to overwrite"
                } else {
                    "the beginning of a packing of other images: it is of another dataset, or the dataset changed since (names, \
                     labels or sizes of images). Remove it, or allow to overwrite"
                }));
            }
        }
        // What follows the last whole item is thrown away, so that nothing torn is ever read again.
        file.set_len(end).map_err(io_error)?;
        let mut file = BufWriter::with_capacity(1 << 20, file);
        let begin = |file: &mut BufWriter<File>| -> io::Result<()> {
            file.rewind()?;
            file.write_all(&header.write())?;
            file.seek(SeekFrom::Start(end))?;
            Ok(())
        };
        begin(&mut file).map_err(io_error)?;
        Ok(Self { path: partial, file, header, entries, end })
    }

    fn error(&self, e: io::Error) -> DataError {
        DataError::io(self.path.display().to_string(), e)
    }

    fn append(&mut self, item: usize, label: usize, image: &[u8]) -> io::Result<()> {
        let crc = crc32fast::hash(image);
        let record = Record { item: item as u32, len: image.len() as u64, crc };
        self.file.write_all(&record.write())?;
        self.file.write_all(image)?;
        self.entries.push(Entry { offset: self.end + RECORD, len: image.len() as u32, crc, label: label as u32 });
        self.end += RECORD + image.len() as u64;
        Ok(())
    }

    /// Writes index and header, and gives the file its name once all of it is on disk.
    fn finish(mut self, source: &dyn Source, path: &Path, overwrite: bool) -> Result<u64, DataError> {
        self.file.flush().map_err(|e| self.error(e))?;
        let start = |item: usize| {
            let entry: &Entry = &self.entries[item];
            let mut bytes = vec![0; entry.len.min(16) as usize];
            self.file.get_ref().read_exact_at(&mut bytes, entry.offset)?;
            Ok(bytes)
        };
        let paths = packed_paths(source, start).map_err(|e| self.error(e))?;
        let index = Index::write(&self.entries, source.classes(), paths.iter().map(Vec::as_slice));
        self.header.index_start = self.end;
        self.header.index_len = index.len() as u64;
        self.header.index_crc = crc32fast::hash(&index);
        let header = self.header.write();
        let write = |file: &mut BufWriter<File>| -> io::Result<()> {
            file.write_all(&index)?;
            file.flush()?;
            file.get_ref().sync_all()?;
            file.rewind()?;
            file.write_all(&header)?;
            file.flush()?;
            file.get_ref().sync_all()
        };
        write(&mut self.file).map_err(|e| self.error(e))?;
        // Packing takes long, and something may have been put there since.
        check_out(source, path, overwrite)?;
        fs::rename(&self.path, path).map_err(|e| self.error(e))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent).and_then(|folder| folder.sync_all()).map_err(|e| DataError::io(parent.display().to_string(), e))?;
        Ok(self.header.index_start + self.header.index_len)
    }
}

/// Whether a file is empty or begins as a packed file does, be it cut in its first bytes.
fn is_ours(file: &File) -> io::Result<bool> {
    let mut start = [0; MAGIC.len()];
    let read = file.read_at(&mut start, 0)?;
    Ok(MAGIC.starts_with(&start[..read]))
}

/// The header of a file in the making; none if there is no sound one.
fn read_header(file: &File) -> io::Result<Option<Header>> {
    let mut bytes = Vec::new();
    let mut reader = file;
    reader.rewind()?;
    reader.take(HEADER).read_to_end(&mut bytes)?;
    Ok(Header::read(&bytes).ok())
}

/// The items that are whole in a file in the making, and where the last of them ends.
fn whole_items(file: &File, source: &dyn Source) -> io::Result<(Vec<Entry>, u64)> {
    let len = file.metadata()?.len();
    let mut reader = BufReader::with_capacity(1 << 20, file);
    reader.seek(SeekFrom::Start(HEADER))?;
    let (mut entries, mut end, mut image) = (Vec::new(), HEADER, Vec::new());
    while entries.len() < source.len() && len - end >= RECORD {
        let mut bytes = [0; RECORD as usize];
        reader.read_exact(&mut bytes)?;
        let Some(record) = Record::read(&bytes) else { break };
        let start = end + RECORD;
        if record.item as usize != entries.len() || record.len > MAX_FILE || record.len > len - start {
            break;
        }
        image.resize(record.len as usize, 0);
        reader.read_exact(&mut image)?;
        if crc32fast::hash(&image) != record.crc {
            break;
        }
        let label = source.label(entries.len()) as u32;
        entries.push(Entry { offset: start, len: record.len as u32, crc: record.crc, label });
        end = start + record.len;
    }
    Ok((entries, end))
}
