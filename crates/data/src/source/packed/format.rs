//! The layout of a packed file. All numbers are little-endian.
//!
//! | bytes | content |
//! |---|---|
//! | 4096 | header, see [`Header`] |
//! | … | for each item in order: a record header of 24 bytes, see [`Record`], and the encoded image |
//! | … | index, see [`Index`] |
//!
//! An item carries its own number, length and checksum, so that a file that was being written when the machine stopped is
//! understood up to the last whole item. The header and the index have checksums too: no bit of the file goes unchecked.

use crc32fast::hash as crc32;

/// First bytes of a packed file. The first byte and the line end show a transfer that changes text.
pub(super) const MAGIC: [u8; 8] = *b"\x89MHPACK\n";
/// Version of the layout written and read.
pub(super) const VERSION: u32 = 1;
/// Bytes of the header.
pub(super) const HEADER: u64 = 4096;
/// Bytes before each image.
pub(super) const RECORD: u64 = 24;
const RECORD_TAG: u32 = u32::from_le_bytes(*b"ITEM");

/// The beginning of the file: magic, version, and the fields below in their order; zeros; CRC-32 of all before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Number of items.
    pub(super) count: u64,
    /// Number of classes.
    pub(super) classes: u64,
    /// Where the index begins; 0 while the file is being written.
    pub(super) index_start: u64,
    /// Bytes of the index.
    pub(super) index_len: u64,
    /// CRC-32 of the index.
    pub(super) index_crc: u32,
    /// Short side that larger images were shrunk to; 0: all bytes are the originals.
    pub(super) short_side: u32,
    /// JPEG quality of shrunk images.
    pub(super) quality: u32,
    /// SHA-256 of what was packed: settings, classes, labels, paths, sizes.
    pub(super) identity: [u8; 32],
}

impl Header {
    pub(super) fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER as usize);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        for number in [self.count, self.classes, self.index_start, self.index_len] {
            bytes.extend(number.to_le_bytes());
        }
        for number in [self.index_crc, self.short_side, self.quality] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.identity);
        bytes.resize(HEADER as usize - 4, 0);
        bytes.extend(crc32(&bytes).to_le_bytes());
        bytes
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() < HEADER as usize {
            return Err(format!("{} bytes are too few for a packed file: it is cut", bytes.len()));
        }
        let bytes = &bytes[..HEADER as usize];
        if bytes[..8] != MAGIC {
            return Err("it does not begin as a packed file".to_owned());
        }
        let version = u32_at(bytes, 8);
        let body = bytes.len() - 4;
        if u32_at(bytes, body) != crc32(&bytes[..body]) {
            return Err("its header is damaged: the checksum differs".to_owned());
        }
        if version != VERSION {
            return Err(format!(
                "it has version {version} of the layout, but this program reads {VERSION}. Pack the dataset again"
            ));
        }
        let number = |i: usize| u64_at(bytes, 12 + 8 * i);
        let small = |i: usize| u32_at(bytes, 44 + 4 * i);
        let mut identity = [0; 32];
        identity.copy_from_slice(&bytes[56..88]);
        Ok(Self {
            count: number(0),
            classes: number(1),
            index_start: number(2),
            index_len: number(3),
            index_crc: small(0),
            short_side: small(1),
            quality: small(2),
            identity,
        })
    }
}

/// What stands before an image: tag, number of the item, length, CRC-32 of the image, CRC-32 of the 20 bytes before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) item: u32,
    pub(super) len: u64,
    pub(super) crc: u32,
}

impl Record {
    pub(super) fn write(self) -> [u8; RECORD as usize] {
        let mut bytes = [0; RECORD as usize];
        bytes[..4].copy_from_slice(&RECORD_TAG.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.item.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.crc.to_le_bytes());
        let own = crc32(&bytes[..20]);
        bytes[20..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    /// None if these bytes are no sound record header.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < RECORD as usize || u32_at(bytes, 0) != RECORD_TAG || u32_at(bytes, 20) != crc32(&bytes[..20]) {
            return None;
        }
        Some(Self { item: u32_at(bytes, 4), len: u64_at(bytes, 8), crc: u32_at(bytes, 16) })
    }
}

/// An item as the index knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Where the image begins, after its record header.
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) crc: u32,
    pub(super) label: u32,
}

/// Bytes of one item in the index, without its path.
const ENTRY: u64 = 28;

/// Where the parts of an index begin in it. For each item: offset (8 bytes), length (4), CRC-32 (4), label (4), end of its path
/// in the area of paths (8); for each class the end of its name in the area of names (8); names of classes; paths of items.
#[derive(Clone, Copy, Debug)]
pub(super) struct Index {
    count: usize,
    classes: usize,
    names: usize,
    paths: usize,
    end: usize,
}

