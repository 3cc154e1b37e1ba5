//! Bad and odd files, each with what must become of it.

mod common;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use common::*;
use manyheads_data::source::folder::Folder;
use manyheads_data::source::tar::Tar;
use manyheads_data::source::{OpenOptions, open};
use manyheads_data::{DataError, EvalTransform, Interpolation, Loader, LoaderConfig, OnError, Source, Transform};
use parquet::basic::Compression;

fn transform() -> Transform {
    Transform::Eval(EvalTransform {
        size: [8, 8],
        channels: 3,
        crop_pct: 1.0,
        interpolation: Interpolation::Bilinear,
        mean: vec![0.5; 3],
        std: vec![0.5; 3],
        ..EvalTransform::default()
    })
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/modes").join(name)).unwrap()
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// What must become of a file.
enum Fate {
    /// It is an image like others.
    Good,
    /// It is no image: left out of the list, with a notice that says so.
    Ignored(&'static str),
    /// It is skipped or ends the epoch, with a reason that says so.
    Bad(&'static str),
}
use Fate::{Bad, Good, Ignored};

/// A PNG's header with a size of a billion pixels a side.
fn giant_png() -> Vec<u8> {
    let mut png = fixture("rgb.png");
    png[16..20].copy_from_slice(&1_000_000_000u32.to_be_bytes());
    png[20..24].copy_from_slice(&1_000_000_000u32.to_be_bytes());
    let crc = crc32fast::hash(&png[12..29]);
    png[29..33].copy_from_slice(&crc.to_be_bytes());
    png
}

fn half(bytes: &[u8], percent: usize) -> Vec<u8> {
    bytes[..bytes.len() * percent / 100].to_vec()
}

#[test]
fn every_odd_file_has_its_fate() {
    let dir = tempfile::tempdir().unwrap();
    let class = dir.path().join("data/a");
    fs::create_dir_all(&class).unwrap();
    let jpeg = fixture("progressive.jpg");
    let gzip = [b"\x1f\x8b\x08\0\0\0\0\0\0\x03".to_vec(), vec![7; 100]].concat();
    let long = format!("{}.jpg", "l".repeat(251));
    let files: Vec<(&[u8], Vec<u8>, Fate)> = vec![
        (b"png named jpeg (tfds#590).JPEG", fixture("rgb.png"), Good),
        (b"jpeg named png.png", jpeg.clone(), Good),
        (b"webp named jpeg.jpg", fixture("lossy.webp"), Good),
        (b"upper case.JPG", jpeg.clone(), Good),
        (b"jpe.jpe", jpeg.clone(), Good),
        (b"two.dots.jpg", jpeg.clone(), Good),
        (b"bytes after the end.jpg", [jpeg.clone(), vec![0; 1000]].concat(), Good),
        (b"cmyk (torchvision#6538).jpg", fixture("cmyk.jpg"), Good),
        (b"adobe rgb.jpg", fixture("adobe_rgb.jpg"), Good),
        (b"grey.jpg", fixture("l.jpg"), Good),
        (b"rotated by exif.jpg", fixture("exif_rotated.jpg"), Good),
        (b"restart markers.jpg", fixture("restart.jpg"), Good),
        (b"one bit.png", fixture("bits1.png"), Good),
        (b"palette.png", fixture("p.png"), Good),
        (b"palette with transparency.png", fixture("p_transparent.png"), Good),
        (b"grey and alpha.png", fixture("la.png"), Good),
        (b"rgba.png", fixture("rgba.png"), Good),
        (b"16 bits.png", fixture("rgb16.png"), Good),
        (b"lossless with alpha.webp", fixture("lossless_alpha.webp"), Good),
        (b"not \xff\xfe utf-8.jpg", jpeg.clone(), Good),
        (b"line\nbreak.jpg", jpeg.clone(), Good),
        (long.as_bytes(), jpeg.clone(), Good),
        (b"empty.jpg", vec![], Bad("an empty file")),
        (b"one byte.jpg", vec![0xff], Bad("image")),
        (b"text.jpg", b"Removed by the owner.\n".to_vec(), Bad("text")),
        (b"page.jpg", b"<!DOCTYPE html><html>404</html>".to_vec(), Bad("image")),
        (b"zeros.jpg", vec![0; 4096], Bad("image")),
        (b"gzip (stb#427).jpg", gzip, Bad("gzip")),
        (b"gif.jpg", [b"GIF89a".to_vec(), vec![1; 50]].concat(), Bad("GIF")),
        (b"bmp.jpg", [b"BM".to_vec(), vec![1; 50]].concat(), Bad("BMP")),
        (b"tiff.jpg", [b"II*\0".to_vec(), vec![1; 50]].concat(), Bad("TIFF")),
        (b"half (torchvision#138).jpg", half(&jpeg, 50), Bad("JPEG")),
        (b"three percent.jpg", half(&jpeg, 3), Bad("JPEG")),
        (b"last byte missing.jpg", jpeg[..jpeg.len() - 2].to_vec(), Bad("JPEG")),
        (b"start of jpeg only.jpg", b"\xff\xd8".to_vec(), Bad("JPEG")),
        (b"half.png", half(&fixture("rgb.png"), 50), Bad("PNG")),
        (b"half.webp", half(&fixture("lossless.webp"), 50), Bad("WebP")),
        (b"start of png only.png", b"\x89PNG\r\n\x1a\n".to_vec(), Bad("PNG")),
        (b"giant.png", giant_png(), Bad("PNG")),
        (b".hidden.jpg", jpeg.clone(), Ignored("hidden")),
        (b"._resource fork.jpg", jpeg.clone(), Ignored("hidden")),
        (b"no extension", jpeg.clone(), Ignored("not images")),
        (b"notes.txt", b"notes".to_vec(), Ignored("not images")),
        (b"old.gif", b"GIF89a".to_vec(), Ignored("image formats that are not read")),
        (b"raw.tiff", b"II*\0".to_vec(), Ignored("image formats that are not read")),
        (b"unfinished.jpg.part", half(&jpeg, 20), Ignored("not images")),
    ];
    let mut expected: BTreeMap<Vec<u8>, Fate> = BTreeMap::new();
    for (name, bytes, fate) in files {
        fs::write(class.join(OsStr::from_bytes(name)), bytes).unwrap();
        expected.insert(name.to_vec(), fate);
    }
    let at = |name: &str| class.join(name);
    let mut special = |name: &str, fate: Fate| expected.insert(name.into(), fate);
    fs::write(dir.path().join("elsewhere.jpg"), &jpeg).unwrap();
    symlink(dir.path().join("elsewhere.jpg"), at("link.jpg")).unwrap();
    special("link.jpg", Good);
    symlink("nowhere.jpg", at("dangling.jpg")).unwrap();
    special("dangling.jpg", Bad("leads nowhere"));
    symlink("itself.jpg", at("itself.jpg")).unwrap();
    special("itself.jpg", Bad("symbolic link"));
    fifo(&at("pipe.jpg"));
    special("pipe.jpg", Ignored("pipes, sockets and devices"));
    symlink("/dev/zero", at("device.jpg")).unwrap();
    special("device.jpg", Ignored("pipes, sockets and devices"));
    fs::create_dir(at("folder.jpg")).unwrap();
    fs::write(at("folder.jpg/inside.png"), &jpeg).unwrap();
    special("folder.jpg/inside.png", Good);
    fs::File::create(at("huge and empty.jpg")).unwrap().set_len(3 << 30).unwrap();
    special("huge and empty.jpg", Bad("no image that fits into memory"));
    fs::write(at("goes away.jpg"), &jpeg).unwrap();
    special("goes away.jpg", Bad("No such file"));
    fs::write(at("becomes a pipe.jpg"), &jpeg).unwrap();
    special("becomes a pipe.jpg", Bad("not a regular file"));
    assert!(expected.len() >= 50);

    let folder = Arc::new(Folder::open(dir.path().join("data")).unwrap());
    fs::remove_file(at("goes away.jpg")).unwrap();
    fs::remove_file(at("becomes a pipe.jpg")).unwrap();
    fifo(&at("becomes a pipe.jpg"));
    let name = |i: usize| folder.relative_path(i)[2..].to_vec();
    let listed: Vec<Vec<u8>> = (0..Source::len(&*folder)).map(name).collect();
    let notices = folder.notices().join("\n");
    for (file, fate) in &expected {
        let shown = String::from_utf8_lossy(file);
        match fate {
            Ignored(reason) => {
                assert!(!listed.contains(file), "{shown} is listed");
                assert!(notices.contains(reason), "{shown}: {notices}");
            }
            _ => assert!(listed.contains(file), "{shown} is not listed"),
        }
    }
    let config = LoaderConfig { on_error: OnError::Skip, shuffle: false, workers: 3, ..CONFIG };
    let loader = Loader::new(Arc::clone(&folder) as Arc<dyn Source>, transform(), config).unwrap();
    let (mut good, mut skipped) = (Vec::new(), BTreeMap::new());
    for batch in loader.epoch(0, 0) {
        let batch = batch.unwrap();
        good.extend(batch.items.iter().map(|&item| name(item)));
        skipped.extend(batch.skipped.into_iter().map(|s| (name(s.item), s.reason)));
    }
    for (file, fate) in &expected {
        let shown = String::from_utf8_lossy(file);
        match fate {
            Good => assert!(good.contains(file), "{shown}: {:?}", skipped.get(file)),
            Bad(part) => {
                let reason = skipped.get(file).unwrap_or_else(|| panic!("{shown} was taken for an image"));
                assert!(reason.contains(part), "{reason:?} does not say {part:?}");
            }
            Ignored(_) => {}
        }
    }
    assert_eq!(good.len() + skipped.len(), listed.len());
}

#[test]
fn lists_that_are_pipes_or_devices_are_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    write_flat(&at("flat"), &items(3));
    write_webdataset(&at("shards"), &items(6));
    fifo(&at("pipe"));
    for list in [at("pipe"), "/dev/zero".into()] {
        let labels = OpenOptions { labels: Some(list.clone()), ..OpenOptions::default() };
        let names = OpenOptions { class_names: Some(list.clone()), ..OpenOptions::default() };
        for message in [
            open(at("flat"), &labels).err().unwrap().to_string(),
            open(at("shards"), &names).err().unwrap().to_string(),
            manyheads_data::imagenet::real_labels(&list).unwrap_err().to_string(),
        ] {
            assert!(message.contains("not a regular file") && message.contains(list.to_str().unwrap()), "{message}");
        }
    }
}

#[test]
fn labels_for_class_folders_are_not_needed_and_the_error_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    write_folder(&at("folder"), &items(6));
    write_nested_tar(&at("nested.tar"), &items(6));
    let mut tar = tar::Builder::new(fs::File::create(at("plain.tar")).unwrap());
    items(6).iter().for_each(|item| add(&mut tar, &format!("{}/{}", CLASSES[item.label], item.file), &item.bytes));
    tar.finish().unwrap();
    fs::write(at("labels.txt"), "other.png cat\n").unwrap();
    let options = OpenOptions { labels: Some(at("labels.txt")), ..OpenOptions::default() };
    for name in ["folder", "nested.tar", "plain.tar"] {
        let message = open(at(name), &options).err().unwrap().to_string();
        assert!(message.contains("class folders") && message.contains("no labels are needed"), "{name}: {message}");
    }
}

#[test]
fn a_split_of_a_folder_of_classes_is_refused_with_a_whole_sentence() {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path(), &items(4));
    let split = |name: &str| OpenOptions { split: Some(name.to_owned()), ..OpenOptions::default() };
    let message = open(dir.path(), &split("foo")).err().unwrap().to_string();
    assert!(message.contains("\"foo\"") && message.ends_with("Leave the split out"), "{message}");
    let message = open(dir.path(), &split(CLASSES[0])).err().unwrap().to_string();
    assert!(message.contains(&format!("Name the folder {}", dir.path().join(CLASSES[0]).display())), "{message}");
    let shards = tempfile::tempdir().unwrap();
    write_webdataset(shards.path(), &items(8));
    let message = open(shards.path(), &split("foo")).err().unwrap().to_string();
    assert!(message.ends_with("Leave the split out"), "{message}");
}

