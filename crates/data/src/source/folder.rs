//! A folder with one sub-folder per class.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::catalog::{Catalog, ClassFiles, Ignored, Kind, Table, kind};
use super::labels::Labels;
use super::{MAX_FILE, Source};
use crate::error::{DataError, printable};

/// Folders deeper than this below a class are taken for a circle of symbolic links.
const MAX_DEPTH: usize = 32;

/// An image folder: `root/<class>/…/<file>`. A sub-folder of the root is a class; files are found at any depth below it.
///
/// Order and labels: see [`Folder::open`]. Symbolic links are followed; hidden files and folders are left out. Only names
/// are held in memory.
pub struct Folder {
    root: PathBuf,
    catalog: Catalog,
    /// Whether the images lie in the root itself, and classes are not folders.
    flat: bool,
}

impl Folder {
    /// Lists a folder.
    ///
    /// Classes are the names of the sub-folders in byte order (in numeric order, with a notice, if all are whole numbers);
    /// the files of a class are in byte order of their path. A file counts as an image by its extension (`jpg`, `jpeg`,
    /// `jpe`, `png`, `webp`, in any case); which decoder reads it is decided by content. Everything else is counted and
    /// listed in [`Source::notices`].
    ///
    /// # Errors
    /// - [`DataError::FlatFolder`]: images directly in the folder and no class folders, as in an unsorted `val/`.
    /// - [`DataError::SplitFolder`]: the folder holds `train` and `val`, not classes.
    /// - [`DataError::EmptyClass`]: a class folder without images. An error and no notice: labels after a class that is
    ///   missing from one split are silently wrong by one.
    /// - [`DataError::NoImages`], and [`DataError::Io`] naming what could not be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let root = path.as_ref().to_owned();
        let mut ignored = Ignored::default();
        let mut loose: Vec<Vec<u8>> = Vec::new();
        let mut classes = Vec::new();
        for (name, what) in list(&root)? {
            if what == Entry::Folder && name.first() != Some(&b'.') {
                let class = String::from_utf8(name.clone()).map_err(|_| {
                    let reason = io::Error::other("the name of a class folder must be UTF-8. Rename the folder");
                    DataError::io(root.join(OsStr::from_bytes(&name)).display().to_string(), reason)
                })?;
                let mut found = ClassFiles::new(class);
                walk(&root.join(OsStr::from_bytes(&name)), &mut Vec::new(), 0, &mut found, &mut ignored)?;
                classes.push(found);
                continue;
            }
            match kind(&name) {
                _ if what == Entry::Special => ignored.add(SPECIAL, &name),
                Kind::Image if what == Entry::File => loose.push(name),
                other => ignored.add_kind(other, &name),
            }
        }
        loose.sort_unstable();
        if classes.is_empty() && !loose.is_empty() {
            return Err(DataError::FlatFolder {
                path: root,
                count: loose.len(),
                example: String::from_utf8_lossy(&loose[0]).into_owned(),
            });
        }
        for name in &loose {
            ignored.add("images outside of any class folder", name);
        }
        let (catalog, _) = Catalog::new(&root, classes, Table::Found, ignored)?;
        Ok(Self { root, catalog, flat: false })
    }

    /// Lists a folder whose images lie in it directly, such as ILSVRC2012's `val/` as it is unpacked, with a table of labels.
    ///
    /// The classes are those of the table, in its order, so that a part of the images keeps its labels. Items are ordered by
    /// class and name, as the same images in class folders are. Sub-folders are left out, and counted in [`Source::notices`].
    ///
    /// # Errors
    /// [`DataError::BadLabels`] if an image has no label, or all lie in class folders; [`DataError::NoImages`];
    /// [`DataError::Io`].
    pub fn open_flat(path: impl AsRef<Path>, labels: &Labels) -> Result<Self, DataError> {
        let root = path.as_ref().to_owned();
        let mut ignored = Ignored::default();
        labels.notices().iter().for_each(|notice| ignored.note(notice.clone()));
        let mut files = Vec::new();
        for (name, what) in list(&root)? {
            match kind(&name) {
                Kind::Hidden => ignored.add_kind(Kind::Hidden, &name),
                _ if what == Entry::Special => ignored.add(SPECIAL, &name),
                _ if what == Entry::Folder => ignored.add("folders beside the labelled images", &name),
                Kind::Image => files.push((name, ())),
                other => ignored.add_kind(other, &name),
            }
        }
        if files.is_empty()
            && let Ok(classes) = Self::open(&root)
        {
            let reason = format!(
                "its images lie in class folders (such as {:?}), not beside one another, so no labels are needed: leave the file \
                 of labels out. If the folders are no classes, name the folder that holds the images itself",
                classes.classes()[0]
            );
            return Err(DataError::BadLabels { path: root, reason });
        }
        let classes = labels.sort(&root, files, &mut ignored)?;
        let (catalog, _) = Catalog::new(&root, classes, Table::Given, ignored)?;
        Ok(Self { root, catalog, flat: true })
    }

    /// Path of an image.
    ///
    /// # Panics
    /// If `index >= len()`.
    pub fn path(&self, index: usize) -> PathBuf {
        let file = OsStr::from_bytes(self.catalog.path_in_class(index));
        if self.flat {
            return self.root.join(file);
        }
        let mut path = self.root.join(self.catalog.class(index));
        path.push(file);
        path
    }
}

