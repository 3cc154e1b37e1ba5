//! An uncompressed tar of an image folder, indexed once and read in place.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use tar::{Archive, EntryType};

use super::catalog::{Catalog, ClassFiles, Ignored, Kind, Table, file_name, kind};
use super::labels::Labels;
use super::{MAX_FILE, Source};
use crate::error::{DataError, printable};

const BLOCK: u64 = 512;

/// What to do about labels that are not needed.
const NOT_NEEDED: &str = "no labels are needed: leave the file of labels out";

/// First bytes of compressed files, the compression's name, and the command that undoes it.
const COMPRESSIONS: [(&[u8], &str, &str); 4] = [
    (b"\x1f\x8b", "gzip", "gunzip --keep"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd --decompress --keep"),
    (b"BZh", "bzip2", "bunzip2 --keep"),
    (b"\xfd7zXZ", "xz", "unxz --keep"),
];

/// A tar of an image folder. Gives the same items in the same order as [`super::folder::Folder`] on the unpacked tree.
///
/// The root is the deepest folder that holds all images; the folders below it are the classes. So `train/<class>/x.jpg`,
/// `./<class>/x.jpg` and `<class>/x.jpg` are the same dataset. A member `<class>.tar` without folders inside is a class too:
/// ImageNet's `ILSVRC2012_img_train.tar` is read as it is downloaded. GNU long names and pax headers are understood.
///
/// One pass over the headers at opening; then each image is one positional read, from any number of threads.
pub struct Tar {
    path: PathBuf,
    file: File,
    catalog: Catalog,
    spans: Vec<Span>,
}

/// A part of a file.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Span {
    /// Reads the part into a buffer whose memory is used again.
    pub(super) fn read(self, file: &File, buffer: &mut Vec<u8>) -> io::Result<()> {
        buffer.clear();
        if self.len > MAX_FILE {
            return Err(io::Error::other(format!("a file of {} bytes is no image that fits into memory", self.len)));
        }
        buffer.resize(self.len as usize, 0);
        file.read_exact_at(buffer, self.offset)
    }
}

/// A part of the file as a file of its own, so that a tar inside a tar can be indexed without copying it.
struct Section<'a> {
    file: &'a File,
    start: u64,
    len: u64,
    at: &'a Cell<u64>,
}

impl Read for Section<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let at = self.at.get();
        let left = self.len.saturating_sub(at);
        let want = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = self.file.read_at(&mut into[..want], self.start + at)?;
        self.at.set(at + read as u64);
        Ok(read)
    }
}

impl Seek for Section<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.at.get().checked_add_signed(by),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
        };
        let target = target.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        self.at.set(target);
        Ok(target)
    }
}

/// A regular file in the archive: its path in components joined by `/`, and where its bytes are.
pub(super) struct Member {
    pub(super) path: Vec<u8>,
    pub(super) span: Span,
}

/// What one archive holds.
#[derive(Default)]
pub(super) struct Members {
    pub(super) files: Vec<Member>,
    folders: Vec<Vec<u8>>,
    links: Vec<Vec<u8>>,
    /// Devices, pipes and the like.
    special: Vec<Vec<u8>>,
}

impl Members {
    /// The regular files as unpacking would leave them: of those with one path, the one appended last. What is left out is told.
    pub(super) fn into_latest(self, ignored: &mut Ignored) -> Vec<Member> {
        for link in &self.links {
            ignored.add("links, which a tar cannot follow in place; pack with --dereference --hard-dereference", link);
        }
        for special in &self.special {
            ignored.add("not regular files", special);
        }
        let mut replaced = vec![false; self.files.len()];
        let mut latest: HashMap<&[u8], usize> = HashMap::with_capacity(self.files.len());
        for (i, member) in self.files.iter().enumerate() {
            if let Some(earlier) = latest.insert(&member.path, i) {
                ignored.add("replaced by a later member of the same name", &member.path);
                replaced[earlier] = true;
            }
        }
        drop(latest);
        self.files.into_iter().zip(replaced).filter(|(_, replaced)| !replaced).map(|(member, _)| member).collect()
    }
}

/// Whether a component of a path begins with a dot.
pub(super) fn hidden(path: &[u8]) -> bool {
    path.split(|&b| b == b'/').any(|part| part.first() == Some(&b'.'))
}

