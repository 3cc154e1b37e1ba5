//! Checking a dataset finds what was planted, whatever the number of threads.

mod common;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use manyheads_data::bench::{BenchOptions, Stage, bench};
use manyheads_data::source::folder::Folder;
use manyheads_data::source::packed::Packed;
use manyheads_data::{
    DataError, EvalTransform, Interpolation, PackOptions, PixelFormat, Source, Transform, VerifyOptions, VerifyReport, pack,
    verify,
};

fn fixture(name: &str) -> Vec<u8> {
    fs::read(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/modes").join(name)).unwrap()
}

#[test]
fn planted_faults_are_found_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let items = items(60);
    write_folder(dir.path(), &items);
    let class = |i: usize| dir.path().join(CLASSES[i]);
    let plant = |path: std::path::PathBuf, bytes: &[u8]| fs::write(path, bytes).unwrap();
    plant(class(0).join("bad 1.jpg"), &fixture("progressive.jpg")[..700]);
    plant(class(1).join("bad 2.jpg"), b"");
    plant(class(2).join("bad 3.png"), b"no image at all");
    plant(class(1).join("cmyk.jpg"), &fixture("cmyk.jpg"));
    plant(class(1).join("png.jpeg"), &fixture("rgb.png"));
    plant(class(1).join("again.png"), &items[0].bytes);
    plant(class(0).join("twin a.webp"), &fixture("lossy.webp"));
    plant(class(0).join("twin b.webp"), &fixture("lossy.webp"));
    plant(class(0).join("notes.txt"), b"left out");
    let folder = Folder::open(dir.path()).unwrap();
    let check = |threads| {
        let mut calls = 0;
        let options = VerifyOptions { threads, duplicates: true };
        let report = verify(&folder, &options, &AtomicBool::new(false), |p| {
            calls += 1;
            assert_eq!((p.images, p.of), (calls, 68));
        });
        VerifyReport { images_per_second: 0.0, ..report.unwrap() }
    };
    let report = check(1);
    assert!((2..=8).all(|threads| check(threads) == report));
    let names: Vec<&str> = report.broken.iter().map(|b| b.name.rsplit('/').next().unwrap()).collect();
    assert_eq!(names, ["bad 1.jpg", "bad 2.jpg", "bad 3.png"]);
    assert!(report.broken[1].reason.contains("an empty file"), "{:?}", report.broken);
    assert_eq!((report.images, report.ok, report.is_sound()), (68, 65, false));
    let odd = |name: &str| report.odd.iter().find(|(known, _)| known == name).map(|(_, count)| *count);
    assert_eq!(odd("CMYK or YCCK JPEG"), Some(1));
    assert_eq!(odd("a PNG by content, but not by name"), Some(1));
    assert_eq!(odd("grey PNG"), Some(61));
    let twins: Vec<(usize, bool)> = report.duplicates.iter().map(|d| (d.names.len(), d.across_classes)).collect();
    assert_eq!(twins, [(2, true), (2, false)]);
    let counts: Vec<usize> = report.classes.iter().map(|(_, count)| *count).collect();
    assert_eq!(counts.iter().sum::<usize>(), 68);
    assert!(report.notices[0].contains("notes.txt"));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["broken"][2]["item"], report.broken[2].item);
    assert_eq!(folder.name(report.broken[2].item), report.broken[2].name);
    assert_eq!(report.bytes, (0..68).map(|i| folder.read(i).unwrap().len() as u64).sum::<u64>());
}