/// Reads a whole file into a buffer whose memory is used again.
fn read_file(path: &Path, buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.clear();
    // It was a file when the folder was listed; opening a pipe that has taken its place would wait for a writer.
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    if metadata.len() > MAX_FILE {
        return Err(io::Error::other(format!("a file of {} bytes is no image that fits into memory", metadata.len())));
    }
    buffer.reserve_exact(metadata.len() as usize);
    fs::File::open(path)?.read_to_end(buffer)?;
    Ok(())
}

/// How a notice calls what is no regular file.
const SPECIAL: &str = "pipes, sockets and devices";

/// What a name in a folder stands for, links followed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Entry {
    Folder,
    /// A file, or a link that leads nowhere: reading that is an error of the one item.
    File,
    /// A pipe, socket or device. Reading it could wait for ever or have no end.
    Special,
}

/// Names in a folder and what each stands for, in byte order.
fn list(folder: &Path) -> Result<Vec<(Vec<u8>, Entry)>, DataError> {
    let at = |path: &Path| path.display().to_string();
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(|e| DataError::io(at(folder), e))? {
        let entry = entry.map_err(|e| DataError::io(at(folder), e))?;
        let name = entry.file_name().into_vec();
        let mut file_type = entry.file_type().map_err(|e| DataError::io(at(&entry.path()), e))?;
        if file_type.is_symlink() {
            match fs::metadata(entry.path()) {
                Ok(metadata) => file_type = metadata.file_type(),
                Err(_) => {
                    entries.push((name, Entry::File));
                    continue;
                }
            }
        }
        let what = match () {
            () if file_type.is_dir() => Entry::Folder,
            () if file_type.is_file() => Entry::File,
            () => Entry::Special,
        };
        entries.push((name, what));
    }
    entries.sort_unstable();
    Ok(entries)
}

fn walk(
    folder: &Path,
    prefix: &mut Vec<u8>,
    depth: usize,
    found: &mut ClassFiles<()>,
    ignored: &mut Ignored,
) -> Result<(), DataError> {
    if depth > MAX_DEPTH {
        return Err(DataError::io(
            folder.display().to_string(),
            io::Error::other(format!("more than {MAX_DEPTH} folders deep: a symbolic link leads in a circle")),
        ));
    }
    for (name, what) in list(folder)? {
        let end = prefix.len();
        prefix.extend_from_slice(&name);
        match kind(&name) {
            Kind::Hidden => ignored.add_kind(Kind::Hidden, &in_class(found, prefix)),
            _ if what == Entry::Folder => {
                prefix.push(b'/');
                walk(&folder.join(OsStr::from_bytes(&name)), prefix, depth + 1, found, ignored)?;
            }
            _ if what == Entry::Special => ignored.add(SPECIAL, &in_class(found, prefix)),
            Kind::Image => {
                found.direct |= depth == 0;
                found.push(prefix, ());
            }
            other => ignored.add_kind(other, &in_class(found, prefix)),
        }
        prefix.truncate(end);
    }
    Ok(())
}

fn in_class(class: &ClassFiles<()>, path: &[u8]) -> Vec<u8> {
    [class.name.as_bytes(), b"/", path].concat()
}

impl Source for Folder {
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
        printable(&self.path(index).to_string_lossy()).into_owned()
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
        let path = self.path(index);
        read_file(&path, buffer).map_err(|e| {
            let dangling = e.kind() == io::ErrorKind::NotFound && path.is_symlink();
            let e = if dangling { io::Error::other("a symbolic link that leads nowhere. Mend or remove it") } else { e };
            DataError::io(self.name(index), e)
        })?;
        Ok(buffer)
    }

    fn size(&self, index: usize) -> Option<u64> {
        fs::metadata(self.path(index)).ok().map(|metadata| metadata.len())
    }

    fn notices(&self) -> &[String] {
        self.catalog.notices()
    }
}