impl Tar {
    /// Indexes an archive.
    ///
    /// # Errors
    /// - [`DataError::CompressedTar`] for gzip, zstd, bzip2 and xz, with the command that undoes it.
    /// - [`DataError::BadTar`] with the offset for an archive that is cut, has sparse members, or is no tar.
    /// - [`DataError::FlatFolder`], [`DataError::SplitFolder`], [`DataError::EmptyClass`], [`DataError::NoImages`] as
    ///   [`super::folder::Folder::open`]; [`DataError::Io`] if the file cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let (path, file, members) = open(path.as_ref())?;
        let (classes, ignored) = group(&path, &file, members)?;
        let (catalog, spans) = Catalog::new(&path, classes, Table::Found, ignored)?;
        Ok(Self { path, file, catalog, spans })
    }

    /// Indexes an archive of images without class folders, such as `ILSVRC2012_img_val.tar`, with a table of labels.
    ///
    /// Images are found at any depth; the last component of the path is looked up. Classes and order are as in
    /// [`super::folder::Folder::open_flat`].
    ///
    /// # Errors
    /// As [`Tar::open`], and [`DataError::BadLabels`] if an image has no label.
    pub fn open_flat(path: impl AsRef<Path>, labels: &Labels) -> Result<Self, DataError> {
        let (path, file, members) = open(path.as_ref())?;
        let mut ignored = Ignored::default();
        labels.notices().iter().for_each(|notice| ignored.note(notice.clone()));
        let found = members.into_latest(&mut ignored);
        let mut files = Vec::with_capacity(found.len());
        for Member { path, span } in found {
            match kind(file_name(&path)) {
                _ if hidden(&path) => ignored.add_kind(Kind::Hidden, &path),
                Kind::Image => files.push((path, span)),
                other => ignored.add_kind(other, &path),
            }
        }
        let none = files.is_empty();
        let classes = match labels.sort(&path, files, &mut ignored) {
            Ok(_) if none && Self::open(&path).is_ok() => {
                let reason = format!("its images are in class folders or class tars, so {NOT_NEEDED}");
                return Err(DataError::BadLabels { path, reason });
            }
            Err(DataError::BadLabels { reason, .. }) if Self::open(&path).is_ok_and(|tar| tar.classes().len() > 1) => {
                let reason = format!("{reason}. If they lie in class folders, {NOT_NEEDED}");
                return Err(DataError::BadLabels { path, reason });
            }
            sorted => sorted?,
        };
        let (catalog, spans) = Catalog::new(&path, classes, Table::Given, ignored)?;
        Ok(Self { path, file, catalog, spans })
    }
}

/// Opens and indexes an archive.
pub(super) fn open(path: &Path) -> Result<(PathBuf, File, Members), DataError> {
    let path = path.to_owned();
    let io_error = |e| DataError::io(path.display().to_string(), e);
    let file_type = std::fs::metadata(&path).map_err(io_error)?.file_type();
    // Opening a pipe would wait for a writer.
    if file_type.is_fifo() {
        return Err(io_error(io::Error::other("a pipe, where a tar file is expected: it is read in place")));
    }
    if !file_type.is_file() {
        return Err(io_error(io::Error::other("not a regular file, where a tar file is expected")));
    }
    let file = File::open(&path).map_err(io_error)?;
    let len = file.metadata().map_err(io_error)?.len();
    let mut start = [0u8; 8];
    let read = file.read_at(&mut start, 0).map_err(io_error)?;
    for (magic, kind, command) in COMPRESSIONS {
        if start[..read].starts_with(magic) {
            let command = format!("{command} {}", path.display());
            return Err(DataError::CompressedTar { path, kind, command });
        }
    }
    let members = index(&path, &file, Span { offset: 0, len })?;
    Ok((path, file, members))
}

