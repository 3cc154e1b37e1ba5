//! Parquet shards as Hugging Face's `datasets` writes them: a column of image bytes and one of labels.

mod cache;
mod chunks;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ::parquet::basic::{Compression, Type};
use ::parquet::column::page::PageReader;
use ::parquet::column::reader::{ColumnReaderImpl, get_column_reader, get_typed_column_reader};
use ::parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use ::parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use ::parquet::file::serialized_reader::SerializedPageReader;
use rayon::prelude::*;
use serde_json::Value;

use super::Source;
use super::catalog::{by_number, is_number};
use super::shards::{Handles, expand};
use crate::decode::panic_message;
use crate::error::{DataError, printable};
use crate::imagenet;
use cache::{Cache, Page};
use chunks::Chunks;

/// Names that columns go by.
const IMAGE_COLUMNS: [&str; 3] = ["image", "img", "jpg"];
const LABEL_COLUMNS: [&str; 4] = ["label", "labels", "fine_label", "cls"];
/// Rows of small columns read at a time.
const ROWS: usize = 1 << 16;

/// Parquet files of images.
///
/// Labels and file names are read when the files are opened; images when they are asked for, a page at a time (about a megabyte
/// in files as they are usually written). Pages are kept up to [`Parquet::CACHE`] bytes, so that reading in order decodes each
/// page once; in random order each image costs the decompression of its page, and `pack` makes a faster file. Items keep the
/// order of the rows.
pub struct Parquet {
    handles: Handles,
    files: Vec<FileInfo>,
    groups: Vec<Group>,
    labels: Vec<u32>,
    classes: Vec<String>,
    /// File names as the rows give them, one after the other; empty where a row has none.
    names: Vec<u8>,
    name_ends: Vec<u64>,
    notices: Vec<String>,
    cache: Cache,
}

struct FileInfo {
    metadata: ParquetMetaData,
    len: u64,
    image: usize,
}

/// A row group.
struct Group {
    file: usize,
    /// Its number in the file.
    number: usize,
    /// First item.
    first: usize,
    rows: usize,
    /// First row of each page and the end, found when the first image of the group is read.
    pages: OnceLock<Result<Vec<usize>, String>>,
}

/// A label as the rows give it.
enum Given {
    Numbers(Vec<i64>),
    Names(Vec<String>),
}

/// What is read of one file when it is opened.
struct Opened {
    info: FileInfo,
    labels: Given,
    names: Vec<Option<Vec<u8>>>,
    classes: Option<Vec<String>>,
}

impl Parquet {
    /// Bytes of decoded pages kept in memory.
    pub const CACHE: usize = 64 << 20;

    /// Opens files: one, a folder of `.parquet` files (or one with such a folder `data` in it), or a pattern such as
    /// `train-*.parquet`. `split` keeps the files with that word in their names.
    ///
    /// The names of the classes are those that `datasets` stores in the file; ImageNet's 1000 names become WordNet ids, so that
    /// the class table is that of class folders. Without names the classes are the numbers.
    ///
    /// # Errors
    /// [`DataError::BadContainer`] naming the file, what is wrong with it or which columns it has; [`DataError::UnknownForm`] if
    /// there is no such file or several splits; [`DataError::NoImages`]; [`DataError::Io`].
    pub fn open(path: impl AsRef<Path>, split: Option<&str>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let paths = expand(path, "parquet", split)?;
        let handles = Handles::new(paths);
        let opened: Vec<Opened> = (0..handles.len())
            .into_par_iter()
            .map(|i| {
                let file = handles.get(i).map_err(|e| DataError::io(handles.path(i).display().to_string(), e))?;
                let len = file.metadata().map_err(|e| DataError::io(handles.path(i).display().to_string(), e))?.len();
                guarded(|| open_file(Chunks { file, len, pages: false })).map_err(|reason| bad(handles.path(i), reason))
            })
            .collect::<Result<_, _>>()?;
        Self::assemble(path, handles, opened)
    }

