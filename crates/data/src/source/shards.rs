//! Datasets in many files: which files a path stands for, and keeping few of them open.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::catalog::SPLITS;
use crate::error::DataError;

/// Most files that a path may stand for: a mistyped range such as `{0..1000000000}` is found before memory is taken for it.
const MAX_SHARDS: usize = 1 << 20;
/// Files kept open at once; systems allow 1,024 by default.
const MAX_OPEN: usize = 256;

/// Whether a path has braces or stars.
pub(super) fn is_pattern(path: &Path) -> bool {
    let text = path.to_string_lossy();
    text.contains("::") || text.contains('*') || text.contains('?') || (text.contains('{') && text.contains('}'))
}

/// Files that a path stands for, sorted by name.
///
/// A path is a file; a folder, for the files in it that have the extension; or a pattern: `{000..146}` counts with the zeros
/// shown, `{a,b}` lists, `*` and `?` stand for parts of a file's name, and `::` joins patterns. Where a folder holds several
/// splits, told by words such as `train` in the files' names, `split` must name one.
///
/// # Errors
/// [`DataError::UnknownForm`] if there is no such file, or several splits and none named.
pub(super) fn expand(path: &Path, extension: &str, split: Option<&str>) -> Result<Vec<PathBuf>, DataError> {
    let unknown = |reason: String| DataError::UnknownForm { path: path.to_owned(), reason };
    let mut files = Vec::new();
    let mut listed = false;
    if path.is_dir() {
        listed = true;
        files = list(path, |name| has_extension(name, extension))?;
        // Hugging Face's repositories keep the files of a dataset in a folder of this name.
        if files.is_empty() && path.join("data").is_dir() {
            files = list(&path.join("data"), |name| has_extension(name, extension))?;
        }
    } else if is_pattern(path) {
        let text = path.to_str().ok_or_else(|| unknown("a pattern that is not UTF-8".to_owned()))?;
        let mut patterns = Vec::new();
        for part in text.split("::") {
            braces(part, &mut patterns).map_err(unknown)?;
        }
        for pattern in patterns {
            let pattern = PathBuf::from(pattern);
            let name = pattern.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if name.contains('*') || name.contains('?') {
                listed = true;
                let folder = pattern.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                files.extend(list(folder, |file| matches(name.as_bytes(), file.as_bytes()))?);
            } else if pattern.is_file() {
                files.push(pattern);
            } else {
                return Err(unknown(format!("there is no file {}. Check the range", pattern.display())));
            }
        }
    } else {
        files.push(path.to_owned());
    }
    if listed && !files.is_empty() {
        files = of_split(path, files, split)?;
    }
    if files.is_empty() {
        return Err(unknown(format!("no .{extension} files found")));
    }
    Ok(files)
}

/// Keeps the files of one split.
fn of_split(path: &Path, files: Vec<PathBuf>, split: Option<&str>) -> Result<Vec<PathBuf>, DataError> {
    let words = |file: &PathBuf| -> Vec<String> {
        let name = file.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        name.split(|c: char| !c.is_ascii_alphanumeric()).map(str::to_owned).collect()
    };
    let unknown = |reason: String| DataError::UnknownForm { path: path.to_owned(), reason };
    let found: BTreeSet<String> = files.iter().flat_map(words).filter(|word| SPLITS.contains(&word.as_str())).collect();
    match split {
        Some(split) => {
            let kept: Vec<PathBuf> = files.into_iter().filter(|file| words(file).contains(&split.to_ascii_lowercase())).collect();
            if kept.is_empty() {
                let found: Vec<String> = found.into_iter().collect();
                let there = match found.len() {
                    0 => "the files' names tell of no split, such as train or val. Leave the split out".to_owned(),
                    _ => format!("there are: {}", found.join(", ")),
                };
                return Err(unknown(format!("no file of the split {split:?}; {there}")));
            }
            Ok(kept)
        }
        None if found.len() > 1 => {
            let found: Vec<String> = found.into_iter().collect();
            Err(unknown(format!(
                "the files of several splits: {}. Name the split, or the files, as in train-*",
                found.join(", ")
            )))
        }
        None => Ok(files),
    }
}

fn has_extension(name: &str, extension: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, e)| e.eq_ignore_ascii_case(extension))
}