impl Index {
    pub(super) fn write<'a>(entries: &[Entry], classes: &[String], paths: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(entries.len() * ENTRY as usize);
        let mut ends = Vec::with_capacity(8 * entries.len());
        let mut area = Vec::new();
        for (entry, path) in entries.iter().zip(paths) {
            bytes.extend(entry.offset.to_le_bytes());
            for number in [entry.len, entry.crc, entry.label] {
                bytes.extend(number.to_le_bytes());
            }
            area.extend_from_slice(path);
            ends.extend((area.len() as u64).to_le_bytes());
        }
        bytes.extend(ends);
        let mut end = 0;
        for class in classes {
            end += class.len() as u64;
            bytes.extend(end.to_le_bytes());
        }
        classes.iter().for_each(|class| bytes.extend(class.as_bytes()));
        bytes.extend(area);
        bytes
    }

    /// Checks an index whose checksum is right against the file: `data` is the part of the file that images may lie in.
    pub(super) fn read(index: &[u8], header: &Header) -> Result<Self, String> {
        let wrong = || "its index contradicts itself".to_owned();
        let fixed =
            header.count.checked_mul(ENTRY).and_then(|n| n.checked_add(header.classes.checked_mul(8)?)).ok_or_else(wrong)?;
        if fixed > index.len() as u64 || header.count > u64::from(u32::MAX) {
            return Err(wrong());
        }
        let (count, classes) = (header.count as usize, header.classes as usize);
        let names = fixed as usize;
        let mut read = Self { count, classes, names, paths: names, end: index.len() };
        let mut before = 0;
        for class in 0..classes {
            let end = u64_at(index, read.class_end(class));
            if end < before || end > (index.len() - names) as u64 {
                return Err(wrong());
            }
            std::str::from_utf8(&index[names + before as usize..names + end as usize]).map_err(|_| wrong())?;
            before = end;
        }
        read.paths = names + before as usize;
        let mut before = 0;
        let mut free = HEADER;
        for item in 0..count {
            let end = u64_at(index, read.path_end(item));
            let entry = read.entry(index, item);
            let fits =
                entry.offset.checked_sub(RECORD) == Some(free) && entry.offset + u64::from(entry.len) <= header.index_start;
            if end <= before || end > (index.len() - read.paths) as u64 || entry.label as usize >= classes || !fits {
                return Err(wrong());
            }
            before = end;
            free = entry.offset + u64::from(entry.len);
        }
        if free != header.index_start || read.paths as u64 + before != index.len() as u64 {
            return Err(wrong());
        }
        Ok(read)
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    fn path_end(&self, item: usize) -> usize {
        20 * self.count + 8 * item
    }

    fn class_end(&self, class: usize) -> usize {
        28 * self.count + 8 * class
    }

    pub(super) fn entry(&self, index: &[u8], item: usize) -> Entry {
        assert!(item < self.count, "item {item} of {}", self.count);
        let at = 20 * item;
        Entry {
            offset: u64_at(index, at),
            len: u32_at(index, at + 8),
            crc: u32_at(index, at + 12),
            label: u32_at(index, at + 16),
        }
    }

    pub(super) fn path<'a>(&self, index: &'a [u8], item: usize) -> &'a [u8] {
        assert!(item < self.count, "item {item} of {}", self.count);
        let start = if item == 0 { 0 } else { u64_at(index, self.path_end(item - 1)) as usize };
        &index[self.paths + start..(self.paths + u64_at(index, self.path_end(item)) as usize).min(self.end)]
    }

    pub(super) fn classes(&self, index: &[u8]) -> Vec<String> {
        let mut start = 0;
        let name = |class| {
            let end = u64_at(index, self.class_end(class)) as usize;
            let name = String::from_utf8_lossy(&index[self.names + start..self.names + end]).into_owned();
            start = end;
            name
        };
        (0..self.classes).map(name).collect()
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_records_come_back_and_no_bit_goes_unchecked() {
        let header = Header {
            count: 3,
            classes: 2,
            index_start: 5000,
            index_len: 77,
            index_crc: 9,
            short_side: 352,
            quality: 90,
            identity: [7; 32],
        };
        let bytes = header.write();
        assert_eq!((bytes.len() as u64, Header::read(&bytes)), (HEADER, Ok(header)));
        for byte in (0..100).chain([2000, 4090, 4095]) {
            let mut damaged = bytes.clone();
            damaged[byte] ^= 4;
            assert!(Header::read(&damaged).is_err(), "byte {byte}");
        }
        let record = Record { item: 5, len: 1 << 20, crc: 77 };
        assert_eq!(Record::read(&record.write()), Some(record));
        for bit in 0..8 * RECORD as usize {
            let mut damaged = record.write();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::read(&damaged), None, "bit {bit}");
        }
    }

    /// Found by mutation: a checksum that was mended let an item without a path through.
    #[test]
    fn every_item_of_an_index_has_a_path() {
        let entry = |offset| Entry { offset, len: 10, crc: 1, label: 0 };
        let (first, second) = (HEADER + RECORD, HEADER + 2 * RECORD + 10);
        let classes = ["a".to_owned()];
        let read = |paths: [&'static [u8]; 2]| {
            let index = Index::write(&[entry(first), entry(second)], &classes, paths.into_iter());
            let header = Header {
                count: 2,
                classes: 1,
                index_start: second + 10,
                index_len: index.len() as u64,
                index_crc: 0,
                short_side: 0,
                quality: 0,
                identity: [0; 32],
            };
            Index::read(&index, &header)
        };
        assert!(read([b"a/x.jpg", b"a/y.jpg"]).is_ok());
        assert!(read([b"", b"a/y.jpg"]).is_err());
        assert!(read([b"a/x.jpg", b""]).is_err());
    }
}