    fn assemble(path: &Path, handles: Handles, opened: Vec<Opened>) -> Result<Self, DataError> {
        let mut stored: Option<(usize, Vec<String>)> = None;
        for (i, file) in opened.iter().enumerate() {
            match (&file.classes, &stored) {
                (Some(classes), None) => stored = Some((i, classes.clone())),
                (Some(classes), Some((first, known))) if classes != known => {
                    let reason = format!("its class names differ from those of {}", handles.path(*first).display());
                    return Err(bad(handles.path(i), reason));
                }
                _ => {}
            }
        }
        let mut notices = Vec::new();
        let classes = match stored {
            Some((_, names)) => synsets(names, &mut notices),
            None => table(&opened, &mut notices),
        };
        let label_of: HashMap<&str, u32> = classes.iter().enumerate().map(|(i, class)| (class.as_str(), i as u32)).collect();
        let (mut files, mut groups, mut labels) = (Vec::new(), Vec::new(), Vec::new());
        let (mut names, mut name_ends) = (Vec::new(), Vec::new());
        for (i, file) in opened.into_iter().enumerate() {
            let mut first = labels.len();
            let mut add = |given: &str, label: Option<u32>| match label {
                Some(label) => {
                    labels.push(label);
                    Ok(())
                }
                None if given == "-1" => Err(bad(handles.path(i), "its labels are -1: a split without labels".to_owned())),
                None => Err(bad(handles.path(i), format!("the label {given} is not among its {} classes", classes.len()))),
            };
            match &file.labels {
                // Numbers are places in the table, unless the table was made of the numbers themselves.
                Given::Numbers(numbers) => {
                    for number in numbers {
                        let place = u32::try_from(*number).ok().filter(|&n| (n as usize) < classes.len());
                        add(&number.to_string(), place)?;
                    }
                }
                Given::Names(given) => {
                    for name in given {
                        add(name, label_of.get(name.as_str()).copied())?;
                    }
                }
            }
            for name in &file.names {
                names.extend_from_slice(name.as_deref().unwrap_or_default());
                name_ends.push(names.len() as u64);
            }
            for number in 0..file.info.metadata.num_row_groups() {
                let rows = file.info.metadata.row_group(number).num_rows() as usize;
                groups.push(Group { file: i, number, first, rows, pages: OnceLock::new() });
                first += rows;
            }
            files.push(file.info);
        }
        drop(label_of);
        groups.retain(|group| group.rows > 0);
        if labels.is_empty() || u32::try_from(labels.len()).is_err() {
            return Err(DataError::NoImages { path: path.to_owned(), detail: format!(" in {} rows", labels.len()) });
        }
        Ok(Self { handles, files, groups, labels, classes, names, name_ends, notices, cache: Cache::new(Self::CACHE) })
    }

    /// The file name that a row gives; empty if it has none.
    fn file_name(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.name_ends[index - 1] as usize };
        &self.names[start..self.name_ends[index] as usize]
    }

    fn pages(&self, group: &Group) -> Result<Box<dyn PageReader>, String> {
        let info = &self.files[group.file];
        let file = self.handles.get(group.file).map_err(|e| e.to_string())?;
        page_reader(Arc::new(Chunks { file, len: info.len, pages: true }), &info.metadata, group.number, info.image)
    }

    /// First row of each page of a group, and the end.
    fn page_starts(&self, group: &Group) -> Result<Vec<usize>, String> {
        let mut pages = self.pages(group)?;
        let mut starts = vec![0];
        let mut row = 0;
        while let Some(page) = pages.peek_next_page().map_err(|e| e.to_string())? {
            if !page.is_dict {
                row += page.num_rows.or(page.num_levels).ok_or("a page without a number of rows")?;
                starts.push(row);
            }
            pages.skip_next_page().map_err(|e| e.to_string())?;
        }
        if row != group.rows {
            return Err(format!("its pages have {row} rows, where {} are expected", group.rows));
        }
        // Pages without rows are none.
        starts.dedup();
        Ok(starts)
    }

    fn load(&self, group: &Group, from: usize, to: usize) -> Result<Page, String> {
        let info = &self.files[group.file];
        let column = info.metadata.row_group(group.number).column(info.image).column_descr_ptr();
        let max_level = column.max_def_level();
        let mut reader: ColumnReaderImpl<ByteArrayType> = get_typed_column_reader(get_column_reader(column, self.pages(group)?));
        let skipped = reader.skip_records(from).map_err(|e| e.to_string())?;
        if skipped != from {
            return Err(format!("it ends after {skipped} rows"));
        }
        let images = read_rows(&mut reader, max_level, to - from)?;
        Ok(Page::new(from, images))
    }

    fn image(&self, index: usize) -> Result<ByteArray, String> {
        let number = self.groups.partition_point(|group| group.first <= index) - 1;
        let group = &self.groups[number];
        let row = index - group.first;
        let starts = group.pages.get_or_init(|| guarded(|| self.page_starts(group))).as_ref().map_err(Clone::clone)?;
        let page = starts.partition_point(|&start| start <= row) - 1;
        let (from, to) = (starts[page], starts[page + 1]);
        let page = self.cache.get((number, page), || guarded(|| self.load(group, from, to)))?;
        page.image(row)
            .ok_or_else(|| "the row has no image bytes (perhaps only a path). Write the images into the file".to_owned())
    }
}

