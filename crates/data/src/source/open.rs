//! Finding out in which form a dataset comes.

use std::borrow::Cow;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::Source;
use super::catalog::{Kind, file_name, kind};
use super::folder::Folder;
use super::labels::Labels;
use super::packed::{Packed, is_packed};
use super::parquet::Parquet;
use super::shards::{expand, is_pattern, open_regular, read_regular};
use super::tar::{self, Tar};
use super::webdataset::{self, WebDataset};
use crate::error::{DataError, printable};
use crate::imagenet;

/// The forms in which a dataset can come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Whatever the content shows.
    #[default]
    Auto,
    /// A folder of class folders, or a flat folder with labels.
    Folder,
    /// A tar of class folders, of class tars, or a flat one with labels.
    Tar,
    /// WebDataset shards.
    WebDataset,
    /// Parquet files of images and labels.
    Parquet,
    /// A packed file.
    Packed,
}

impl Form {
    /// As configuration files write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Folder => "folder",
            Self::Tar => "tar",
            Self::WebDataset => "webdataset",
            Self::Parquet => "parquet",
            Self::Packed => "packed",
        }
    }
}

/// How to open a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// The form, if it is not to be found out.
    pub form: Form,
    /// A file of labels, for images without class folders; see [`Labels::read`]. ILSVRC2012's validation images need none.
    pub labels: Option<PathBuf>,
    /// A file with a class name a line, for WebDataset shards whose labels are numbers.
    pub class_names: Option<PathBuf>,
    /// Split to take where a folder holds the shards of several.
    pub split: Option<String>,
}

/// Opens a dataset in any form: a folder, a tar as ImageNet's are downloaded, shards, parquet files, a packed file.
///
/// The form is found by content, and told in the notices, with what the class list and the number of images show: whether they
/// are ImageNet's.
///
/// # Errors
/// [`DataError::UnknownForm`] if the path is no dataset, and the errors of the form's own `open`: [`Folder::open`],
/// [`Tar::open`], [`WebDataset::open`], [`Parquet::open`], [`Packed::open`], [`Labels::read`].
pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Box<dyn Source>, DataError> {
    let path = path.as_ref();
    let form = match options.form {
        Form::Auto => detect(path, options)?,
        form => form,
    };
    let labels = options.labels.as_deref().map(Labels::read).transpose()?;
    let split = options.split.as_deref();
    let unused = |given: bool, what: &str| {
        let reason = format!("{what} given for a dataset in the form {:?}, which has no use for it", form.name());
        if given { Err(DataError::UnknownForm { path: path.to_owned(), reason }) } else { Ok(()) }
    };
    if !matches!(form, Form::Folder | Form::Tar) {
        unused(labels.is_some(), "a file of labels")?;
    }
    if form == Form::Folder
        && let Some(split) = split
    {
        let below = path.join(split);
        let instead = if below.is_dir() {
            format!("Name the folder {} instead", below.display())
        } else {
            "Leave the split out".to_owned()
        };
        let reason = format!(
            "the split {split:?} was asked for, but this is a folder of images, not of shards named after splits. {instead}"
        );
        return Err(DataError::UnknownForm { path: path.to_owned(), reason });
    }
    if form != Form::WebDataset {
        unused(options.class_names.is_some(), "a file of class names")?;
    }
    let (inner, what): (Box<dyn Source>, &str) = match form {
        Form::Auto | Form::Folder => match labels.or_else(|| known_labels(folder_images(path))) {
            Some(labels) => (Box::new(Folder::open_flat(path, &labels)?), "a folder of images with labels beside it"),
            None => (Box::new(Folder::open(path)?), "a folder of class folders"),
        },
        Form::Tar => {
            let known = || match Tar::open(path) {
                Err(DataError::FlatFolder { .. }) => Ok(known_labels(tar_images(path)?)),
                _ => Ok(None),
            };
            match labels.map_or_else(known, |labels| Ok(Some(labels)))? {
                Some(labels) => (Box::new(Tar::open_flat(path, &labels)?), "a tar of images with labels beside it"),
                None => (Box::new(Tar::open(path)?), "a tar of classes"),
            }
        }
        Form::WebDataset => {
            let classes = options.class_names.as_deref().map(class_names).transpose()?;
            (Box::new(WebDataset::open(path, classes, split)?), "WebDataset shards")
        }
        Form::Parquet => (Box::new(Parquet::open(path, split)?), "parquet files"),
        Form::Packed => {
            let packed = Packed::open(path)?;
            packed.read_ahead();
            (Box::new(packed), "a packed file")
        }
    };
    let mut notices = Vec::new();
    if options.form == Form::Auto {
        notices.push(printable(&format!("{} is {what}", path.display())).into_owned());
    }
    notices.extend(imagenet::notices(inner.classes(), inner.len()));
    notices.extend(inner.notices().iter().cloned());
    Ok(Box::new(Opened { inner, notices }))
}

