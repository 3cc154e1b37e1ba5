//! Files that may be read and files that may be replaced: regular ones.

use super::store::SourceError;
use std::fs::FileType;
use std::io::Read;
use std::path::Path;

/// The most bytes of a description that is read whole: a safetensors header (the bound of the safetensors library), an index, a
/// `config.json`.
pub(crate) const MOST_TEXT: u64 = 100_000_000;

/// Refuses what is no regular file, before it is opened: opening a pipe waits for a writer, and some devices never end.
///
/// # Errors
/// What it is instead, or why nothing is known of it.
pub(crate) fn regular(path: &Path) -> Result<(), SourceError> {
    let metadata = std::fs::metadata(path).map_err(|error| SourceError::new(path, format!("cannot open: {error}")))?;
    match metadata.is_file() {
        true => Ok(()),
        false => Err(SourceError::new(path, format!("is {}, not a regular file", kind(metadata.file_type())))
            .help("copy its contents into a file, and name that")),
    }
}

/// A text of at most [`MOST_TEXT`] bytes from a regular file.
///
/// # Errors
/// Where it is no regular file, too long, no UTF-8, or cannot be read.
pub(crate) fn read_text(path: &Path) -> Result<String, SourceError> {
    regular(path)?;
    let broken = |error: std::io::Error| SourceError::new(path, format!("cannot read: {error}"));
    let file = std::fs::File::open(path).map_err(broken)?;
    let size = file.metadata().map_err(broken)?.len();
    if size > MOST_TEXT {
        return Err(SourceError::new(path, format!("has {size} bytes, and is read up to {MOST_TEXT}")));
    }
    let mut text = String::new();
    file.take(MOST_TEXT).read_to_string(&mut text).map_err(broken)?;
    Ok(text)
}

/// In words, what is no regular file.
pub(crate) fn kind(kind: FileType) -> &'static str {
    if kind.is_dir() {
        return "a folder";
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a pipe";
        }
        if kind.is_socket() {
            return "a socket";
        }
        if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
    }
    "something else"
}
