//! What can go wrong between a disk and a batch.

use std::io;
use std::path::PathBuf;

/// An error of this crate. Each names the file or item it is about and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file is there but is no image that can be read, or only a part of one.
    #[error("{name}: {reason}")]
    BadImage {
        /// The item, as [`crate::Source::name`] gives it.
        name: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// Reading a file or a folder failed.
    #[error("{name}: {source}")]
    Io {
        /// The path, or the item inside an archive.
        name: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// A source without a single image.
    #[error("{path}: no images found{detail}. Expected one sub-folder per class, with .jpg, .jpeg, .png or .webp files in each")]
    NoImages {
        /// The folder or archive.
        path: PathBuf,
        /// What was found instead; empty, or begins with a space or a colon.
        detail: String,
    },
    /// Images without class folders around them.
    #[error(
        "{path}: {count} images (such as {example}) lie directly in this folder, so they have no class. Move each into a \
         sub-folder named after its class, the same names as in the training set. For ImageNet's 50,000 validation files the \
         class of each is in ILSVRC2012_validation_ground_truth.txt of the devkit; the usual script that moves them is valprep.sh"
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
    #[error("{path}: its sub-folders {found} are splits of a dataset, not classes. Name one of them, such as {path}/{first}", path = path.display())]
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
         every split"
    )]
    EmptyClass {
        /// The folder or archive.
        path: PathBuf,
        /// Name of the class.
        class: String,
    },
    /// Two splits whose class lists differ, so that one label means two things.
    #[error(
        "the class lists of training and validation differ: {detail}. Labels would not mean the same; both need the same class folders"
    )]
    ClassMismatch {
        /// The counts and the first difference.
        detail: String,
    },
    /// A tar archive that cannot be indexed.
    #[error("{path}: at byte {offset}: {reason}")]
    BadTar {
        /// The archive.
        path: PathBuf,
        /// Where in the file.
        offset: u64,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A compressed tar: its members cannot be read in place.
    #[error("{path}: compressed with {kind}, so that images cannot be read in place. Decompress it once: {command}")]
    CompressedTar {
        /// The archive.
        path: PathBuf,
        /// Name of the compression.
        kind: &'static str,
        /// A command that decompresses it.
        command: String,
    },
    /// The dataset inside the program does not match its own checksum or layout.
    #[error("the embedded dataset is damaged: {reason}. Build the program again from a clean checkout")]
    Embedded {
        /// What is wrong.
        reason: String,
    },
    /// Code of a source or a transform panicked. Always fails, whatever the policy on bad images: it is a defect, not a bad file.
    #[error(
        "{name}: the loader panicked while it prepared this item: {message}. This is a defect in the program, please report it"
    )]
    WorkerPanic {
        /// The item.
        name: String,
        /// The panic's message.
        message: String,
    },
    /// A loader thread could not be started.
    #[error("cannot start loader thread {index} of {workers}: {source}. Use fewer workers")]
    Thread {
        /// Which thread, from 0.
        index: usize,
        /// How many were asked for.
        workers: usize,
        /// What the operating system said.
        source: io::Error,
    },
    /// A setting that makes no sense.
    #[error("{key}: {reason}")]
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
