//! What packing must not touch, and what it must not mix.

mod common;

use std::borrow::Cow;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use common::*;
use manyheads_data::source::folder::Folder;
use manyheads_data::source::packed::Packed;
use manyheads_data::source::parquet::Parquet;
use manyheads_data::source::tar::Tar;
use manyheads_data::{DataError, PackOptions, Source, pack, unpack};
use parquet::basic::{BrotliLevel, Compression, GzipLevel};

const OVERWRITE: PackOptions = PackOptions { short_side: None, quality: 90, threads: 1, overwrite: true };

fn packed(source: &dyn Source, out: &Path, options: &PackOptions) -> Result<(), String> {
    pack(source, out, options, &AtomicBool::new(false), |_| ()).map(|_| ()).map_err(|e| e.to_string())
}

#[test]
fn files_that_are_not_packings_are_never_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    write_folder(&at("a"), &items(6));
    let folder = Folder::open(at("a")).unwrap();
    // Of another kind, and the inputs themselves: by name, and by a second name.
    fs::write(at("x.pack.partial"), "my notes").unwrap();
    write_packed(&at("in.pack.partial"), &folder);
    let input = Packed::open(at("in.pack.partial")).unwrap();
    write_nested_tar(&at("t.pack.partial"), &items(6));
    fs::hard_link(at("t.pack.partial"), at("t.tar")).unwrap();
    let tar = Tar::open(at("t.tar")).unwrap();
    let shrunk = PackOptions { short_side: Some(9), ..OVERWRITE };
    for (source, name) in [(&folder as &dyn Source, "x.pack"), (&input, "in.pack"), (&tar, "t.pack")] {
        let partial = at(&format!("{name}.partial"));
        let before = fs::read(&partial).unwrap();
        for options in [&PackOptions::default(), &OVERWRITE, &shrunk] {
            let message = packed(source, &at(name), options).unwrap_err();
            assert!(message.contains(&format!("{name}.partial")), "{message}");
            assert!(fs::read(&partial).unwrap() == before && !at(name).exists());
        }
    }
    // The dataset is not replaced by its packing either.
    let message = packed(&input, &at("in.pack.partial"), &OVERWRITE).unwrap_err();
    assert!(message.contains("the dataset that is to be packed"), "{message}");
}

#[test]
fn links_folders_and_devices_are_never_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    write_folder(&at("a"), &items(4));
    let folder = Folder::open(at("a")).unwrap();
    fs::write(at("target"), "kept").unwrap();
    fs::create_dir(at("folder")).unwrap();
    symlink(at("target"), at("link")).unwrap();
    symlink("/dev/null", at("null")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    symlink(at("target"), at("aside.partial")).unwrap();
    for name in ["folder", "link", "null", "dangling", "aside"] {
        for options in [&PackOptions::default(), &OVERWRITE] {
            let message = packed(&folder, &at(name), options).unwrap_err();
            assert!(message.contains(name), "{message}");
        }
    }
    assert!(["link", "null", "dangling", "aside.partial"].iter().all(|name| at(name).is_symlink()) && at("folder").is_dir());
    assert_eq!(fs::read(at("target")).unwrap(), b"kept");
    // What is put there while packing goes on is not replaced either, and nothing is lost.
    let put = |p: manyheads_data::PackProgress| {
        if p.items == 4 {
            fs::write(at("late"), "kept").unwrap();
        }
    };
    let late = pack(&folder, at("late"), &PackOptions::default(), &AtomicBool::new(false), put);
    assert!(late.unwrap_err().to_string().contains("there is such a file already"));
    assert_eq!(fs::read(at("late")).unwrap(), b"kept");
    assert!(at("late.partial").is_file());
    // A regular file is replaced where that is allowed.
    packed(&folder, &at("target"), &OVERWRITE).unwrap();
    Packed::open(at("target")).unwrap();
}

#[test]
fn packing_does_not_go_on_with_images_that_changed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let mut images = items(12);
    write_folder(&at("a"), &images);
    write_nested_tar(&at("a.tar"), &images);
    write_parquet(&at("a.parquet"), &images, Compression::UNCOMPRESSED, 5, true);
    let open = |name: &str| -> Box<dyn Source> {
        match name {
            "a" => Box::new(Folder::open(at(name)).unwrap()),
            "a.tar" => Box::new(Tar::open(at(name)).unwrap()),
            _ => Box::new(Parquet::open(at(name), None).unwrap()),
        }
    };
    let out = |name: &str| at(&format!("{name}.pack"));
    for name in ["a", "a.tar", "a.parquet"] {
        let stop = AtomicBool::new(false);
        let stopped =
            pack(&*open(name), out(name), &PackOptions::default(), &stop, |p| stop.store(p.items == 5, Ordering::Relaxed));
        assert!(matches!(stopped, Err(DataError::Cancelled { .. })), "{stopped:?}");
    }
    images.iter_mut().for_each(|item| item.bytes.extend(b"other"));
    write_folder(&at("a"), &images);
    write_nested_tar(&at("a.tar"), &images);
    write_parquet(&at("a.parquet"), &images, Compression::UNCOMPRESSED, 5, true);
    for name in ["a", "a.tar", "a.parquet"] {
        let message = packed(&*open(name), &out(name), &PackOptions::default()).unwrap_err();
        assert!(message.contains("the dataset changed"), "{name}: {message}");
        packed(&*open(name), &out(name), &OVERWRITE).unwrap();
        assert_eq!(contents(&Packed::open(out(name)).unwrap()), images);
    }
}

