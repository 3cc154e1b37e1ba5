//! An uncompressed tar of an image folder, indexed once and read in place.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use tar::{Archive, EntryType};

use super::Source;
use super::catalog::{Catalog, ClassFiles, Ignored, Kind, kind};
use crate::error::DataError;

const BLOCK: u64 = 512;

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

#[derive(Clone, Copy)]
struct Span {
    offset: u64,
    len: u64,
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
struct Member {
    path: Vec<u8>,
    span: Span,
}

/// What one archive holds.
#[derive(Default)]
struct Members {
    files: Vec<Member>,
    folders: Vec<Vec<u8>>,
    links: Vec<Vec<u8>>,
    /// Devices, pipes and the like.
    special: Vec<Vec<u8>>,
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
        let path = path.as_ref().to_owned();
        let io_error = |e| DataError::io(path.display().to_string(), e);
        // Opening a pipe would wait for a writer.
        if std::fs::metadata(&path).map_err(io_error)?.file_type().is_fifo() {
            return Err(io_error(io::Error::other("a pipe, where a tar file is expected: it is read in place")));
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
        let (classes, ignored) = group(&path, &file, members)?;
        let (catalog, spans) = Catalog::new(&path, classes, ignored)?;
        Ok(Self { path, file, catalog, spans })
    }
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

fn file_name(path: &[u8]) -> &[u8] {
    path.iter().rposition(|&b| b == b'/').map_or(path, |slash| &path[slash + 1..])
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
    for link in &members.links {
        ignored.add("links, which a tar cannot follow in place; pack with --dereference --hard-dereference", link);
    }
    for special in &members.special {
        ignored.add("not regular files", special);
    }
    // A path that comes twice was appended later; unpacking would leave the later one.
    let mut latest: HashMap<&[u8], usize> = HashMap::with_capacity(members.files.len());
    for (i, member) in members.files.iter().enumerate() {
        if let Some(earlier) = latest.insert(&member.path, i) {
            ignored.add("replaced by a later member of the same name", &members.files[earlier].path);
        }
    }
    let hidden = |path: &[u8]| path.split(|&b| b == b'/').any(|part| part.first() == Some(&b'.'));
    let mut images: Vec<&Member> = Vec::new();
    let mut inner: Vec<&Member> = Vec::new();
    for (i, member) in members.files.iter().enumerate() {
        if latest[member.path.as_slice()] != i {
            continue;
        }
        match kind(file_name(&member.path)) {
            _ if hidden(&member.path) => ignored.add_kind(Kind::Hidden, &member.path),
            Kind::Image => images.push(member),
            Kind::Other if member.path.to_ascii_lowercase().ends_with(b".tar") => inner.push(member),
            other => ignored.add_kind(other, &member.path),
        }
    }
    drop(latest);

    let mut classes: HashMap<Vec<u8>, ClassFiles<Span>> = HashMap::new();
    let mut add = |class: &[u8], in_class: &[u8], span: Span| -> Result<(), DataError> {
        if !classes.contains_key(class) {
            let name = String::from_utf8(class.to_vec()).map_err(|_| DataError::BadTar {
                path: path.to_owned(),
                offset: span.offset,
                reason: format!("the class folder {:?} is not UTF-8. Rename it", String::from_utf8_lossy(class)),
            })?;
            classes.insert(class.to_vec(), ClassFiles { name, files: Vec::new(), direct: false });
        }
        if let Some(found) = classes.get_mut(class) {
            found.direct |= !in_class.contains(&b'/');
            found.files.push((in_class.to_vec(), span));
        }
        Ok(())
    };

    if images.is_empty() && !inner.is_empty() {
        for member in inner {
            let name = file_name(&member.path);
            let class = &name[..name.len() - b".tar".len()];
            for image in index(path, file, member.span)?.files {
                match kind(file_name(&image.path)) {
                    Kind::Image => add(class, &image.path, image.span)?,
                    other => ignored.add_kind(other, &[class, b"/", &image.path].concat()),
                }
            }
        }
        return Ok((classes.into_values().collect(), ignored));
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
    for image in &images {
        let below = &image.path[skip..];
        match below.iter().position(|&b| b == b'/') {
            Some(slash) => add(&below[..slash], &below[slash + 1..], image.span)?,
            None => ignored.add("images outside of any class folder", below),
        }
    }
    let mut classes: Vec<ClassFiles<Span>> = classes.into_values().collect();
    // A class folder without images, as the unpacked tree would show it.
    for folder in &members.folders {
        let inside = folder.starts_with(root) && folder.len() > skip && (skip == 0 || folder[skip - 1] == b'/');
        let below = if inside { &folder[skip..] } else { &[] };
        if !below.is_empty() && !below.contains(&b'/') && !hidden(below) {
            let name = String::from_utf8_lossy(below);
            if !classes.iter().any(|class| class.name == name) {
                classes.push(ClassFiles { name: name.into_owned(), files: Vec::new(), direct: false });
            }
        }
    }
    Ok((classes, ignored))
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
        format!("{}:{}", self.path.display(), self.catalog.display(index))
    }

    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, DataError> {
        let Span { offset, len } = self.spans[index];
        let mut bytes = vec![0; len as usize];
        self.file.read_exact_at(&mut bytes, offset).map_err(|e| DataError::io(self.name(index), e))?;
        Ok(Cow::Owned(bytes))
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
