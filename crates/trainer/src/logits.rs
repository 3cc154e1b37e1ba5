//! Stored logits: what a network says of every image of a dataset, in a file that a student can learn from.
//!
//! A safetensors file with one tensor, `logits` of shape `[images, classes]`, and in its metadata a hash of the images' labels and file
//! names in their order, so that no other dataset is taken for it.

use std::collections::HashMap;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use crate::error::{Error, Result};

/// Logits of the images of a dataset, in the dataset's order.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredLogits {
    values: Vec<f32>,
    classes: usize,
    files: String,
}

impl StoredLogits {
    /// Logits `[images, classes]`, row by row, of the dataset that `files` identifies.
    pub fn new(values: Vec<f32>, classes: usize, files: String) -> Self {
        Self { values, classes, files }
    }

    /// The logits of an image.
    pub fn row(&self, item: usize) -> &[f32] {
        &self.values[item * self.classes..(item + 1) * self.classes]
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let bytes: Vec<u8> = self.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let failed = |e: String| Error::Failed(format!("cannot write {}: {e}", path.display()));
        let shape = vec![self.values.len() / self.classes.max(1), self.classes];
        let view = TensorView::new(Dtype::F32, shape, &bytes).map_err(|e| failed(e.to_string()))?;
        let metadata = HashMap::from([("files".to_owned(), self.files.clone())]);
        let text = safetensors::serialize([("logits", view)], Some(metadata)).map_err(|e| failed(e.to_string()))?;
        std::fs::write(path, text).map_err(|e| failed(e.to_string()))
    }

    /// Reads a file of [`Self::write`].
    ///
    /// # Errors
    /// Where it cannot be read or holds something else.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = crate::files::read(path)?;
        let wrong = |reason: String| Error::Failed(format!("{}: no file of logits: {reason}", path.display()));
        let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|e| wrong(e.to_string()))?;
        let files = metadata.metadata().as_ref().and_then(|map| map.get("files").cloned());
        let files =
            files.ok_or_else(|| wrong("it does not say of which images; write it with `manyheads eval … --logits`".into()))?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|e| wrong(e.to_string()))?;
        let tensor = tensors.tensor("logits").map_err(|e| wrong(e.to_string()))?;
        let ([_, classes], Dtype::F32) = (tensor.shape(), tensor.dtype()) else {
            return Err(wrong("its tensor is not [images, classes] of f32".into()));
        };
        let (values, _) = tensor.data().as_chunks::<4>();
        let values: Vec<f32> = values.iter().map(|value| f32::from_le_bytes(*value)).collect();
        if !values.iter().all(|value| value.is_finite()) {
            return Err(wrong("not all of its values are finite".into()));
        }
        Ok(Self { values, classes: *classes, files })
    }

    /// Checks that these are the logits of `images` images of `classes` classes which `files` identifies.
    ///
    /// # Errors
    /// Says what differs.
    pub fn check(&self, path: &Path, images: usize, classes: usize, files: &str) -> Result<()> {
        let rows = self.values.len() / self.classes.max(1);
        if (rows, self.classes) != (images, classes) {
            return Err(Error::Failed(format!(
                "{} holds logits of {rows} images and {} classes, but there are {images} training images of {classes} classes",
                path.display(),
                self.classes
            )));
        }
        if self.files != files {
            return Err(Error::Failed(format!(
                "{} holds logits of other images, or of the same in another order; write it anew with `manyheads eval … --logits`",
                path.display()
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_belongs_to_its_images() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("teacher.safetensors");
        let logits = StoredLogits::new(vec![1.0, -2.5, 3.0, 0.0, 0.5, 1e-3], 3, "abc".into());
        logits.write(&path).unwrap();
        let read = StoredLogits::read(&path).unwrap();
        assert_eq!(read, logits);
        assert_eq!(read.row(1), [0.0, 0.5, 1e-3]);
        assert!(read.check(&path, 2, 3, "abc").is_ok());
        assert!(read.check(&path, 3, 3, "abc").unwrap_err().to_string().contains("2 images"));
        assert!(read.check(&path, 2, 3, "xyz").unwrap_err().to_string().contains("other images"));
        std::fs::write(&path, "text").unwrap();
        assert!(StoredLogits::read(&path).unwrap_err().to_string().contains("teacher.safetensors"));
    }
}
