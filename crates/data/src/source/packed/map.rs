//! A file mapped into memory for reading.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;

use memmap2::{Advice, Mmap};

/// The bytes of a file. They are read from disk when they are first looked at.
///
/// If the file is cut while it is mapped, or its disk fails, looking at the missing bytes ends the process (`SIGBUS`); nothing
/// else can be done with a mapping.
pub(super) struct Map(Mmap);

impl Map {
    pub(super) fn new(file: &File) -> io::Result<Self> {
        // SAFETY: the mapping is read-only, and packed files are written aside and renamed into place, never changed. Should
        // another program change the file, the bytes seen may be wrong but stay plain bytes, and checksums are computed over the
        // same bytes that are handed out.
        let map = unsafe { Mmap::map(file)? };
        Ok(Self(map))
    }

    /// Tells the system that parts are read in random order, so that it does not read what follows each of them.
    pub(super) fn expect_random(&self) {
        // Advice only: nothing depends on it.
        let _ = self.0.advise(Advice::Random);
    }
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