fn detect(path: &Path, options: &OpenOptions) -> Result<Form, DataError> {
    let unknown = |reason: String| DataError::UnknownForm { path: path.to_owned(), reason };
    let io_error = |e| DataError::io(path.display().to_string(), e);
    if is_pattern(path) && !path.exists() {
        let text = path.to_string_lossy().to_ascii_lowercase();
        return match () {
            () if text.ends_with(".parquet") => Ok(Form::Parquet),
            () if text.ends_with(".tar") => Ok(Form::WebDataset),
            () => Err(unknown("a pattern of files that end neither in .tar nor in .parquet".to_owned())),
        };
    }
    if fs::metadata(path).map_err(io_error)?.is_dir() {
        if options.labels.is_some() {
            return Ok(Form::Folder);
        }
        let has = |extension: &str| match expand(path, extension, options.split.as_deref()) {
            Ok(files) => Ok(files.into_iter().next()),
            Err(DataError::UnknownForm { reason, .. }) if reason.starts_with("no .") => Ok(None),
            Err(error) => Err(error),
        };
        if has("parquet")?.is_some() {
            return Ok(Form::Parquet);
        }
        if let Some(first) = has("tar")? {
            let (.., members) = tar::open(&first)?;
            if webdataset::looks_like(&members) {
                return Ok(Form::WebDataset);
            }
            if !has_folders(path) && folder_images(path).is_empty() {
                return Err(unknown(format!(
                    "a folder of tar files that are no WebDataset shards: {} has no .cls or .json beside its images. Name one tar \
                     file, or unpack them into class folders",
                    first.display()
                )));
            }
        }
        return Ok(Form::Folder);
    }
    let file = open_regular(path).map_err(io_error)?;
    let mut start = [0; 8];
    let read = file.read_at(&mut start, 0).map_err(io_error)?;
    if is_packed(&start[..read]) {
        return Ok(Form::Packed);
    }
    if start.starts_with(b"PAR1") {
        return Ok(Form::Parquet);
    }
    // What is no tar either is told by the tar's own error, unless the name says something else.
    let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    if extension == "parquet" || extension == "pack" {
        return Err(unknown(format!("a name that ends in .{extension}, but other content: it is damaged, or no such file")));
    }
    let (.., members) = tar::open(path)?;
    Ok(if webdataset::looks_like(&members) { Form::WebDataset } else { Form::Tar })
}

/// Labels known from the names alone: ILSVRC2012's validation images.
fn known_labels(images: Vec<String>) -> Option<Labels> {
    let known = !images.is_empty() && images.iter().all(|name| imagenet::val_index(name).is_some());
    known.then(Labels::ilsvrc2012_val)
}

/// Names of the images that lie directly in a folder; none where there are folders beside them, which may be classes.
fn folder_images(path: &Path) -> Vec<String> {
    if has_folders(path) {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| kind(name.as_bytes()) == Kind::Image).collect()
}

fn has_folders(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|entries| entries.flatten().any(|entry| entry.path().is_dir()))
}

fn tar_images(path: &Path) -> Result<Vec<String>, DataError> {
    let (.., members) = tar::open(path)?;
    let images = members.files.iter().filter(|member| kind(file_name(&member.path)) == Kind::Image);
    Ok(images.map(|member| String::from_utf8_lossy(file_name(&member.path)).into_owned()).collect())
}

/// Reads a class name a line.
fn class_names(path: &Path) -> Result<Vec<String>, DataError> {
    let bytes = read_regular(path).map_err(|e| DataError::io(path.display().to_string(), e))?;
    let text = String::from_utf8(bytes).map_err(|e| DataError::BadLabels {
        path: path.to_owned(),
        reason: format!("not a text file: byte {} is not UTF-8. Give a class name a line", e.utf8_error().valid_up_to()),
    })?;
    let names: Vec<String> = text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect();
    if names.is_empty() {
        return Err(DataError::BadLabels { path: path.to_owned(), reason: "no class names. Give one a line".to_owned() });
    }
    Ok(names)
}

/// A source with what was found out about it.
struct Opened {
    inner: Box<dyn Source>,
    notices: Vec<String>,
}

impl Source for Opened {
    fn len(&self) -> usize {
        self.inner.len()
    }

    fn classes(&self) -> &[String] {
        self.inner.classes()
    }

    fn label(&self, index: usize) -> usize {
        self.inner.label(index)
    }

    fn name(&self, index: usize) -> String {
        self.inner.name(index)
    }

    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, DataError> {
        self.inner.read(index)
    }

    fn read_into<'a>(&'a self, index: usize, buffer: &'a mut Vec<u8>) -> Result<&'a [u8], DataError> {
        self.inner.read_into(index, buffer)
    }

    fn relative_path(&self, index: usize) -> Vec<u8> {
        self.inner.relative_path(index)
    }

    fn size(&self, index: usize) -> Option<u64> {
        self.inner.size(index)
    }

    fn files(&self) -> Vec<PathBuf> {
        self.inner.files()
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }
}