/// Images under paths of any kind.
struct Odd {
    classes: Vec<String>,
    items: Vec<(usize, &'static [u8])>,
    image: Vec<u8>,
}

impl Source for Odd {
    fn len(&self) -> usize {
        self.items.len()
    }
    fn classes(&self) -> &[String] {
        &self.classes
    }
    fn label(&self, index: usize) -> usize {
        self.items[index].0
    }
    fn name(&self, index: usize) -> String {
        index.to_string()
    }
    fn read(&self, _: usize) -> Result<Cow<'_, [u8]>, DataError> {
        Ok(Cow::Borrowed(&self.image))
    }
    fn relative_path(&self, index: usize) -> Vec<u8> {
        self.items[index].1.to_vec()
    }
    fn notices(&self) -> &[String] {
        &[]
    }
}

#[test]
fn whatever_was_packed_can_be_unpacked() {
    let dir = tempfile::tempdir().unwrap();
    let source = Odd {
        classes: ["cat", "", "a/b", "a_b", "cat"].map(str::to_owned).to_vec(),
        items: vec![
            (0, b"cat/x.png"),
            (0, b"cat/x.png"),
            (0, b"cat/00000001.png"),
            (0, b"cat/../../x.png"),
            (0, b"/etc/x.png"),
            (0, b"cat/nul\0.png"),
            (0, b"cat/no extension"),
            (0, b"cat/deep/y.png"),
            (0, b"cat/z.png"),
            (0, b"cat/z.png/w.png"),
            (0, b"x.png"),
            (0, b"cat/.hidden.png"),
            (1, b"/x.png"),
            (1, b""),
            (2, b"a_b/x.png"),
            (3, b"a_b/x.png"),
            (3, b"a_b/y.png"),
        ],
        image: items(1).remove(0).bytes,
    };
    packed(&source, &dir.path().join("a.pack"), &PackOptions::default()).unwrap();
    let file = Packed::open(dir.path().join("a.pack")).unwrap();
    let path = |item: usize| String::from_utf8(file.relative_path(item)).unwrap();
    for (item, expected) in [
        (0, "cat/x.png"),
        (1, "cat/00000001-2.png"),
        (2, "cat/00000001.png"),
        (3, "cat/00000003.png"),
        (6, "cat/00000006.png"),
        (7, "cat/deep/y.png"),
        (8, "cat/00000008.png"),
        (9, "cat/z.png/w.png"),
        (12, "class-1/00000012.png"),
        (14, "a_b/x.png"),
        (15, "class-3/00000015.png"),
    ] {
        assert_eq!(path(item), expected);
    }
    assert_eq!(unpack(dir.path().join("a.pack"), dir.path().join("b")).unwrap(), source.len());
    let folder = Folder::open(dir.path().join("b")).unwrap();
    let counts = |source: &dyn Source| {
        let mut counts = vec![0; source.classes().len()];
        (0..source.len()).for_each(|item| counts[source.label(item)] += 1);
        counts.retain(|&count| count > 0);
        counts.sort_unstable();
        counts
    };
    assert_eq!((folder.len(), counts(&folder)), (source.len(), counts(&source)));
}

#[test]
fn codecs_that_are_not_read_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    write_parquet(&path, &items(6), Compression::SNAPPY, 3, true);
    let plain = fs::read(&path).unwrap();
    // The writer cannot make such files, so the codec is changed where the footer gives it: a field of type i32 after the list
    // of the column's path.
    for (codec, name) in
        [(Compression::GZIP(GzipLevel::default()), "gzip"), (Compression::BROTLI(BrotliLevel::default()), "brotli")]
    {
        let number = if matches!(codec, Compression::GZIP(_)) { 4 } else { 8 };
        let mut changed = plain.clone();
        let end = changed.len();
        let at = (end / 2..end - 8).find(|&at| changed[at - 5..at].ends_with(b"bytes") && changed[at..at + 2] == [0x15, 2]);
        changed[at.expect("no codec found") + 1] = number;
        fs::write(&path, changed).unwrap();
        let message = Parquet::open(&path, None).err().unwrap().to_string();
        assert!(message.contains(&format!("image.bytes is compressed with {name}")), "{message}");
        assert!(message.contains("snappy"), "{message}");
    }
}