fn bad(path: &Path, reason: String) -> DataError {
    DataError::BadContainer { path: path.to_owned(), reason }
}

/// Runs code of the parquet crate on data that may be damaged: a panic in it is one bad file.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(format!("damaged: the reader failed: {}", panic_message(&*panic))))
}

fn page_reader(
    chunks: Arc<Chunks>,
    metadata: &ParquetMetaData,
    group: usize,
    column: usize,
) -> Result<Box<dyn PageReader>, String> {
    let group = metadata.row_group(group);
    let rows = group.num_rows() as usize;
    Ok(Box::new(SerializedPageReader::new(chunks, group.column(column), rows, None).map_err(|e| e.to_string())?))
}

/// Reads `count` rows of a column; none where a row has no value.
fn read_rows<T: DataType>(reader: &mut ColumnReaderImpl<T>, max_level: i16, count: usize) -> Result<Vec<Option<T::T>>, String> {
    let mut rows = Vec::new();
    while rows.len() < count {
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        let wanted = (count - rows.len()).min(ROWS);
        let (read, ..) =
            reader.read_records(wanted, (max_level > 0).then_some(&mut levels), None, &mut values).map_err(|e| e.to_string())?;
        if read == 0 {
            return Err(format!("a column ends after {} of {count} rows", rows.len()));
        }
        let mut values = values.into_iter();
        if max_level == 0 {
            rows.extend(values.map(Some));
        } else {
            rows.extend(levels.into_iter().map(|level| if level == max_level { values.next() } else { None }));
        }
    }
    Ok(rows)
}

fn read_column<T: DataType>(
    chunks: &Arc<Chunks>,
    metadata: &ParquetMetaData,
    column: usize,
) -> Result<Vec<Option<T::T>>, String> {
    let mut rows = Vec::new();
    for (i, group) in metadata.row_groups().iter().enumerate() {
        let descriptor = group.column(column).column_descr_ptr();
        let max_level = descriptor.max_def_level();
        let pages = page_reader(Arc::clone(chunks), metadata, i, column)?;
        let mut reader = get_typed_column_reader::<T>(get_column_reader(descriptor, pages));
        rows.extend(read_rows(&mut reader, max_level, group.num_rows() as usize)?);
    }
    Ok(rows)
}

