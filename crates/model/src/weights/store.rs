//! Tensors in files, under the names the files give them: safetensors and every container of `torch.save`.

use super::files::{MOST_TEXT, read_text, regular};
use burn::tensor::{bf16, f16};
use pytorch_reader::PytorchReader;
use safetensors::tensor::Metadata;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// A file of weights that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct SourceError {
    /// The file or directory.
    pub path: PathBuf,
    /// What is wrong.
    pub message: String,
    /// What to do about it, where there is something definite to say.
    pub help: Option<String>,
}

impl SourceError {
    pub(crate) fn new(path: &Path, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), message: message.into(), help: None }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// The kind of a file of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// One safetensors file.
    Safetensors,
    /// A file of `torch.save`: a zip archive, the older pickle stream or the tar before it.
    Pytorch,
    /// An index file and its shards, safetensors or PyTorch's.
    Sharded,
}

/// The type of a stored tensor's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DType {
    /// 16-bit float, 10 bits of fraction.
    F16,
    /// 16-bit float, 7 bits of fraction.
    Bf16,
    /// 32-bit float.
    F32,
    /// 64-bit float, rounded to 32 bits on reading.
    F64,
    /// Integers, booleans and smaller floats: no weights of a network.
    Other,
}

impl DType {
    fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
            Self::Other => 0,
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Other => "other",
        })
    }
}

/// Where a tensor's values are.
enum Place {
    /// Bytes of a safetensors file, from its beginning.
    Bytes {
        file: usize,
        begin: u64,
        length: usize,
    },
    Pytorch(Box<pytorch_reader::Tensor>),
}

/// A stored tensor.
pub(crate) struct Stored {
    pub dtype: DType,
    pub shape: Vec<usize>,
    place: Place,
}

/// Open files and the tensors in them, by name.
pub(crate) struct Store {
    pub container: Container,
    pub tensors: BTreeMap<String, Stored>,
    /// What safetensors files say of themselves.
    pub metadata: BTreeMap<String, String>,
    files: Vec<(PathBuf, Mutex<File>)>,
    /// Every file that was opened, index and shards.
    opened: Vec<PathBuf>,
    path: PathBuf,
}

