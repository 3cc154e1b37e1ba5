//! Reading files that people name.

use std::path::Path;

use crate::error::{Error, Result};

/// The bytes of a regular file. A pipe or a device in its place could be read for ever.
///
/// # Errors
/// Where there is none, or it cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let failed = |e: std::io::Error| Error::io("read", path, &e);
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(Error::Failed(format!("{} is no regular file", path.display())));
    }
    std::fs::read(path).map_err(failed)
}
