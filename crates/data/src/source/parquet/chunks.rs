//! Reading parts of parquet files from many threads, and refusing pages that would take too much memory.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use ::parquet::errors::{ParquetError, Result};
use ::parquet::file::reader::{ChunkReader, Length};
use bytes::Bytes;

/// Largest page after decompression, in bytes.
const MAX_PAGE: u64 = 1 << 30;
/// A page may grow by this factor, and by [`SLACK`] bytes: encoded images hardly compress.
const MAX_RATIO: u64 = 64;
const SLACK: u64 = 16 << 20;

/// A parquet file read by position: the crate's own reader of files moves one position that all threads share.
pub(super) struct Chunks {
    pub(super) file: Arc<File>,
    pub(super) len: u64,
    /// Whether reads that begin without a length are those of page headers, to be checked.
    pub(super) pages: bool,
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Chunks {
    type T = Positional;

    fn get_read(&self, start: u64) -> Result<Positional> {
        let mut read = Positional { file: Arc::clone(&self.file), at: start, buffer: [0; 512], filled: 0, used: 0 };
        if self.pages {
            read.fill()?;
            check_page(&read.buffer[..read.filled], self.len.saturating_sub(start)).map_err(ParquetError::General)?;
        }
        Ok(read)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.len) {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} lie beyond the end of the file")));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

/// Reads on from a position of its own. Page headers are small, so the buffer is.
pub(super) struct Positional {
    file: Arc<File>,
    at: u64,
    buffer: [u8; 512],
    filled: usize,
    used: usize,
}

impl Positional {
    fn fill(&mut self) -> io::Result<()> {
        self.filled = self.file.read_at(&mut self.buffer, self.at)?;
        self.at += self.filled as u64;
        self.used = 0;
        Ok(())
    }
}

impl Read for Positional {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.used == self.filled {
            self.fill()?;
        }
        let count = into.len().min(self.filled - self.used);
        into[..count].copy_from_slice(&self.buffer[self.used..self.used + count]);
        self.used += count;
        Ok(count)
    }
}

/// Checks the sizes in a page's header, a Thrift structure in the compact protocol whose first fields are the page's type and
/// its sizes before and after compression, 32 bits each.
fn check_page(header: &[u8], left: u64) -> std::result::Result<(), String> {
    let mut at = 0;
    let mut number = || {
        // A field of the next number and of type i32, then a zigzag number.
        if header.get(at) != Some(&0x15) {
            return None;
        }
        let mut value = 0u64;
        for shift in (0..35).step_by(7) {
            at += 1;
            let byte = *header.get(at)?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                at += 1;
                return (value & 1 == 0).then_some(value >> 1);
            }
        }
        None
    };
    let (Some(_), Some(plain), Some(packed)) = (number(), number(), number()) else {
        return Err("a page without a readable header".to_owned());
    };
    if packed > left || plain > MAX_PAGE || plain > packed.saturating_mul(MAX_RATIO) + SLACK {
        return Err(format!("a page that claims {plain} bytes, {packed} compressed: damaged, or far too large"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_pages_are_checked() {
        // Type 0, 1,000,000 bytes, 900,000 compressed.
        let header = [0x15, 0x00, 0x15, 0x80, 0x89, 0x7a, 0x15, 0xc0, 0xee, 0x6d];
        assert_eq!(check_page(&header, 1_000_000), Ok(()));
        assert!(check_page(&header, 800_000).is_err());
        assert!(check_page(&header[..5], 1_000_000).is_err());
        assert!(check_page(&[], 0).is_err());
        // Two gigabytes from ten bytes.
        let bomb = [0x15, 0x00, 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0x15, 0x14];
        assert!(check_page(&bomb, 100).unwrap_err().contains("2147483647"));
    }
}