impl Store {
    /// Opens a file, an index of shards, or a directory that holds one of these.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let file = if path.is_dir() { in_directory(path)? } else { path.to_owned() };
        let mut store = Self {
            container: Container::Safetensors,
            tensors: BTreeMap::new(),
            metadata: BTreeMap::new(),
            files: Vec::new(),
            opened: Vec::new(),
            path: file.clone(),
        };
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".index.json") {
            store.shards(&file)?;
            store.container = Container::Sharded;
        } else {
            store.container = store.add(&file)?;
        }
        if store.tensors.is_empty() {
            return Err(SourceError::new(&file, "holds no tensors"));
        }
        Ok(store)
    }

    /// The file that was opened: the index, where there are shards.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every file that was opened: the index and its shards, or the one file.
    pub fn opened(&self) -> impl Iterator<Item = &Path> {
        self.opened.iter().map(PathBuf::as_path)
    }

    /// A tensor's values as f32, in row-major order; all of them finite.
    pub fn read(&self, name: &str) -> Result<Vec<f32>, SourceError> {
        let Some(stored) = self.tensors.get(name) else {
            return Err(SourceError::new(&self.path, format!("holds no tensor {name}")));
        };
        if stored.dtype == DType::Other {
            return Err(SourceError::new(&self.path, format!("{name} holds no floats of 16, 32 or 64 bits")));
        }
        let (path, bytes) = match &stored.place {
            Place::Pytorch(tensor) => (&self.path, tensor.read()),
            Place::Bytes { file, begin, length } => {
                let (path, file) = &self.files[*file];
                let mut file = file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let mut bytes = vec![0; *length];
                let read = file.seek(SeekFrom::Start(*begin)).and_then(|_| file.read_exact(&mut bytes));
                (path, read.map(|()| bytes))
            }
        };
        let bytes = bytes.map_err(|error| SourceError::new(path, format!("cannot read {name}: {error}")))?;
        let expected = stored.shape.iter().try_fold(stored.dtype.bytes(), |product, side| product.checked_mul(*side));
        if expected != Some(bytes.len()) {
            return Err(SourceError::new(
                path,
                format!("{name} says shape {:?} of {} and holds {} bytes", stored.shape, stored.dtype, bytes.len()),
            ));
        }
        let values = floats(&bytes, stored.dtype);
        finite(path, name, &values)?;
        Ok(values)
    }

    fn add(&mut self, path: &Path) -> Result<Container, SourceError> {
        regular(path)?;
        self.opened.push(path.to_owned());
        let mut file = File::open(path).map_err(|error| SourceError::new(path, format!("cannot open: {error}")))?;
        let mut head = [0; 9];
        let count = read_up_to(&mut file, &mut head).map_err(|error| SourceError::new(path, format!("cannot read: {error}")))?;
        if count == 0 {
            return Err(SourceError::new(path, "is empty"));
        }
        // A safetensors file begins with the length of a header that begins with a brace; no container of PyTorch does.
        if count == 9 && head[8] == b'{' {
            self.add_safetensors(path, file)?;
            Ok(Container::Safetensors)
        } else {
            self.add_pytorch(path)?;
            Ok(Container::Pytorch)
        }
    }

    fn add_safetensors(&mut self, path: &Path, mut file: File) -> Result<(), SourceError> {
        let wrong = |message: String| SourceError::new(path, message);
        let broken = |error: std::io::Error| wrong(format!("cannot read: {error}"));
        let size = file.metadata().map_err(broken)?.len();
        file.seek(SeekFrom::Start(0)).map_err(broken)?;
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(broken)?;
        let length = u64::from_le_bytes(length);
        if length > MOST_TEXT {
            return Err(wrong(format!("says its header has {length} bytes, and safetensors allows {MOST_TEXT}")));
        }
        let start = length.checked_add(8).filter(|start| *start <= size);
        let Some(start) = start else {
            return Err(wrong(format!("is cut short: a header of {length} bytes in a file of {size}")));
        };
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(broken)?;
        // Reading the metadata checks that shapes, types and offsets agree and leave no gap.
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| wrong(format!("is no sound safetensors file: {error}")))?;
        let end = start.saturating_add(metadata.data_len() as u64);
        if end != size {
            return Err(wrong(format!("has {size} bytes where its header says {end}"))
                .help("the file is cut short or has grown; fetch it again"));
        }
        let index = self.files.len();
        self.metadata.extend(metadata.metadata().iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
        for (name, info) in metadata.tensors() {
            let (begin, end) = info.data_offsets;
            let place = Place::Bytes { file: index, begin: start + begin as u64, length: end - begin };
            self.insert(path, name, Stored { dtype: safetensors_type(info.dtype), shape: info.shape.clone(), place })?;
        }
        self.files.push((path.to_owned(), Mutex::new(file)));
        Ok(())
    }

    fn add_pytorch(&mut self, path: &Path) -> Result<(), SourceError> {
        let reader = PytorchReader::new(path).map_err(|error| {
            SourceError::new(path, format!("is neither safetensors nor a file of torch.save that can be read: {error}"))
        })?;
        for (name, tensor) in reader.into_tensors() {
            let stored = Stored {
                dtype: pytorch_type(tensor.dtype()),
                shape: tensor.shape().to_vec(),
                place: Place::Pytorch(Box::new(tensor)),
            };
            self.insert(path, name, stored)?;
        }
        Ok(())
    }

    fn shards(&mut self, index: &Path) -> Result<(), SourceError> {
        #[derive(serde::Deserialize)]
        struct Index {
            weight_map: BTreeMap<String, String>,
        }
        let text = read_text(index)?;
        self.opened.push(index.to_owned());
        let map = serde_json::from_str::<Index>(&text)
            .map_err(|error| SourceError::new(index, format!("is no index of shards: {error}")))?
            .weight_map;
        let mut files: Vec<&String> = map.values().collect();
        files.sort();
        files.dedup();
        for file in files {
            // A shard lies beside its index: a path that leads elsewhere is not followed.
            if Path::new(file).components().count() != 1 || file.starts_with('.') {
                return Err(SourceError::new(index, format!("names the shard {file:?}, which is no file beside it")));
            }
            self.add(&index.with_file_name(file))?;
        }
        let absent: Vec<&str> = map.keys().filter(|name| !self.tensors.contains_key(*name)).map(String::as_str).collect();
        if !absent.is_empty() {
            return Err(SourceError::new(index, format!("names tensors that its shards lack: {}", absent.join(", "))));
        }
        Ok(())
    }

    fn insert(&mut self, path: &Path, name: String, stored: Stored) -> Result<(), SourceError> {
        match self.tensors.insert(name.clone(), stored) {
            None => Ok(()),
            Some(_) => Err(SourceError::new(path, format!("holds {name}, as another shard does"))),
        }
    }
}