fn open_file(chunks: Chunks) -> Result<Opened, String> {
    let len = chunks.len;
    if len < 12 {
        return Err(format!("{len} bytes are too few for a parquet file: it is cut"));
    }
    let metadata = ParquetMetaDataReader::new()
        .parse_and_finish(&chunks)
        .map_err(|e| format!("no readable parquet file: {e}. If it is cut, copy or download it again"))?;
    let schema = metadata.file_metadata().schema_descr();
    let mut rows = 0u64;
    for group in metadata.row_groups() {
        rows = rows.saturating_add(u64::try_from(group.num_rows()).map_err(|_| "a negative number of rows")?);
    }
    // Every row has at least one byte of image somewhere.
    if rows > u64::from(u32::MAX) {
        return Err(format!("{rows} rows are more than can be read"));
    }
    let columns: Vec<String> = schema.columns().iter().map(|column| column.path().string()).collect();
    let find = |names: &[&str], suffixes: &[&str]| {
        let wanted = names.iter().flat_map(|name| suffixes.iter().map(move |suffix| format!("{name}{suffix}")));
        wanted.filter_map(|name| columns.iter().position(|column| *column == name)).next()
    };
    let missing = |what: &str, names: &[&str]| {
        format!("no column of {what} ({}). It has the columns {}", names.join(", "), columns.join(", "))
    };
    let image =
        find(&IMAGE_COLUMNS, &[".bytes", ""]).ok_or_else(|| missing("image bytes", &["image.bytes", "image", "img", "jpg"]))?;
    let label = find(&LABEL_COLUMNS, &[""]).ok_or_else(|| missing("labels", &LABEL_COLUMNS))?;
    for column in [image, label] {
        if schema.column(column).max_rep_level() > 0 {
            return Err(format!("the column {} holds lists, where one value a row is expected", columns[column]));
        }
    }
    if schema.column(image).physical_type() != Type::BYTE_ARRAY {
        return Err(format!(
            "the column {} holds no bytes of images, but {}",
            columns[image],
            schema.column(image).physical_type()
        ));
    }
    let path = find(&IMAGE_COLUMNS, &[".path"]).filter(|&column| {
        schema.column(column).physical_type() == Type::BYTE_ARRAY && schema.column(column).max_rep_level() == 0
    });
    for group in metadata.row_groups() {
        for column in [Some(image), Some(label), path].into_iter().flatten() {
            let codec = match group.column(column).compression() {
                Compression::GZIP(_) => "gzip",
                Compression::BROTLI(_) => "brotli",
                Compression::LZO => "lzo",
                _ => continue,
            };
            return Err(format!(
                "its column {} is compressed with {codec}, which is not read here. Write the file again uncompressed, or with \
                 snappy, zstd or lz4, as in pyarrow.parquet.write_table(table, file, compression=\"snappy\")",
                columns[column]
            ));
        }
    }
    let chunks = Arc::new(Chunks { pages: true, ..chunks });
    let unlabelled = |row: usize| format!("row {row} has no label");
    fn all<T>(rows: Vec<Option<T>>, missing: impl Fn(usize) -> String) -> Result<Vec<T>, String> {
        rows.into_iter().enumerate().map(|(i, value)| value.ok_or_else(|| missing(i))).collect()
    }
    let labels = match schema.column(label).physical_type() {
        Type::INT64 => Given::Numbers(all(read_column::<Int64Type>(&chunks, &metadata, label)?, unlabelled)?),
        Type::INT32 => {
            let numbers = all(read_column::<Int32Type>(&chunks, &metadata, label)?, unlabelled)?;
            Given::Numbers(numbers.into_iter().map(i64::from).collect())
        }
        Type::BYTE_ARRAY => {
            let names = all(read_column::<ByteArrayType>(&chunks, &metadata, label)?, unlabelled)?;
            let text =
                |name: ByteArray| String::from_utf8(name.data().to_vec()).map_err(|_| "a label that is not UTF-8".to_owned());
            Given::Names(names.into_iter().map(text).collect::<Result<_, _>>()?)
        }
        other => return Err(format!("the column {} holds {other}, where numbers or names are expected", columns[label])),
    };
    let names = match path {
        Some(column) => {
            let rows = read_column::<ByteArrayType>(&chunks, &metadata, column)?;
            rows.into_iter().map(|row| row.map(|name| name.data().to_vec())).collect()
        }
        _ => vec![None; rows as usize],
    };
    let count = match &labels {
        Given::Numbers(numbers) => numbers.len(),
        Given::Names(names) => names.len(),
    };
    if count as u64 != rows || names.len() as u64 != rows {
        return Err(format!("{count} labels for {rows} rows"));
    }
    let classes = class_names(&metadata, &columns[label]);
    Ok(Opened { info: FileInfo { metadata, len, image }, labels, names, classes })
}

