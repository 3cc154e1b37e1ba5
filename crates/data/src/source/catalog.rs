//! The compact list of classes and files that folder and tar share, and the rules by which both are put in order.
//!
//! A path costs its bytes below the class folder and one offset, not a `PathBuf`: ImageNet's 1.28 million take about 40 MB.
//! Threads share one list.

use std::path::Path;

use crate::error::{DataError, printable};

/// Extensions of files taken as images. Which decoder reads a file is decided by its content, see [`crate::decode`].
const IMAGES: [&str; 5] = ["jpg", "jpeg", "jpe", "png", "webp"];
/// Extensions of images that this crate does not decode; such files are reported apart from other strays.
const UNREAD_IMAGES: [&str; 10] = ["bmp", "gif", "tif", "tiff", "ppm", "pgm", "pbm", "avif", "heic", "jp2"];
/// Names of folders that hold one split each.
pub(super) const SPLITS: [&str; 6] = ["train", "training", "val", "valid", "validation", "test"];

/// What a file's name says it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Image,
    UnreadImage,
    Hidden,
    Other,
}

/// Kind of a file by the last component of its path.
pub(super) fn kind(file_name: &[u8]) -> Kind {
    if file_name.first() == Some(&b'.') {
        return Kind::Hidden;
    }
    let Some(dot) = file_name.iter().rposition(|&b| b == b'.') else {
        return Kind::Other;
    };
    let extension = &file_name[dot + 1..];
    let is = |known: &&str| extension.eq_ignore_ascii_case(known.as_bytes());
    if IMAGES.iter().any(is) {
        Kind::Image
    } else if UNREAD_IMAGES.iter().any(is) {
        Kind::UnreadImage
    } else {
        Kind::Other
    }
}

/// The last component of a path.
pub(super) fn file_name(path: &[u8]) -> &[u8] {
    path.iter().rposition(|&b| b == b'/').map_or(path, |slash| &path[slash + 1..])
}

