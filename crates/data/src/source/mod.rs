//! Where labelled images come from: random access to encoded bytes, nothing decoded or copied early.

mod catalog;
pub mod embedded;
pub mod folder;
pub mod labels;
pub mod noise;
mod open;
pub mod packed;
pub mod parquet;
pub(crate) mod shards;
pub mod tar;
pub mod webdataset;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use burn_dataset::Dataset;

use crate::error::DataError;
pub use open::{Form, OpenOptions, open};

/// Largest encoded image that is read, in bytes: no image that may be decoded needs more, see [`crate::decode::MAX_PIXELS`].
pub const MAX_FILE: u64 = 1 << 30;

/// A labelled set of encoded images with random access from many threads.
pub trait Source: Send + Sync {
    /// Number of images.
    fn len(&self) -> usize;

    /// Whether there is none. The sources of this crate refuse to open in that case.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Class names; a label is an index into them.
    fn classes(&self) -> &[String];

    /// Label of an image.
    ///
    /// # Panics
    /// If `index >= len()`.
    fn label(&self, index: usize) -> usize;

    /// What a message calls an image, control characters escaped: `photos/train/cat/x.jpg`, `train.tar:cat/x.jpg`, `fashion-mnist/train/00042.png`.
    ///
    /// # Panics
    /// If `index >= len()`.
    fn name(&self, index: usize) -> String;

    /// Encoded bytes of an image.
    ///
    /// # Errors
    /// [`DataError::Io`] naming the item.
    ///
    /// # Panics
    /// If `index >= len()`.
    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, DataError>;

    /// As [`Source::read`], into a buffer whose memory is used again; the bytes may also be the source's own.
    ///
    /// # Errors
    /// As [`Source::read`].
    ///
    /// # Panics
    /// If `index >= len()`.
    fn read_into<'a>(&'a self, index: usize, buffer: &'a mut Vec<u8>) -> Result<&'a [u8], DataError> {
        Ok(match self.read(index)? {
            Cow::Borrowed(bytes) => bytes,
            Cow::Owned(bytes) => {
                *buffer = bytes;
                buffer
            }
        })
    }

    /// Where the image lies below the root of the dataset: `cat/x.jpg`. The same for every form that a dataset comes in, and
    /// the path that it is packed under. Bytes, because file names need not be UTF-8.
    ///
    /// # Panics
    /// If `index >= len()`.
    fn relative_path(&self, index: usize) -> Vec<u8> {
        let name = self.name(index);
        let file = name.rsplit(['/', ':']).next().unwrap_or(&name);
        format!("{}/{file}", self.classes()[self.label(index)].replace('/', "_")).into_bytes()
    }

    /// Number of encoded bytes of an image, where the source knows it without reading the image.
    ///
    /// # Panics
    /// If `index >= len()`.
    fn size(&self, _index: usize) -> Option<u64> {
        None
    }

    /// Files that hold many images and are read in place: the tar, the shards, the packed file. None for a folder.
    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// What the user should know about how the source was read: the order of numeric class names, files left out.
    fn notices(&self) -> &[String];
}

/// One item of a source as a [`burn_dataset::Dataset`] gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedImage {
    /// The file's bytes: JPEG, PNG or WebP.
    pub bytes: Vec<u8>,
    /// Index of the class.
    pub label: usize,
    /// As [`Source::name`].
    pub name: String,
}

fn encoded_image<S: Source + ?Sized>(source: &S, index: usize) -> Result<EncodedImage, DataError> {
    // The trait of burn-dataset asks for a panic here, and keeps errors for items that exist.
    assert!(index < source.len(), "item {index} of a dataset of {}", source.len());
    Ok(EncodedImage { bytes: source.read(index)?.into_owned(), label: source.label(index), name: source.name(index) })
}

macro_rules! implement_dataset {
    ($($source:ty),*) => {$(
        impl Dataset<EncodedImage, DataError> for $source {
            fn get(&self, index: usize) -> Result<EncodedImage, DataError> {
                encoded_image(self, index)
            }

            fn len(&self) -> usize {
                Source::len(self)
            }
        }
    )*};
}
implement_dataset!(folder::Folder, tar::Tar, webdataset::WebDataset, packed::Packed, parquet::Parquet, embedded::FashionMnist);

/// Any shared source as a [`burn_dataset::Dataset`], for sources whose type is not known.
#[derive(Clone)]
pub struct AsDataset(pub Arc<dyn Source>);

impl Dataset<EncodedImage, DataError> for AsDataset {
    fn get(&self, index: usize) -> Result<EncodedImage, DataError> {
        encoded_image(&*self.0, index)
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Checks that a label means the same class in both sources.
///
/// # Errors
/// [`DataError::ClassMismatch`] with the counts, the first label that differs, and names that only one side has.
pub fn check_same_classes(train: &dyn Source, val: &dyn Source) -> Result<(), DataError> {
    let (train, val) = (train.classes(), val.classes());
    if train == val {
        return Ok(());
    }
    let mut detail = format!("{} classes for training, {} for validation", train.len(), val.len());
    let shorter = train.len().min(val.len());
    let first = (0..shorter).find(|&i| train[i] != val[i]);
    match first {
        Some(label) => detail += &format!("; label {label} is {:?} against {:?}", train[label], val[label]),
        None => {
            let (longer, side) = if train.len() > val.len() { (train, "training") } else { (val, "validation") };
            detail += &format!("; label {shorter} is {:?} in {side} only", longer[shorter]);
        }
    }
    for (side, own, other) in [("training", train, val), ("validation", val, train)] {
        let others: std::collections::HashSet<&String> = other.iter().collect();
        let only: Vec<&String> = own.iter().filter(|class| !others.contains(class)).collect();
        if !only.is_empty() {
            let some: Vec<String> = only.iter().take(3).map(|class| format!("{class:?}")).collect();
            let dots = if only.len() > 3 { ", …" } else { "" };
            detail += &format!("; only in {side}: {} ({}{dots})", only.len(), some.join(", "));
        }
    }
    Err(DataError::ClassMismatch { detail })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Classes(Vec<String>);
    impl Source for Classes {
        fn len(&self) -> usize {
            0
        }
        fn classes(&self) -> &[String] {
            &self.0
        }
        fn label(&self, _: usize) -> usize {
            0
        }
        fn name(&self, _: usize) -> String {
            String::new()
        }
        fn read(&self, _: usize) -> Result<Cow<'_, [u8]>, DataError> {
            Ok(Cow::Borrowed(&[]))
        }
        fn notices(&self) -> &[String] {
            &[]
        }
    }

    fn classes(names: &[&str]) -> Classes {
        Classes(names.iter().map(|&n| n.to_owned()).collect())
    }

    #[test]
    fn a_class_mismatch_names_the_first_difference() {
        let train = classes(&["cat", "dog", "fox"]);
        assert!(check_same_classes(&train, &classes(&["cat", "dog", "fox"])).is_ok());
        let message = check_same_classes(&train, &classes(&["cat", "fox"])).unwrap_err().to_string();
        assert!(message.contains("3 classes for training, 2 for validation"), "{message}");
        assert!(message.contains(r#"label 1 is "dog" against "fox""#), "{message}");
        assert!(message.contains(r#"only in training: 1 ("dog")"#), "{message}");
        let message = check_same_classes(&train, &classes(&["cat", "dog"])).unwrap_err().to_string();
        assert!(message.contains(r#"label 2 is "fox" in training only"#), "{message}");
    }
}