fn list(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, DataError> {
    let error = |e| DataError::io(folder.display().to_string(), e);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(error)? {
        let entry = entry.map_err(error)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with('.') && wanted(&name) && !entry.path().is_dir() {
            files.push(entry.path());
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Writes out braces.
fn braces(pattern: &str, out: &mut Vec<String>) -> Result<(), String> {
    let Some(open) = pattern.find('{') else {
        if out.len() >= MAX_SHARDS {
            return Err(format!("more than {MAX_SHARDS} files. Check the range"));
        }
        out.push(pattern.to_owned());
        return Ok(());
    };
    let close = open + pattern[open..].find('}').ok_or("a brace without its end")?;
    let (before, inner, after) = (&pattern[..open], &pattern[open + 1..close], &pattern[close + 1..]);
    if let Some((from, to)) = inner.split_once("..") {
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{{{inner}}} is not a range of numbers"));
        let (first, last) = (number(from)?, number(to)?);
        if first > last || last - first >= MAX_SHARDS as u64 {
            return Err(format!("{{{inner}}} is not a range from a lower to a higher number, of at most {MAX_SHARDS}"));
        }
        let width = if from.starts_with('0') { from.len() } else { 0 };
        for number in first..=last {
            braces(&format!("{before}{number:0width$}{after}"), out)?;
        }
    } else {
        for word in inner.split(',') {
            braces(&format!("{before}{word}{after}"), out)?;
        }
    }
    Ok(())
}

/// Whether a name fits a pattern of stars and question marks.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p, n));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == b'?' || pattern[p] == name[n]) {
            p += 1;
            n += 1;
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            p = at + 1;
            n = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

/// Files read in place by many threads, few of them open at a time.
pub(super) struct Handles {
    paths: Vec<PathBuf>,
    files: Vec<Mutex<Option<Arc<File>>>>,
    /// Those open, in the order of opening.
    open: Mutex<VecDeque<usize>>,
}

impl Handles {
    pub(super) fn new(paths: Vec<PathBuf>) -> Self {
        let files = paths.iter().map(|_| Mutex::new(None)).collect();
        Self { paths, files, open: Mutex::new(VecDeque::new()) }
    }

    pub(super) fn len(&self) -> usize {
        self.paths.len()
    }

    pub(super) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    pub(super) fn path(&self, index: usize) -> &Path {
        &self.paths[index]
    }

    pub(super) fn get(&self, index: usize) -> io::Result<Arc<File>> {
        let mut slot = self.files[index].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*slot {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(open_regular(&self.paths[index])?);
        *slot = Some(Arc::clone(&file));
        drop(slot);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.push_back(index);
        let evicted = if open.len() > MAX_OPEN { open.pop_front() } else { None };
        drop(open);
        if let Some(evicted) = evicted {
            *self.files[evicted].lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        Ok(file)
    }
}

/// Opens a file that can be read in place. Opening a pipe would wait for a writer.
pub(super) fn open_regular(path: &Path) -> io::Result<File> {
    let file_type = fs::metadata(path)?.file_type();
    if file_type.is_fifo() || !file_type.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    File::open(path)
}

/// Largest file of labels or class names, in bytes.
const MAX_TEXT: u64 = 1 << 30;

/// Reads a whole file of labels or class names. Pipes, which could have no writer, and devices, which could have no end, are
/// refused.
pub(crate) fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let len = file.metadata()?.len();
    if len > MAX_TEXT {
        return Err(io::Error::other(format!("{len} bytes are too many for a list of labels or names")));
    }
    let mut bytes = Vec::with_capacity(len as usize);
    file.take(MAX_TEXT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(pattern: &str) -> Result<Vec<String>, String> {
        let mut out = Vec::new();
        braces(pattern, &mut out).map(|()| out)
    }

    #[test]
    fn ranges_keep_their_zeros() {
        assert_eq!(expanded("a-{008..010}.tar").unwrap(), ["a-008.tar", "a-009.tar", "a-010.tar"]);
        assert_eq!(expanded("a-{8..10}.tar").unwrap(), ["a-8.tar", "a-9.tar", "a-10.tar"]);
        assert_eq!(expanded("{x,y}-{0..1}").unwrap(), ["x-0", "x-1", "y-0", "y-1"]);
        for wrong in ["{5..1}", "{a..b}", "{0..99999999999}", "{0..2000}{0..2000}", "x{0..1"] {
            assert!(expanded(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn stars_match_parts_of_names() {
        for (pattern, name, fits) in [
            ("train-*.tar", "train-01.tar", true),
            ("*", "", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*-0*.tar", "a-b-01.tar", true),
            ("*.tar", "x.tar.gz", false),
            ("**a*", "bab", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn files_stay_readable_beyond_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = (0..MAX_OPEN + 50).map(|i| dir.path().join(i.to_string())).collect();
        paths.iter().enumerate().for_each(|(i, path)| fs::write(path, i.to_string()).unwrap());
        let handles = Handles::new(paths);
        for _ in 0..2 {
            for i in 0..MAX_OPEN + 50 {
                let mut text = String::new();
                io::Read::read_to_string(&mut &*handles.get(i).unwrap(), &mut text).unwrap();
                assert!(text == i.to_string() || text.is_empty());
            }
        }
        assert!(handles.open.lock().unwrap().len() <= MAX_OPEN);
    }

    #[test]
    fn splits_must_be_named() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "validation-00000-of-00001.parquet", "x.txt"]
        {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let message = expand(dir.path(), "parquet", None).unwrap_err().to_string();
        assert!(message.contains("several splits: train, validation"), "{message}");
        assert_eq!(expand(dir.path(), "parquet", Some("train")).unwrap().len(), 2);
        assert_eq!(expand(&dir.path().join("valid*"), "parquet", None).unwrap().len(), 1);
        let message = expand(dir.path(), "parquet", Some("test")).unwrap_err().to_string();
        assert!(message.contains(r#"no file of the split "test""#), "{message}");
        let message = expand(&dir.path().join("train-0000{0..3}-of-00002.parquet"), "parquet", None).unwrap_err().to_string();
        assert!(message.contains("train-00002-of-00002.parquet"), "{message}");
    }
}
