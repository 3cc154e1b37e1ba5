//! Tensors in a safetensors file, written straight to disk with its hash taken on the way.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use manyheads_model::weights::timm::NamedTensor;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::parts::Part;
use crate::error::{Error, Result};

/// Length and hash of a file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 of the contents in hexadecimal, as `sha256sum` prints it.
    pub sha256: String,
}

/// Hexadecimal SHA-256 of `bytes`.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Bytes in hexadecimal.
pub fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file being written, hashed and counted.
struct HashedFile {
    file: BufWriter<File>,
    hash: Sha256,
    bytes: u64,
}

impl Write for HashedFile {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(buffer)?;
        self.hash.update(&buffer[..written]);
        self.bytes += written as u64;
        Ok(written)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// Creates `path`, lets `contents` write into it, and returns once it is on the disk.
///
/// # Errors
/// The system's error; the file may then be partly there.
pub fn write_synced(path: &Path, contents: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> std::io::Result<FileEntry> {
    let file = File::create_new(path)?;
    let mut out = HashedFile { file: BufWriter::with_capacity(1 << 20, file), hash: Sha256::new(), bytes: 0 };
    contents(&mut out)?;
    out.flush()?;
    out.file.get_ref().sync_all()?;
    Ok(FileEntry { bytes: out.bytes, sha256: hex(&out.hash.finalize()) })
}

/// Writes `tensors` in their order as f32 in the safetensors format: the length of a JSON header (u64, little endian), the header
/// padded with blanks to a multiple of 8, the data. Each tensor is let go once it is written.
///
/// # Errors
/// The system's error, or what is wrong with a tensor.
pub fn write_tensors(out: &mut dyn Write, tensors: Vec<Part>) -> std::io::Result<()> {
    let mut header = serde_json::Map::new();
    // The key that transformers asks for before it loads a file.
    header.insert("__metadata__".into(), serde_json::json!({"format": "pt"}));
    let mut offset = 0usize;
    for tensor in &tensors {
        let end = offset + tensor.shape().iter().product::<usize>() * size_of::<f32>();
        let entry = serde_json::json!({"dtype": "F32", "shape": tensor.shape(), "data_offsets": [offset, end]});
        header.insert(tensor.name().into(), entry);
        offset = end;
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    let mut bytes = Vec::with_capacity(1 << 16);
    for tensor in tensors {
        for values in tensor.into_values()?.chunks(1 << 14) {
            bytes.clear();
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            out.write_all(&bytes)?;
        }
    }
    Ok(())
}

/// Reads the f32 tensors of a safetensors file's bytes. `origin` is the file's name for errors.
///
/// # Errors
/// Where the bytes are no sound safetensors file, or a tensor is not f32.
pub fn read_tensors(bytes: &[u8], origin: &Path) -> Result<HashMap<String, NamedTensor>> {
    let file = SafeTensors::deserialize(bytes)
        .map_err(|e| Error::Failed(format!("{} is not a sound safetensors file: {e}", origin.display())))?;
    let mut tensors = HashMap::with_capacity(file.len());
    for (name, view) in file.iter() {
        if view.dtype() != Dtype::F32 {
            return Err(Error::Failed(format!(
                "{}: the tensor {name} is {:?}; only f32 can be read. Convert the file to f32",
                origin.display(),
                view.dtype()
            )));
        }
        let values = view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        tensors.insert(name.to_string(), NamedTensor { name: name.to_string(), shape: view.shape().to_vec(), values });
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensors() -> Vec<NamedTensor> {
        let tensor = |name: &str, shape: &[usize]| NamedTensor {
            name: name.into(),
            shape: shape.to_vec(),
            values: (0..shape.iter().product()).map(|i: usize| i as f32 * 0.1 - 1.0).collect(),
        };
        vec![tensor("b.weight", &[2, 3]), tensor("a", &[5]), tensor("z", &[1, 1, 70_000])]
    }

    fn parts() -> Vec<Part> {
        tensors().into_iter().map(Part::from).collect()
    }

    #[test]
    fn what_is_written_is_read_back_bit_for_bit() {
        let mut bytes = Vec::new();
        write_tensors(&mut bytes, parts()).unwrap();
        let read = read_tensors(&bytes, Path::new("x")).unwrap();
        assert_eq!(read.len(), 3);
        for tensor in tensors() {
            let got = &read[&tensor.name];
            assert_eq!(got.shape, tensor.shape);
            assert!(got.values.iter().zip(&tensor.values).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }

    #[test]
    fn the_entry_is_that_of_the_file_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.safetensors");
        let entry = write_synced(&path, |out| write_tensors(out, parts())).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(entry, FileEntry { bytes: bytes.len() as u64, sha256: sha256_hex(&bytes) });
        assert_eq!(sha256_hex(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!(write_synced(&path, |_| Ok(())).is_err(), "an existing file is not overwritten");
    }

    #[test]
    fn a_value_that_is_not_finite_is_an_error_that_names_its_tensor() {
        let mut tensors = tensors();
        tensors[1].values[3] = f32::NAN;
        let error = write_tensors(&mut Vec::new(), tensors.into_iter().map(Part::from).collect()).unwrap_err();
        assert!(error.to_string().contains("the tensor a is not finite"), "{error}");
    }

    #[test]
    fn a_truncated_file_is_refused_by_name() {
        let mut bytes = Vec::new();
        write_tensors(&mut bytes, parts()).unwrap();
        let error = read_tensors(&bytes[..bytes.len() - 1], Path::new("dir/m.safetensors")).unwrap_err();
        assert!(error.to_string().contains("dir/m.safetensors"), "{error}");
    }
}
