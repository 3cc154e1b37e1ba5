//! The pixels of a batch, as floats or bytes.

use std::sync::{Mutex, PoisonError};

use super::rows::{Row, Whole, split};
use crate::augment::Patch;
use crate::transform::Output;

/// How a batch holds its pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PixelFormat {
    /// Normalised 32-bit floats.
    #[default]
    F32,
    /// Bytes 0 to 255, to be normalised on the device by the transform's mean and standard deviation: a quarter of the memory.
    /// What random erasing fills in comes apart, as it acts on normalised values.
    U8,
}

/// Pixels [B, C, H, W] in one buffer.
#[derive(Clone, Debug, PartialEq)]
pub enum Images {
    /// Normalised, see [`PixelFormat::F32`].
    F32(Vec<f32>),
    /// Not normalised, see [`PixelFormat::U8`].
    U8 {
        /// The pixels.
        values: Vec<u8>,
        /// What is erased once they are normalised: image of the batch and rectangle, in order of the images; of one image
        /// later ones may lie over earlier ones.
        patches: Vec<(usize, Patch)>,
    },
}

impl Images {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::U8 { values, .. } => values.len(),
        }
    }

    /// Whether there is none: every image of the batch was skipped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values, if they are floats.
    pub fn as_f32(&self) -> Option<&[f32]> {
        match self {
            Self::F32(values) => Some(values),
            Self::U8 { .. } => None,
        }
    }

    /// The values, if they are bytes; without what is erased in them.
    pub fn as_u8(&self) -> Option<&[u8]> {
        match self {
            Self::U8 { values, .. } => Some(values),
            Self::F32(_) => None,
        }
    }

    /// The values, if they are floats.
    pub fn into_f32(self) -> Option<Vec<f32>> {
        match self {
            Self::F32(values) => Some(values),
            Self::U8 { .. } => None,
        }
    }

    /// The values, if they are bytes; without what is erased in them.
    pub fn into_u8(self) -> Option<Vec<u8>> {
        match self {
            Self::U8 { values, .. } => Some(values),
            Self::F32(_) => None,
        }
    }

    fn format(&self) -> PixelFormat {
        match self {
            Self::F32(_) => PixelFormat::F32,
            Self::U8 { .. } => PixelFormat::U8,
        }
    }

    fn with_len(self, len: usize) -> Self {
        fn resized<T: Clone + Default>(mut values: Vec<T>, len: usize) -> Vec<T> {
            values.resize(len, T::default());
            values
        }
        match self {
            Self::F32(values) => Self::F32(resized(values, len)),
            Self::U8 { values, .. } => Self::U8 { values: resized(values, len), patches: Vec::new() },
        }
    }

    /// Moves the row at `from` up to `to`.
    pub(super) fn move_row(&mut self, from: usize, to: usize, len: usize) {
        let source = from * len..(from + 1) * len;
        match self {
            Self::F32(values) => values.copy_within(source, to * len),
            Self::U8 { values, .. } => values.copy_within(source, to * len),
        }
    }

    /// Cuts the pixels off after `len` values, and tells what is erased in the images left.
    pub(super) fn complete(&mut self, len: usize, erased: Vec<(usize, Patch)>) {
        match self {
            Self::F32(values) => values.truncate(len),
            Self::U8 { values, patches } => {
                values.truncate(len);
                *patches = erased;
            }
        }
    }

    /// Cuts the buffer into rows for several threads.
    pub(super) fn split(self, row: usize) -> (SplitImages, Vec<ImageRow>) {
        match self {
            Self::F32(values) => {
                let (whole, rows) = split(values, row);
                (SplitImages::F32(whole), rows.into_iter().map(ImageRow::F32).collect())
            }
            Self::U8 { values, .. } => {
                let (whole, rows) = split(values, row);
                (SplitImages::U8(whole), rows.into_iter().map(ImageRow::U8).collect())
            }
        }
    }
}

/// Images whose rows are with several threads.
pub(super) enum SplitImages {
    F32(Whole<f32>),
    U8(Whole<u8>),
}

impl SplitImages {
    /// The images again; none while a row is left.
    pub(super) fn join(self) -> Option<Images> {
        match self {
            Self::F32(whole) => whole.into_vec().map(Images::F32),
            Self::U8(whole) => whole.into_vec().map(|values| Images::U8 { values, patches: Vec::new() }),
        }
    }
}

/// The place of one image in a batch.
pub(super) enum ImageRow {
    F32(Row<f32>),
    U8(Row<u8>),
}

impl ImageRow {
    /// Where a sample goes; `patches` are filled for bytes alone.
    pub(super) fn output<'a>(&'a mut self, patches: &'a mut Vec<Patch>) -> Output<'a> {
        match self {
            Self::F32(row) => Output::F32(row),
            Self::U8(row) => Output::U8 { values: row, patches },
        }
    }
}

/// Buffers given back, to be used again: a fresh one of 150 MB costs as many page faults as it has pages.
pub(super) struct Spares {
    format: PixelFormat,
    /// Most buffers kept.
    limit: usize,
    buffers: Mutex<Vec<Images>>,
}

impl Spares {
    pub(super) fn new(format: PixelFormat, limit: usize) -> Self {
        Self { format, limit, buffers: Mutex::new(Vec::new()) }
    }

    pub(super) fn put(&self, images: Images) {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if images.format() == self.format && buffers.len() < self.limit {
            buffers.push(images);
        }
    }

    /// A buffer of `len` values, whatever they are.
    pub(super) fn take(&self, len: usize) -> Images {
        let spare = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match (spare, self.format) {
            (Some(images), _) => images.with_len(len),
            (None, PixelFormat::F32) => Images::F32(vec![0.0; len]),
            (None, PixelFormat::U8) => Images::U8 { values: vec![0; len], patches: Vec::new() },
        }
    }
}