/// The one file of weights in a directory.
fn in_directory(path: &Path) -> Result<PathBuf, SourceError> {
    const USUAL: [&str; 4] =
        ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"];
    if let Some(file) = USUAL.iter().map(|name| path.join(name)).find(|file| file.is_file()) {
        return Ok(file);
    }
    let entries = std::fs::read_dir(path).map_err(|error| SourceError::new(path, format!("cannot list: {error}")))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|file| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            [".safetensors", ".pt", ".pth", ".bin", ".index.json"].iter().any(|end| name.ends_with(end))
        })
        .collect();
    files.sort();
    match files.as_slice() {
        [] => Err(SourceError::new(path, "holds no .safetensors, .pt, .pth or .bin file and no index of shards")),
        [file] => Ok(file.clone()),
        _ => {
            let names: Vec<_> = files.iter().map(|file| file.file_name().unwrap_or_default().to_string_lossy()).collect();
            Err(SourceError::new(path, format!("holds several files of weights: {}", names.join(", "))).help("name one of them"))
        }
    }
}

/// Refuses values that are no numbers of f32: a network with one of them computes NaN.
///
/// # Errors
/// The tensor and how many there are.
pub(crate) fn finite(path: &Path, name: &str, values: &[f32]) -> Result<(), SourceError> {
    match values.iter().filter(|value| !value.is_finite()).count() {
        0 => Ok(()),
        count => Err(SourceError::new(
            path,
            format!("{name} holds {count} values of {} that are NaN, infinite or beyond the range of f32", values.len()),
        )
        .help("the weights are of a training that diverged, or damaged; take another file")),
    }
}

fn read_up_to(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match file.read(&mut buffer[count..])? {
            0 => break,
            read => count += read,
        }
    }
    Ok(count)
}

fn safetensors_type(dtype: safetensors::Dtype) -> DType {
    match dtype {
        safetensors::Dtype::F16 => DType::F16,
        safetensors::Dtype::BF16 => DType::Bf16,
        safetensors::Dtype::F32 => DType::F32,
        safetensors::Dtype::F64 => DType::F64,
        _ => DType::Other,
    }
}

fn pytorch_type(dtype: pytorch_reader::DType) -> DType {
    match dtype {
        pytorch_reader::DType::F16 => DType::F16,
        pytorch_reader::DType::BF16 => DType::Bf16,
        pytorch_reader::DType::F32 => DType::F32,
        pytorch_reader::DType::F64 => DType::F64,
        _ => DType::Other,
    }
}

fn floats(bytes: &[u8], dtype: DType) -> Vec<f32> {
    fn each<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f32) -> Vec<f32> {
        bytes.as_chunks::<N>().0.iter().map(|chunk| value(*chunk)).collect()
    }
    match dtype {
        DType::F32 => each(bytes, f32::from_le_bytes),
        DType::F64 => each(bytes, |chunk| f64::from_le_bytes(chunk) as f32),
        DType::F16 => each(bytes, |chunk| f16::from_le_bytes(chunk).to_f32()),
        DType::Bf16 => each(bytes, |chunk| bf16::from_le_bytes(chunk).to_f32()),
        DType::Other => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_float_widens_exactly() {
        for value in [0.0f32, -1.5, 0.333_251_95, 65504.0] {
            assert_eq!(floats(&value.to_le_bytes(), DType::F32), [value]);
            assert_eq!(floats(&f64::from(value).to_le_bytes(), DType::F64), [value]);
            assert_eq!(floats(&f16::from_f32(value).to_le_bytes(), DType::F16), [value]);
        }
        for value in [0.0f32, -1.5, 3.0e38] {
            let half = bf16::from_f32(value);
            assert_eq!(floats(&half.to_le_bytes(), DType::Bf16), [half.to_f32()]);
        }
        assert_eq!(floats(&[0, 0, 0x80, 0x3f], DType::Bf16), [0.0, 1.0]);
    }
}