#[test]
fn a_flipped_bit_of_a_packed_file_is_seen_by_the_check_of_images() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let items = items(5);
    write_folder(&at("a"), &items);
    write_packed(&at("a.pack"), &Folder::open(at("a")).unwrap());
    let whole = fs::read(at("a.pack")).unwrap();
    let first = 4096;
    let second = first + 24 + items[0].bytes.len();
    let index = first + items.iter().map(|item| 24 + item.bytes.len()).sum::<usize>();
    let check = |byte: usize| {
        let mut damaged = whole.clone();
        damaged[byte] ^= 16;
        fs::write(at("b.pack"), damaged).unwrap();
        let packed = Packed::open(at("b.pack")).ok()?;
        let report = verify(&packed, &VerifyOptions::default(), &AtomicBool::new(false), |_| ()).unwrap();
        Some(report.broken.iter().map(|broken| broken.item).collect::<Vec<_>>())
    };
    // Magic, fields and padding of the header, its checksum, the index: the file is not opened.
    for byte in [0, 20, 60, 1000, 4091, 4094, index, index + 17, whole.len() - 1] {
        assert_eq!(check(byte), None, "byte {byte}");
    }
    // All parts of the records, and images.
    for part in [0, 3, 5, 9, 15, 17, 21, 23, 24, 40] {
        assert_eq!(check(first + part), Some(vec![0]), "byte {part} of the first record");
        assert_eq!(check(second + part), Some(vec![1]), "byte {part} of the second record");
    }
}

#[test]
fn absurd_numbers_of_threads_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    write_folder(&dir.path().join("a"), &items(4));
    let folder = Folder::open(dir.path().join("a")).unwrap();
    let options = VerifyOptions { threads: 1_000_000, duplicates: false };
    let pack_options = PackOptions { threads: 1025, ..PackOptions::default() };
    let stop = AtomicBool::new(false);
    let out = dir.path().join("a.pack");
    let bench_options = BenchOptions { threads: vec![1, usize::MAX], ..BenchOptions::default() };
    let errors = [
        verify(&folder, &options, &stop, |_| ()).map(|_| ()),
        pack(&folder, &out, &pack_options, &stop, |_| ()).map(|_| ()),
        bench(&(Arc::new(folder) as Arc<dyn Source>), &Transform::Eval(EvalTransform::default()), &bench_options).map(|_| ()),
    ];
    for error in errors {
        assert!(matches!(error, Err(DataError::Config { key: "threads", .. })), "{error:?}");
    }
    assert!(!dir.path().join("a.pack.partial").exists());
}

#[test]
fn a_check_can_be_stopped() {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path(), &items(60));
    let folder = Folder::open(dir.path()).unwrap();
    let stop = AtomicBool::new(false);
    let options = VerifyOptions { threads: 2, duplicates: false };
    let stopped = verify(&folder, &options, &stop, |p| stop.store(p.images == 10, Ordering::Relaxed));
    let message = stopped.unwrap_err();
    assert!(matches!(message, DataError::Cancelled { .. }) && message.to_string().contains("10 of 60"), "{message}");
}

#[test]
fn the_bench_measures_every_stage() {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path(), &items(60));
    let source: Arc<dyn Source> = Arc::new(Folder::open(dir.path()).unwrap());
    let transform = Transform::Eval(EvalTransform {
        size: [16, 16],
        channels: 1,
        crop_pct: 1.0,
        interpolation: Interpolation::Bilinear,
        mean: vec![0.5],
        std: vec![0.5],
        ..EvalTransform::default()
    });
    let options = BenchOptions { threads: vec![1, 2], time: Duration::from_millis(30), batch_size: 8, format: PixelFormat::U8 };
    let report = bench(&source, &transform, &options).unwrap();
    let stages: Vec<(usize, Stage)> = report.measurements.iter().map(|m| (m.threads, m.stage)).collect();
    let each = [Stage::Read, Stage::Decode, Stage::Sample, Stage::Loader];
    assert_eq!(stages, [1, 2].map(|threads| each.map(|stage| (threads, stage))).concat());
    for m in &report.measurements {
        assert!(m.images > 0 && m.images_per_second > 0.0 && m.megabytes_per_second > 0.0 && m.share > 0.0, "{m:?}");
    }
    assert!(bench(&source, &transform, &BenchOptions { threads: vec![], ..options.clone() }).is_err());
    fs::write(dir.path().join(CLASSES[0]).join("bad.png"), "").unwrap();
    let source: Arc<dyn Source> = Arc::new(Folder::open(dir.path()).unwrap());
    let message = bench(&source, &transform, &options).unwrap_err().to_string();
    assert!(message.contains("bad.png"), "{message}");
}
