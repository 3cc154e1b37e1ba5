//! Memory and time at ImageNet's number of images, a tenth of it here; `examples/index_memory.rs` does the whole.

mod common;

use std::fs;
use std::io::{BufWriter, Write};
use std::time::{Duration, Instant};

use common::*;
use manyheads_data::source::tar::Tar;
use manyheads_data::{Loader, LoaderConfig, Source, imagenet};
use std::sync::Arc;

/// Resident memory now.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

/// A tar of empty files, written as fast as the disk allows.
fn write_names(path: &std::path::Path, count: usize) {
    let mut out = BufWriter::with_capacity(1 << 20, fs::File::create(path).unwrap());
    let mut header = tar::Header::new_ustar();
    header.set_mode(0o644);
    header.set_size(0);
    for i in 0..count {
        let wnid = imagenet::wnids()[i % 1000];
        header.set_path(format!("{wnid}/{wnid}_{i}.JPEG")).unwrap();
        header.set_cksum();
        out.write_all(header.as_bytes()).unwrap();
    }
    out.write_all(&[0; 1024]).unwrap();
    out.flush().unwrap();
}

/// The paths, spans and labels of 1.28 million images take less than 150 MB; so a tenth takes less than 15.
#[test]
fn pytorch_13246_the_index_is_small() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("names.tar");
    let count = imagenet::TRAIN_IMAGES / 10;
    write_names(&path, count);
    let start = Instant::now();
    let before = resident();
    let source = Tar::open(&path).unwrap();
    let grown = resident().saturating_sub(before);
    assert_eq!((Source::len(&source), source.classes().len()), (count, 1000));
    // Freed memory that the allocator keeps counts too, so this is a wide bound on what the index itself takes.
    assert!(grown < 60 << 20, "{} MiB", grown >> 20);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    let config = LoaderConfig { batch_size: 1000, ..CONFIG };
    let transform = manyheads_data::Transform::Eval(manyheads_data::EvalTransform {
        size: [8, 8],
        channels: 1,
        crop_pct: 1.0,
        interpolation: manyheads_data::Interpolation::Bilinear,
        mean: vec![0.5],
        std: vec![0.5],
        ..manyheads_data::EvalTransform::default()
    });
    let loader = Loader::new(Arc::new(source), transform, config).unwrap();
    let start = Instant::now();
    assert_eq!(loader.items(7, 100).len(), 1000);
    assert!(start.elapsed() < Duration::from_secs(1), "any step of any epoch is found at once");
}
