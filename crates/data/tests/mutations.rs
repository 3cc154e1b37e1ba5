//! Containers with random damage: no panic, no hang, no memory beyond what the file's size explains.
//!
//! `MANYHEADS_MUTATIONS` sets the number of cases for each container; the default keeps the tests short.

mod common;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use common::*;
use manyheads_data::random::{ChaCha8Rng, below, stream};
use manyheads_data::source::{Form, OpenOptions, open};
use manyheads_data::{Purpose, source::folder::Folder};
use parquet::basic::Compression;

/// Most bytes that the process may grow by: pages of parquet files are bounded at 64 times their size and 16 MiB.
const MEMORY: u64 = 256 << 20;

fn cases() -> u64 {
    std::env::var("MANYHEADS_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(400)
}

/// Highest resident memory of the process so far.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

/// A place to damage: often near the beginning or the end, where the structure is.
fn place(rng: &mut ChaCha8Rng, len: usize) -> usize {
    let near = (len as u64).min(2048);
    match below(rng, 3) {
        0 => below(rng, near) as usize,
        1 => len - 1 - below(rng, near) as usize,
        _ => below(rng, len as u64) as usize,
    }
}

fn damage(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>) {
    for _ in 0..=below(rng, 4) {
        if bytes.is_empty() {
            return;
        }
        let at = place(rng, bytes.len());
        let len = (1 + below(rng, 16) as usize).min(bytes.len() - at);
        match below(rng, 8) {
            0 => bytes[at] ^= 1 << below(rng, 8),
            1 => bytes[at] = below(rng, 256) as u8,
            2 => bytes[at..at + len].fill(0xff),
            3 => bytes[at..at + len].fill(0),
            4 => bytes[at..at + len].iter_mut().for_each(|b| *b = below(rng, 256) as u8),
            5 => bytes.truncate(at),
            6 => {
                let again = bytes[at..at + len].to_vec();
                bytes.splice(at..at, again);
            }
            _ => drop(bytes.drain(at..at + len)),
        }
    }
}

/// Damages a file many times; `mend` may repair checksums, so that what lies behind them is reached. Returns how many opened.
fn torture(name: &str, form: Form, original: &[u8], mend: impl Fn(&mut [u8])) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    let before = peak();
    let mut opened = 0;
    for case in 0..cases() {
        let mut rng = stream(case, Purpose::Subset, 0, original.len() as u64);
        let mut bytes = original.to_vec();
        damage(&mut rng, &mut bytes);
        if below(&mut rng, 4) > 0 {
            mend(&mut bytes);
        }
        fs::write(&path, &bytes).unwrap();
        let start = Instant::now();
        let read = catch_unwind(AssertUnwindSafe(|| read_all(&path, form)));
        match read {
            Ok(read) => opened += u64::from(read),
            Err(_) => panic!("{name}: case {case} panicked"),
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{name}: case {case} took {:?}", start.elapsed());
        let grown = peak().saturating_sub(before);
        assert!(grown < MEMORY, "{name}: case {case} took {} MiB", grown >> 20);
    }
    opened
}

fn read_all(path: &Path, form: Form) -> bool {
    for form in [form, Form::Auto] {
        let Ok(source) = open(path, &OpenOptions { form, ..OpenOptions::default() }) else { return false };
        assert!(!source.is_empty());
        for i in 0..source.len() {
            assert!(source.label(i) < source.classes().len());
            assert!(!source.name(i).is_empty() && !source.relative_path(i).is_empty());
            if let Err(error) = source.read(i) {
                assert!(error.is_item_error(), "{error}");
            }
        }
    }
    true
}

/// Makes the checksums of tar headers right.
fn mend_tar(bytes: &mut [u8]) {
    for header in bytes.chunks_exact_mut(512) {
        if &header[257..262] == b"ustar" {
            header[148..156].fill(b' ');
            let sum: u32 = header.iter().map(|&b| u32::from(b)).sum();
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
}

/// Makes the checksums of a packed file's header and index right.
fn mend_packed(bytes: &mut [u8]) {
    if bytes.len() < 4096 {
        return;
    }
    let number = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let start = number(bytes, 28).min(bytes.len() as u64) as usize;
    let len = (bytes.len() - start) as u64;
    bytes[36..44].copy_from_slice(&len.to_le_bytes());
    let crc = crc32fast::hash(&bytes[start..]);
    bytes[44..48].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..4092]);
    bytes[4092..4096].copy_from_slice(&crc.to_le_bytes());
}

fn file(write: impl Fn(&Path)) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("file"));
    fs::read(dir.path().join("file")).unwrap()
}

#[test]
fn damaged_tars() {
    let nested = file(|path| write_nested_tar(path, &items(12)));
    assert!(torture("nested.tar", Form::Tar, &nested, mend_tar) > 0);
    let plain = file(|path| {
        let mut builder = tar::Builder::new(fs::File::create(path).unwrap());
        for item in items(8) {
            let path = format!("{}/{}{}", CLASSES[item.label], "long".repeat(item.label * 20), item.file);
            add(&mut builder, &path, &item.bytes);
        }
        builder.append_pax_extensions([("path", &b"n01440764/pax.png"[..])]).unwrap();
        add(&mut builder, "short", b"data");
        builder.finish().unwrap();
    });
    assert!(torture("plain.tar", Form::Tar, &plain, mend_tar) > 0);
}

#[test]
fn damaged_webdataset_shards() {
    let shard = file(|path| {
        let folder = path.with_extension("shards");
        write_webdataset(&folder, &items(24));
        fs::copy(folder.join("shard-001.tar"), path).unwrap();
    });
    assert!(torture("shard.tar", Form::WebDataset, &shard, mend_tar) > 0);
}

#[test]
fn damaged_parquet_files() {
    for compression in [Compression::SNAPPY, Compression::UNCOMPRESSED, Compression::LZ4_RAW] {
        let bytes = file(|path| write_parquet(path, &items(12), compression, 5, true));
        assert!(torture("file.parquet", Form::Parquet, &bytes, |_| ()) > 0);
    }
}

#[test]
fn damaged_packed_files() {
    let bytes = file(|path| {
        let folder = path.with_extension("folder");
        write_folder(&folder, &items(12));
        write_packed(path, &Folder::open(folder).unwrap());
    });
    assert!(torture("file.pack", Form::Packed, &bytes, mend_packed) > 0);
}

#[test]
fn damaged_label_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("labels.txt");
    for text in ["a.jpg 1\nb.jpg 2\nc d.jpg 3\n", "ImageId,PredictionString\nILSVRC2012_val_00000001,n01751748 1 2 3 4\n"] {
        for case in 0..cases() {
            let mut bytes = text.as_bytes().to_vec();
            damage(&mut stream(case, Purpose::Subset, 1, 0), &mut bytes);
            fs::write(&path, bytes).unwrap();
            let _ = manyheads_data::source::labels::Labels::read(&path);
        }
    }
}