/// Class names as `datasets` stores them beside the schema.
fn class_names(metadata: &ParquetMetaData, column: &str) -> Option<Vec<String>> {
    let stored = metadata.file_metadata().key_value_metadata()?.iter().find(|pair| pair.key == "huggingface")?;
    let value: Value = serde_json::from_str(stored.value.as_deref()?).ok()?;
    let names = value.get("info")?.get("features")?.get(column)?.get("names")?.as_array()?;
    names.iter().map(|name| name.as_str().map(str::to_owned)).collect()
}

/// ImageNet's 1000 names, which `datasets` has in the order of labels, become WordNet ids; other names stay.
fn synsets(names: Vec<String>, notices: &mut Vec<String>) -> Vec<String> {
    fn first(name: &str) -> &str {
        name.split(',').next().unwrap_or_default().trim()
    }
    let known =
        |(label, name): (usize, &String)| imagenet::name(label).is_some_and(|n| first(n).eq_ignore_ascii_case(first(name)));
    // A few names are written differently; the order decides, and another order would agree in hardly any.
    let agree = names.iter().enumerate().filter(|&(label, name)| known((label, name))).count();
    if names.len() == imagenet::CLASSES && agree >= 950 {
        notices.push("the file's class names are ImageNet's; classes are called by their WordNet ids".to_owned());
        return imagenet::wnids().iter().map(|&wnid| wnid.to_owned()).collect();
    }
    names
}

/// A class table made of the labels themselves.
fn table(opened: &[Opened], notices: &mut Vec<String>) -> Vec<String> {
    let names: BTreeSet<&str> = opened
        .iter()
        .filter_map(|file| if let Given::Names(names) = &file.labels { Some(names) } else { None })
        .flatten()
        .map(String::as_str)
        .collect();
    if !names.is_empty() {
        let mut names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        if names.iter().all(|name| is_number(name)) {
            names.sort_by(|a, b| by_number(a, b));
        }
        return names;
    }
    let highest = opened
        .iter()
        .filter_map(|file| if let Given::Numbers(numbers) = &file.labels { numbers.iter().copied().max() } else { None })
        .max();
    notices.push("labels are numbers without names, and classes are called by them".to_owned());
    // A damaged file must not ask for a table of billions; the label is then refused as none of the classes.
    let count = highest.and_then(|n| usize::try_from(n).ok()).map_or(0, |n| n + 1).min(1_000_000);
    (0..count).map(|n| n.to_string()).collect()
}

impl Source for Parquet {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: usize) -> usize {
        self.labels[index] as usize
    }

    fn name(&self, index: usize) -> String {
        let group = &self.groups[self.groups.partition_point(|group| group.first <= index) - 1];
        let before: usize = self.groups.iter().filter(|g| g.file == group.file && g.number < group.number).map(|g| g.rows).sum();
        let row = before + index - group.first;
        let name = self.file_name(index);
        let shown = if name.is_empty() { String::new() } else { format!(" ({})", String::from_utf8_lossy(name)) };
        printable(&format!("{}:row {row}{shown}", self.handles.path(group.file).display())).into_owned()
    }

    fn relative_path(&self, index: usize) -> Vec<u8> {
        let class = self.classes[self.label(index)].replace('/', "_");
        let name = super::catalog::file_name(self.file_name(index));
        if name.is_empty() {
            return format!("{class}/{index:08}").into_bytes();
        }
        [class.as_bytes(), b"/", name].concat()
    }

    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, DataError> {
        let mut bytes = Vec::new();
        self.read_into(index, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }

    fn read_into<'a>(&'a self, index: usize, buffer: &'a mut Vec<u8>) -> Result<&'a [u8], DataError> {
        assert!(index < self.labels.len(), "item {index} of {}", self.labels.len());
        let image = self.image(index).map_err(|reason| DataError::bad_image(&self.name(index), reason))?;
        buffer.clear();
        buffer.extend_from_slice(image.data());
        Ok(buffer)
    }

    fn files(&self) -> Vec<PathBuf> {
        self.handles.paths().to_vec()
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }
}