/// Files left out, to be told to the user: a count and the first few names of each reason.
#[derive(Default)]
pub(super) struct Ignored(Vec<(&'static str, usize, Vec<String>)>, Vec<String>);

impl Ignored {
    const SHOWN: usize = 3;

    pub(super) fn add(&mut self, reason: &'static str, name: &[u8]) {
        let entry = match self.0.iter_mut().find(|(known, ..)| *known == reason) {
            Some(entry) => entry,
            None => self.0.push_mut((reason, 0, Vec::new())),
        };
        entry.1 += 1;
        if entry.2.len() < Self::SHOWN {
            entry.2.push(printable(&String::from_utf8_lossy(name)).into_owned());
        }
    }

    /// Adds a file that is no image, with the reason its kind gives.
    pub(super) fn add_kind(&mut self, kind: Kind, name: &[u8]) {
        match kind {
            Kind::Image => {}
            Kind::UnreadImage => self.add("image formats that are not read here, convert them to PNG or JPEG", name),
            Kind::Hidden => self.add("hidden", name),
            Kind::Other => self.add("not images", name),
        }
    }

    pub(super) fn total(&self) -> usize {
        self.0.iter().map(|(_, count, _)| count).sum()
    }

    /// Adds what another list holds.
    pub(super) fn merge(&mut self, other: Self) {
        for (reason, count, names) in other.0 {
            match self.0.iter_mut().find(|(known, ..)| *known == reason) {
                Some(entry) => {
                    entry.1 += count;
                    entry.2.extend(names);
                    entry.2.truncate(Self::SHOWN);
                }
                None => self.0.push((reason, count, names)),
            }
        }
        self.1.extend(other.1);
    }

    /// Adds something else that the user should know.
    pub(super) fn note(&mut self, notice: String) {
        self.1.push(notice);
    }

    fn notices(mut self) -> Vec<String> {
        self.0.sort_unstable();
        let notice = |(reason, count, names): (&str, usize, Vec<String>)| {
            let dots = if count > names.len() { ", …" } else { "" };
            let files = if count == 1 { "file" } else { "files" };
            format!("{count} {files} ignored: {reason} ({}{dots})", names.join(", "))
        };
        self.1.into_iter().chain(self.0.into_iter().map(notice)).collect()
    }
}

/// The classes and files of a source, in order.
pub(super) struct Catalog {
    classes: Vec<String>,
    /// All paths below their class folder, one after the other.
    paths: Vec<u8>,
    /// End of each path in `paths`.
    ends: Vec<u64>,
    labels: Vec<u32>,
    notices: Vec<String>,
}

/// Files found in one class folder, before they are put in order. `T` is what the source needs to read one.
///
/// Paths share one buffer, so that listing a million files makes no million allocations.
pub(super) struct ClassFiles<T> {
    pub(super) name: String,
    /// Whether images lie directly in the class folder, not in a folder below it.
    pub(super) direct: bool,
    paths: Vec<u8>,
    files: Vec<Listed<T>>,
}

struct Listed<T> {
    start: usize,
    len: u32,
    handle: T,
}

impl<T> ClassFiles<T> {
    pub(super) fn new(name: String) -> Self {
        Self { name, direct: false, paths: Vec::new(), files: Vec::new() }
    }

    /// Adds a file by its path below the class folder, `/` between components.
    pub(super) fn push(&mut self, path: &[u8], handle: T) {
        // No file system and no archive has paths of 4 GiB; tar's own limit is the size of the archive.
        let len = u32::try_from(path.len()).unwrap_or(u32::MAX);
        self.files.push(Listed { start: self.paths.len(), len, handle });
        self.paths.extend_from_slice(&path[..len as usize]);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    fn path(&self, file: &Listed<T>) -> &[u8] {
        &self.paths[file.start..file.start + file.len as usize]
    }
}

/// Whether the classes are those of the folders found, or a table given from outside.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    /// Folders: sorted here, and each must hold an image.
    Found,
    /// A given table: its order is kept, and a class may be without images.
    Given,
}

impl Catalog {
    /// Puts classes and files in order and checks them. Returns what each item needs to be read, in the items' order.
    ///
    /// Classes are ordered by their bytes, as torchvision and timm order ImageNet's synset names; if all names are whole
    /// numbers, by number. Files of a class are ordered by the bytes of their path below it.
    pub(super) fn new<T>(
        path: &Path,
        mut classes: Vec<ClassFiles<T>>,
        table: Table,
        ignored: Ignored,
    ) -> Result<(Self, Vec<T>), DataError> {
        let mut notices = Vec::new();
        if table == Table::Found {
            if classes.len() > 1 && classes.iter().all(|class| is_number(&class.name)) {
                classes.sort_by(|a, b| by_number(&a.name, &b.name));
                let last = classes.len() - 1;
                notices.push(format!(
                    "class folders are numbers, taken in numeric order: label 0 is {:?}, label {last} is {:?}",
                    classes[0].name, classes[last].name
                ));
            } else {
                classes.sort_by(|a, b| a.name.cmp(&b.name));
            }
            check_found(path, &classes, &ignored)?;
        }
        if classes.iter().all(ClassFiles::is_empty) {
            return Err(DataError::NoImages { path: path.to_owned(), detail: String::new() });
        }

        let total = classes.iter().map(|class| class.files.len()).sum();
        let mut catalog = Self {
            classes: Vec::with_capacity(classes.len()),
            paths: Vec::with_capacity(classes.iter().map(|class| class.paths.len()).sum()),
            ends: Vec::with_capacity(total),
            labels: Vec::with_capacity(total),
            notices,
        };
        let mut handles = Vec::with_capacity(total);
        for (label, mut class) in classes.into_iter().enumerate() {
            let paths = std::mem::take(&mut class.paths);
            let path = |file: &Listed<T>| &paths[file.start..file.start + file.len as usize];
            class.files.sort_by(|a, b| path(a).cmp(path(b)));
            for file in class.files {
                catalog.paths.extend_from_slice(path(&file));
                catalog.ends.push(catalog.paths.len() as u64);
                catalog.labels.push(label as u32);
                handles.push(file.handle);
            }
            catalog.classes.push(class.name);
        }
        catalog.notices.extend(ignored.notices());
        Ok((catalog, handles))
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn classes(&self) -> &[String] {
        &self.classes
    }

    pub(super) fn label(&self, index: usize) -> usize {
        self.labels[index] as usize
    }

    pub(super) fn notices(&self) -> &[String] {
        &self.notices
    }

    pub(super) fn class(&self, index: usize) -> &str {
        &self.classes[self.label(index)]
    }

    /// Path of an item below its class folder.
    pub(super) fn path_in_class(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        &self.paths[start..self.ends[index] as usize]
    }

    /// `class/path`. A class name's own slashes become underscores.
    pub(super) fn relative_path(&self, index: usize) -> Vec<u8> {
        [self.class(index).replace('/', "_").as_bytes(), b"/", self.path_in_class(index)].concat()
    }

    /// `class/path`, for messages.
    pub(super) fn display(&self, index: usize) -> String {
        format!("{}/{}", self.class(index), String::from_utf8_lossy(self.path_in_class(index)))
    }
}

/// What is wrong with the classes found, in the order in which a user should hear of it.
fn check_found<T>(path: &Path, classes: &[ClassFiles<T>], ignored: &Ignored) -> Result<(), DataError> {
    let is_split = |class: &ClassFiles<T>| !class.is_empty() && SPLITS.contains(&class.name.to_ascii_lowercase().as_str());
    if let [only] = classes
        && only.direct
        && is_split(only)
    {
        return Err(DataError::FlatFolder {
            path: path.join(&only.name),
            count: only.files.len(),
            example: String::from_utf8_lossy(only.path(&only.files[0])).into_owned(),
        });
    }
    if !classes.is_empty() && classes.iter().all(|class| is_split(class) && !class.direct) {
        let names: Vec<&str> = classes.iter().map(|class| class.name.as_str()).collect();
        return Err(DataError::SplitFolder { path: path.to_owned(), found: names.join(", "), first: names[0].to_owned() });
    }
    if classes.iter().all(ClassFiles::is_empty) {
        let detail = match (classes.len(), ignored.total()) {
            (0, 0) => String::new(),
            (folders, others) => format!(" ({folders} sub-folders, {others} other files)"),
        };
        return Err(DataError::NoImages { path: path.to_owned(), detail });
    }
    if let Some(empty) = classes.iter().find(|class| class.is_empty()) {
        return Err(DataError::EmptyClass { path: path.to_owned(), class: empty.name.clone() });
    }
    Ok(())
}

pub(super) fn is_number(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit())
}

/// Order of decimal numbers of any length; equal numbers written differently (`1`, `01`) by text.
pub(super) fn by_number(a: &str, b: &str) -> std::cmp::Ordering {
    let digits = |s: &'_ str| s.trim_start_matches('0').to_owned();
    let (x, y) = (digits(a), digits(b));
    x.len().cmp(&y.len()).then_with(|| x.cmp(&y)).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_go_by_extension_in_any_case() {
        assert_eq!(kind(b"a.JPEG"), Kind::Image);
        assert_eq!(kind(b"a.tar.png"), Kind::Image);
        assert_eq!(kind(b"a.gif"), Kind::UnreadImage);
        assert_eq!(kind(b"README"), Kind::Other);
        assert_eq!(kind(b"jpg"), Kind::Other);
        assert_eq!(kind(b"._a.jpg"), Kind::Hidden);
    }

    #[test]
    fn numbers_are_ordered_by_value() {
        let mut names = vec!["10", "9", "1000", "0", "010", "100", "007"];
        names.sort_by(|a, b| by_number(a, b));
        assert_eq!(names, ["0", "007", "9", "010", "10", "100", "1000"]);
    }
}