#[test]
fn control_characters_in_names_are_escaped() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("猫")).unwrap();
    fs::write(dir.path().join("猫/a\u{1b}[2J\n.jpg"), "no image").unwrap();
    fs::write(dir.path().join("猫/b\u{7}.txt"), "left out").unwrap();
    let source = open(dir.path(), &OpenOptions::default()).unwrap();
    assert!(source.name(0).ends_with(r"猫/a\u{1b}[2J\n.jpg"), "{}", source.name(0));
    assert!(source.notices().join("").contains(r"b\u{7}.txt"), "{:?}", source.notices());
    assert!(!source.notices().iter().any(|notice| notice.contains(char::is_control)));
}

/// A fate of a whole dataset: what is made below the folder given, the name to open, and what the error says.
type Case = (&'static str, fn(&Path), &'static str);

#[test]
fn every_odd_dataset_is_refused_with_a_reason() {
    const CASES: &[Case] = &[
        ("nothing there", |_| (), "No such file"),
        ("an empty folder", |p| fs::create_dir(p).unwrap(), "no images found"),
        ("a pipe", fifo, "regular file"),
        ("a circle of links", |p| symlink(p, p).unwrap(), "symbolic link"),
        (
            "a folder in a circle",
            |p| {
                fs::create_dir_all(p.join("a")).unwrap();
                fs::write(p.join("a/x.jpg"), "x").unwrap();
                symlink("..", p.join("a/up")).unwrap();
            },
            "symbolic link",
        ),
        ("an empty file", |p| fs::write(p, "").unwrap(), "empty"),
        ("a text file", |p| fs::write(p, "text ".repeat(300)).unwrap(), "tar"),
        ("a picture", |p| fs::write(p, fixture("l.jpg")).unwrap(), "tar"),
        ("gzip", |p| fs::write(p, b"\x1f\x8b\x08\0\0\0\0\0\0\0").unwrap(), "gunzip"),
        ("zstd", |p| fs::write(p, b"\x28\xb5\x2f\xfd\0\0\0\0\0\0").unwrap(), "zstd --decompress"),
        ("bzip2", |p| fs::write(p, b"BZh9\0\0\0\0\0\0").unwrap(), "bunzip2"),
        ("xz", |p| fs::write(p, b"\xfd7zXZ\0\0\0\0\0").unwrap(), "unxz"),
        ("parquet by name.parquet", |p| fs::write(p, "no parquet").unwrap(), "other content"),
        ("parquet magic only", |p| fs::write(p, b"PAR1").unwrap(), "too few"),
        (
            "cut parquet",
            |p| {
                write_parquet(p, &items(9), Compression::SNAPPY, 4, true);
                let bytes = fs::read(p).unwrap();
                fs::write(p, &bytes[..bytes.len() / 2]).unwrap();
            },
            "cut",
        ),
        ("packed magic only", |p| fs::write(p, b"\x89MHPACK\n").unwrap(), "too few"),
        (
            "packing unfinished",
            |p| {
                let folder = p.with_extension("folder");
                write_folder(&folder, &items(4));
                write_packed(p, &Folder::open(folder).unwrap());
                let mut bytes = fs::read(p).unwrap();
                bytes[28..36].fill(0);
                let crc = crc32fast::hash(&bytes[..4092]);
                bytes[4092..4096].copy_from_slice(&crc.to_le_bytes());
                fs::write(p, bytes).unwrap();
            },
            "not finished",
        ),
        (
            "packed by a later program",
            |p| {
                let mut bytes = vec![0; 4096];
                bytes[..8].copy_from_slice(b"\x89MHPACK\n");
                bytes[8] = 99;
                let crc = crc32fast::hash(&bytes[..4092]);
                bytes[4092..4096].copy_from_slice(&crc.to_le_bytes());
                fs::write(p, bytes).unwrap();
            },
            "version 99",
        ),
        (
            "flat images",
            |p| {
                fs::create_dir(p).unwrap();
                fs::write(p.join("x.jpg"), "x").unwrap();
            },
            "have no class",
        ),
        (
            "both splits",
            |p| {
                fs::create_dir_all(p.join("train/cat")).unwrap();
                fs::write(p.join("train/cat/x.jpg"), "x").unwrap();
            },
            "splits of a dataset",
        ),
        (
            "a class without images",
            |p| {
                write_folder(p, &items(4));
                fs::create_dir(p.join("zebra")).unwrap();
            },
            "zebra",
        ),
        (
            "tars that are no shards",
            |p| {
                fs::create_dir(p).unwrap();
                write_nested_tar(&p.join("a.tar"), &items(4));
            },
            "no WebDataset shards",
        ),
        (
            "a class tar without images",
            |p| {
                let mut outer = tar::Builder::new(fs::File::create(p).unwrap());
                let mut inner = tar::Builder::new(Vec::new());
                add(&mut inner, "x.jpg", b"x");
                add(&mut outer, "n1.tar", &inner.into_inner().unwrap());
                add(&mut outer, "n2.tar", &tar::Builder::new(Vec::new()).into_inner().unwrap());
                outer.finish().unwrap();
            },
            "n2",
        ),
        ("a range with a hole-{0..3}.tar", |_| (), "no file"),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (name, make, part) in CASES {
        let path = dir.path().join(name);
        make(&path);
        let message = open(&path, &OpenOptions::default()).err().unwrap_or_else(|| panic!("{name} was opened")).to_string();
        assert!(message.contains(part), "{name}: {message:?} does not say {part:?}");
        assert!(message.contains(dir.path().to_str().unwrap()), "{name}: {message:?} does not name the path");
    }
}

#[test]
fn parquet_files_with_wrong_columns_say_which_they_have() {
    use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int64Type};
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    let image = |value: Option<&[u8]>| value.map(|v| ByteArray::from(v.to_vec()));
    let write = |schema: &str, picture: Option<ByteArray>, label: Option<i64>| {
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let mut writer = SerializedFileWriter::new(fs::File::create(&path).unwrap(), schema, Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        while let Some(mut column) = group.next_column().unwrap() {
            use parquet::column::writer::ColumnWriter;
            match column.untyped() {
                ColumnWriter::ByteArrayColumnWriter(_) => {
                    let level = i16::from(picture.is_some());
                    let values: Vec<ByteArray> = picture.iter().cloned().collect();
                    column.typed::<ByteArrayType>().write_batch(&values, Some(&[level]), Some(&[0])).unwrap();
                }
                ColumnWriter::BoolColumnWriter(_) => {
                    column.typed::<BoolType>().write_batch(&[true], Some(&[1]), None).unwrap();
                }
                _ => {
                    let values: Vec<i64> = label.into_iter().collect();
                    column.typed::<Int64Type>().write_batch(&values, Some(&[i16::from(label.is_some())]), None).unwrap();
                }
            };
            column.close().unwrap();
        }
        group.close().unwrap();
        writer.close().unwrap();
    };
    let some = || image(Some(b"bytes"));
    for (schema, picture, label, part) in [
        ("message m { optional binary photo; optional int64 label; }", some(), Some(0), "no column of image bytes"),
        ("message m { optional binary image; optional int64 kind; }", some(), Some(0), "columns image, kind"),
        ("message m { optional int64 image; optional int64 label; }", None, Some(0), "holds no bytes of images"),
        ("message m { optional binary image; optional boolean label; }", some(), None, "where numbers or names are expected"),
        ("message m { repeated binary image; optional int64 label; }", some(), Some(0), "holds lists"),
        ("message m { optional binary image; optional int64 label; }", some(), None, "row 0 has no label"),
        ("message m { optional binary image; optional int64 label; }", some(), Some(-1), "a split without labels"),
        ("message m { optional binary image; optional int64 label; }", some(), Some(1 << 40), "not among its 1000000 classes"),
    ] {
        write(schema, picture, label);
        let message = open(&path, &OpenOptions::default()).err().unwrap_or_else(|| panic!("{schema} was opened")).to_string();
        assert!(message.contains(part) && message.contains("x.parquet"), "{message:?} does not say {part:?}");
    }
    write("message m { optional binary image; optional int64 label; }", None, Some(0));
    let source = open(&path, &OpenOptions::default()).unwrap();
    let error = source.read(0).unwrap_err();
    assert!(error.is_item_error() && error.to_string().contains("row 0: the row has no image bytes"), "{error}");
}

/// A cut at any block of an archive, plain or of archives, is seen.
#[test]
fn tars_cut_at_every_block_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, cut) = (dir.path().join("a.tar"), dir.path().join("cut.tar"));
    for nested in [false, true] {
        if nested {
            write_nested_tar(&path, &items(6));
        } else {
            let mut builder = tar::Builder::new(fs::File::create(&path).unwrap());
            for item in items(6) {
                add(&mut builder, &format!("{}/{}", CLASSES[item.label], item.file), &item.bytes);
            }
            builder.finish().unwrap();
        }
        let whole = fs::read(&path).unwrap();
        assert!(Tar::open(&path).is_ok());
        // One block of zeros is end enough.
        for len in (0..=whole.len() - 1024).step_by(512).chain((1..whole.len() - 1024).step_by(511)) {
            fs::write(&cut, &whole[..len]).unwrap();
            let error = Tar::open(&cut).err().unwrap_or_else(|| panic!("cut to {len} of {} was opened", whole.len()));
            assert!(matches!(error, DataError::BadTar { .. }), "{error}");
        }
    }
}
