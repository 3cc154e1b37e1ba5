//! What can go wrong between a disk and a batch.

use std::borrow::Cow;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

/// Text for a message: control characters, which file names may hold and a terminal would obey, are written as escapes.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if c.is_control() {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

/// A path as [`printable`] text.
fn shown(path: &Path) -> impl Display {
    printable(&path.to_string_lossy()).into_owned()
}

/// An error of this crate. Each names the file or item it is about and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file is there but is no image that can be read, or only a part of one.
    #[error("{}: {}", printable(name), printable(reason))]
    BadImage {
        /// The item, as [`crate::Source::name`] gives it.
        name: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// Reading a file or a folder failed.
    #[error("{}: {source}", printable(name))]
    Io {
        /// The path, or the item inside an archive.
        name: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// A source without a single image.
    #[error("{path}: no images found{detail}. Expected one sub-folder per class, with .jpg, .jpeg, .png or .webp files in each", path = shown(path), detail = printable(detail))]
    NoImages {
        /// The folder or archive.
        path: PathBuf,
        /// What was found instead; empty, or begins with a space or a colon.
        detail: String,
    },
    /// Images without class folders around them.
    #[error(
        "{path}: {count} images (such as {example}) lie directly in this folder, so they have no class. Give a file of labels with \
         a line of file name and class for each (data.val_labels or --labels), or move each into a sub-folder named after its \
         class, the same names as in the training set. ImageNet's own validation files need no labels while they keep their names",
        path = shown(path),
        example = printable(example)
    )]
    FlatFolder {
        /// The folder or archive.
        path: PathBuf,
        /// How many images there are.
        count: usize,
        /// One of them.
        example: String,
    },
    /// The folder above the splits was given instead of one split.
    #[error("{path}: its sub-folders {found} are splits of a dataset, not classes. Name one of them, such as {path}/{first}", path = shown(path), found = printable(found), first = printable(first))]
    SplitFolder {
        /// The folder or archive.
        path: PathBuf,
        /// The splits found, joined by commas.
        found: String,
        /// The first of them.
        first: String,
    },
    /// A class folder without images: labels after it would silently shift against another split.
    #[error(
        "{path}: the class folder {class:?} holds no images. Unpack the dataset again if it should, or remove the folder from \
         every split",
        path = shown(path)
    )]
    EmptyClass {
        /// The folder or archive.
        path: PathBuf,
        /// Name of the class.
        class: String,
    },
    /// Two splits whose class lists differ, so that one label means two things.
    #[error(
        "the class lists of training and validation differ: {detail}. Labels would not mean the same; both need the same class folders",
        detail = printable(detail)
    )]
    ClassMismatch {
        /// The counts and the first difference.
        detail: String,
    },
    /// A tar archive that cannot be indexed.
    #[error("{path}: at byte {offset}: {reason}", path = shown(path), reason = printable(reason))]
    BadTar {
        /// The archive.
        path: PathBuf,
        /// Where in the file.
        offset: u64,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A compressed tar: its members cannot be read in place.
    #[error("{path}: compressed with {kind}, so that images cannot be read in place. Decompress it once: {command}", path = shown(path), command = printable(command))]
    CompressedTar {
        /// The archive.
        path: PathBuf,
        /// Name of the compression.
        kind: &'static str,
        /// A command that decompresses it.
        command: String,
    },
    /// A file of labels or class names that cannot be used.
    #[error("{path}: {reason}", path = shown(path), reason = printable(reason))]
    BadLabels {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A container of images (WebDataset shard, parquet file, packed file) that cannot be read.
    #[error("{path}: {reason}", path = shown(path), reason = printable(reason))]
    BadContainer {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A path that is none of the forms in which a dataset can come.
    #[error("{path}: {reason}", path = shown(path), reason = printable(reason))]
    UnknownForm {
        /// The path as given.
        path: PathBuf,
        /// What was found, and what is expected.
        reason: String,
    },
    /// Work that takes long was stopped by the caller.
    #[error("{what} was stopped. {detail}", detail = printable(detail))]
    Cancelled {
        /// What was being done.
        what: &'static str,
        /// What is left of it, and how to go on.
        detail: String,
    },
    /// The dataset inside the program does not match its own checksum or layout.
    #[error("the embedded dataset is damaged: {reason}. Build the program again from a clean checkout")]
    Embedded {
        /// What is wrong.
        reason: String,
    },
    /// Code of a source or a transform panicked. Always fails, whatever the policy on bad images: it is a defect, not a bad file.
    #[error(
        "{name}: the loader panicked while it prepared this item: {message}. This is a defect in the program, please report it",
        name = printable(name),
        message = printable(message)
    )]
    WorkerPanic {
        /// The item.
        name: String,
        /// The panic's message.
        message: String,
    },
    /// A thread could not be started.
    #[error("cannot start thread {index} of {workers}: {source}. Use fewer threads")]
    Thread {
        /// Which thread, from 0.
        index: usize,
        /// How many were asked for.
        workers: usize,
        /// What the operating system said.
        source: io::Error,
    },
    /// A setting that makes no sense.
    #[error("{key}: {reason}", reason = printable(reason))]
    Config {
        /// The setting's name.
        key: &'static str,
        /// What is wrong, and which values are right.
        reason: String,
    },
}

impl DataError {
    pub(crate) fn io(name: impl Into<String>, source: io::Error) -> Self {
        Self::Io { name: name.into(), source }
    }

    pub(crate) fn bad_image(name: &str, reason: impl Into<String>) -> Self {
        Self::BadImage { name: name.to_owned(), reason: reason.into() }
    }

    pub(crate) fn config(key: &'static str, reason: impl Into<String>) -> Self {
        Self::Config { key, reason: reason.into() }
    }

    /// Whether [`crate::OnError::Skip`] may leave the item out: true for what is wrong with one item's bytes.
    pub fn is_item_error(&self) -> bool {
        matches!(self, Self::BadImage { .. } | Self::Io { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_names_are_escaped_and_other_letters_stay() {
        let error = DataError::bad_image("猫/a\u{1b}[2Jb\nc.png", "naïve\r");
        assert_eq!(error.to_string(), r"猫/a\u{1b}[2Jb\nc.png: naïve\r");
        let error = DataError::UnknownForm { path: "é\u{7}".into(), reason: "x".into() };
        assert_eq!(error.to_string(), r"é\u{7}: x");
    }
}