/// Lists the members of the archive that lies in the given part of the file.
fn index(path: &Path, file: &File, part: Span) -> Result<Members, DataError> {
    let bad = |offset: u64, reason: String| DataError::BadTar { path: path.to_owned(), offset: part.offset + offset, reason };
    let at = Cell::new(0);
    let mut archive = Archive::new(Section { file, start: part.offset, len: part.len, at: &at });
    let entries = archive.entries_with_seek().map_err(|e| bad(0, e.to_string()))?;
    let mut members = Members::default();
    let mut end = 0;
    for entry in entries {
        let mut entry = entry.map_err(|e| {
            let cut = if at.get() >= part.len { " The archive is cut: copy or download it again" } else { "" };
            bad(end, format!("no readable tar header: {e}.{cut}"))
        })?;
        let name = components(&entry.path_bytes());
        let shown = String::from_utf8_lossy(&name).into_owned();
        let entry_type = entry.header().entry_type();
        let pax_sparse = match entry.pax_extensions() {
            Ok(Some(extensions)) => extensions.flatten().any(|extension| extension.key_bytes().starts_with(b"GNU.sparse.")),
            _ => false,
        };
        if entry_type == EntryType::GNUSparse || pax_sparse {
            return Err(bad(
                entry.raw_header_position(),
                format!("{shown} is stored as a sparse file, which cannot be read in place. Pack again without --sparse"),
            ));
        }
        let span = Span { offset: part.offset + entry.raw_file_position(), len: entry.size() };
        let data_end = entry.raw_file_position().saturating_add(entry.size());
        if data_end > part.len {
            return Err(bad(
                entry.raw_file_position(),
                format!(
                    "{shown} should have {} bytes, but the archive ends after {}. It is cut: copy or download it again",
                    entry.size(),
                    part.len.saturating_sub(entry.raw_file_position())
                ),
            ));
        }
        end = data_end.next_multiple_of(BLOCK);
        match entry_type {
            EntryType::Regular | EntryType::Continuous => members.files.push(Member { path: name, span }),
            EntryType::Directory => members.folders.push(name),
            EntryType::Link | EntryType::Symlink => members.links.push(name),
            EntryType::XGlobalHeader => {}
            _ => members.special.push(name),
        }
    }
    // The end mark is two blocks of zeros; some writers leave one. Without any, a cut between two members would go unseen.
    if end + BLOCK > part.len {
        let reason = if part.len == 0 {
            "the file is empty, not a tar archive".to_owned()
        } else {
            "the archive's end mark is missing: it is cut, or was never finished. Copy or download it again".to_owned()
        };
        return Err(bad(part.len, reason));
    }
    Ok(members)
}

/// A member's path with `.` and empty components removed.
fn components(path: &[u8]) -> Vec<u8> {
    let parts: Vec<&[u8]> = path.split(|&b| b == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
    parts.join(&b'/')
}

fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|&b| b == b'/').map_or(&[], |slash| &path[..slash])
}

/// The longest path of whole components that both begin with.
fn common_folder<'a>(a: &'a [u8], b: &[u8]) -> &'a [u8] {
    let mut end = 0;
    for (i, slash) in a.iter().map(|&c| c == b'/').chain([true]).enumerate() {
        if slash {
            if b.len() < i || a[..i] != b[..i] || (b.len() > i && b[i] != b'/') {
                break;
            }
            end = i;
        }
    }
    &a[..end]
}

/// Sorts members into classes.
fn group(path: &Path, file: &File, members: Members) -> Result<(Vec<ClassFiles<Span>>, Ignored), DataError> {
    let mut ignored = Ignored::default();
    let folders = members.folders.clone();
    let mut images: Vec<Member> = Vec::new();
    let mut inner: Vec<Member> = Vec::new();
    for member in members.into_latest(&mut ignored) {
        match kind(file_name(&member.path)) {
            _ if hidden(&member.path) => ignored.add_kind(Kind::Hidden, &member.path),
            Kind::Image => images.push(member),
            Kind::Other if member.path.to_ascii_lowercase().ends_with(b".tar") => inner.push(member),
            other => ignored.add_kind(other, &member.path),
        }
    }

    if images.is_empty() && !inner.is_empty() {
        return Ok((class_archives(path, file, inner, &mut ignored)?, ignored));
    }
    for member in inner {
        ignored.add("archives beside images", &member.path);
    }

    let mut root: Option<&[u8]> = None;
    for image in &images {
        root = Some(root.map_or(parent(&image.path), |root| common_folder(root, parent(&image.path))));
    }
    let mut root = root.unwrap_or_default();
    // All images below one folder: that folder is the only class, unless folders below it divide them.
    if images.iter().any(|image| parent(&image.path) == root) && !root.is_empty() {
        root = parent(root);
    }
    let skip = if root.is_empty() { 0 } else { root.len() + 1 };
    let flat = images.iter().filter(|image| !image.path[skip..].contains(&b'/')).count();
    if flat == images.len() && flat > 0 {
        return Err(DataError::FlatFolder {
            path: path.to_owned(),
            count: flat,
            example: images.iter().map(|i| String::from_utf8_lossy(&i.path).into_owned()).min().unwrap_or_default(),
        });
    }
    let mut classes: HashMap<Vec<u8>, ClassFiles<Span>> = HashMap::new();
    let mut add = |class: &[u8], in_class: &[u8], span: Span| -> Result<(), DataError> {
        if !classes.contains_key(class) {
            classes.insert(class.to_vec(), ClassFiles::new(class_name(path, class, span)?));
        }
        if let Some(found) = classes.get_mut(class) {
            found.direct |= !in_class.contains(&b'/');
            found.push(in_class, span);
        }
        Ok(())
    };
    for image in &images {
        let below = &image.path[skip..];
        match below.iter().position(|&b| b == b'/') {
            Some(slash) => add(&below[..slash], &below[slash + 1..], image.span)?,
            None => ignored.add("images outside of any class folder", below),
        }
    }
    let mut classes: Vec<ClassFiles<Span>> = classes.into_values().collect();
    // A class folder without images, as the unpacked tree would show it.
    for folder in &folders {
        let inside = folder.starts_with(root) && folder.len() > skip && (skip == 0 || folder[skip - 1] == b'/');
        let below = if inside { &folder[skip..] } else { &[] };
        if !below.is_empty() && !below.contains(&b'/') && !hidden(below) {
            let name = String::from_utf8_lossy(below);
            if !classes.iter().any(|class| class.name == name) {
                classes.push(ClassFiles::new(name.into_owned()));
            }
        }
    }
    Ok((classes, ignored))
}

fn class_name(path: &Path, class: &[u8], span: Span) -> Result<String, DataError> {
    String::from_utf8(class.to_vec()).map_err(|_| DataError::BadTar {
        path: path.to_owned(),
        offset: span.offset,
        reason: format!("the class folder {:?} is not UTF-8. Rename it", String::from_utf8_lossy(class)),
    })
}

/// The classes of an archive of archives, each named after its class. An archive without images is a class without images.
fn class_archives(
    path: &Path,
    file: &File,
    inner: Vec<Member>,
    ignored: &mut Ignored,
) -> Result<Vec<ClassFiles<Span>>, DataError> {
    let mut classes: HashMap<Vec<u8>, ClassFiles<Span>> = HashMap::new();
    for member in inner {
        let name = file_name(&member.path);
        let class = &name[..name.len() - b".tar".len()];
        let mut found = match classes.remove(class) {
            Some(found) => found,
            None => ClassFiles::new(class_name(path, class, member.span)?),
        };
        for image in index(path, file, member.span)?.into_latest(ignored) {
            match kind(file_name(&image.path)) {
                _ if hidden(&image.path) => ignored.add_kind(Kind::Hidden, &[class, b"/", &image.path].concat()),
                Kind::Image => {
                    found.direct |= !image.path.contains(&b'/');
                    found.push(&image.path, image.span);
                }
                other => ignored.add_kind(other, &[class, b"/", &image.path].concat()),
            }
        }
        classes.insert(class.to_vec(), found);
    }
    Ok(classes.into_values().collect())
}

impl Source for Tar {
    fn len(&self) -> usize {
        self.catalog.len()
    }

    fn classes(&self) -> &[String] {
        self.catalog.classes()
    }

    fn label(&self, index: usize) -> usize {
        self.catalog.label(index)
    }

    fn name(&self, index: usize) -> String {
        printable(&format!("{}:{}", self.path.display(), self.catalog.display(index))).into_owned()
    }

    fn relative_path(&self, index: usize) -> Vec<u8> {
        self.catalog.relative_path(index)
    }

    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, DataError> {
        let mut bytes = Vec::new();
        self.read_into(index, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }

    fn read_into<'a>(&'a self, index: usize, buffer: &'a mut Vec<u8>) -> Result<&'a [u8], DataError> {
        self.spans[index].read(&self.file, buffer).map_err(|e| DataError::io(self.name(index), e))?;
        Ok(buffer)
    }

    fn size(&self, index: usize) -> Option<u64> {
        Some(self.spans[index].len)
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.path.clone()]
    }

    fn notices(&self) -> &[String] {
        self.catalog.notices()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_folders_are_whole_components() {
        assert_eq!(common_folder(b"a/b/c", b"a/b/d"), b"a/b");
        assert_eq!(common_folder(b"a/bc", b"a/b"), b"a");
        assert_eq!(common_folder(b"a/b", b"a/bc"), b"a");
        assert_eq!(common_folder(b"a/b", b"a/b/c"), b"a/b");
        assert_eq!(common_folder(b"a", b"b"), b"");
        assert_eq!(common_folder(b"", b"b"), b"");
    }

    #[test]
    fn components_drop_dots() {
        assert_eq!(components(b"./a//b/./c.png"), b"a/b/c.png");
    }
}
