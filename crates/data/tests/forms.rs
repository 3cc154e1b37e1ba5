//! One dataset in every form: the same items, labels and classes.

mod common;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::*;
use manyheads_data::source::folder::Folder;
use manyheads_data::source::packed::Packed;
use manyheads_data::source::parquet::Parquet;
use manyheads_data::source::{Form, OpenOptions, open};
use manyheads_data::{
    DataError, EvalTransform, Interpolation, Loader, PackOptions, Source, Transform, check_same_classes, pack, unpack,
};
use parquet::basic::{Compression, ZstdLevel};

/// Opens with the form found out, and checks what the notices say of it.
fn found(path: &Path, options: OpenOptions, form: &str) -> Box<dyn Source> {
    let source = open(path, &options).unwrap();
    assert!(source.notices()[0].ends_with(&format!("is {form}")), "{:?}", source.notices());
    assert!(source.notices()[1].contains("3 of ImageNet's 1000 classes"), "{:?}", source.notices());
    source
}

#[test]
fn six_forms_of_one_dataset_are_equal() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let items = items(60);
    write_folder(&at("folder"), &items);
    let labels = write_flat(&at("flat"), &items);
    write_nested_tar(&at("nested.tar"), &items);
    write_webdataset(&at("shards"), &items);
    write_parquet(&at("train-00000-of-00001.parquet"), &items, Compression::SNAPPY, 25, true);
    let folder = found(&at("folder"), OpenOptions::default(), "a folder of class folders");
    write_packed(&at("packed.pack"), &*folder);
    let flat = OpenOptions { labels: Some(labels), ..OpenOptions::default() };
    let sources: Vec<Arc<dyn Source>> = vec![
        folder.into(),
        found(&at("flat"), flat, "a folder of images with labels beside it").into(),
        found(&at("nested.tar"), OpenOptions::default(), "a tar of classes").into(),
        found(&at("shards"), OpenOptions::default(), "WebDataset shards").into(),
        found(&at("train-00000-of-00001.parquet"), OpenOptions::default(), "parquet files").into(),
        found(&at("packed.pack"), OpenOptions::default(), "a packed file").into(),
    ];
    let transform = Transform::Eval(EvalTransform {
        size: [16, 16],
        channels: 1,
        crop_pct: 1.0,
        interpolation: Interpolation::Bilinear,
        mean: vec![0.5],
        std: vec![0.5],
        ..EvalTransform::default()
    });
    let mut first = None;
    for source in sources {
        assert_eq!(source.classes(), CLASSES);
        assert_eq!(contents(&*source), items);
        // Out of order and into a buffer that is used again.
        let mut buffer = vec![1; 7];
        for i in [59, 0, 31, 30, 31] {
            assert_eq!(source.read_into(i, &mut buffer).unwrap(), items[i].bytes);
            assert!(source.name(i).contains(&items[i].file[..items[i].file.len() - 4]), "{}", source.name(i));
        }
        let loader = Loader::new(source, transform.clone(), manyheads_data::LoaderConfig { workers: 2, ..CONFIG }).unwrap();
        let batches: Vec<_> = loader.epoch(2, 0).collect::<Result<_, _>>().unwrap();
        assert!(*first.get_or_insert_with(|| batches.clone()) == batches);
    }
}

/// The labels of ILSVRC2012's validation images are known; other flat folders say what they need.
#[test]
fn flat_validation_images_need_no_labels() {
    let dir = tempfile::tempdir().unwrap();
    let val = dir.path().join("val");
    fs::create_dir(&val).unwrap();
    let mut tar = tar::Builder::new(fs::File::create(dir.path().join("ILSVRC2012_img_val.tar")).unwrap());
    for (i, item) in items(3).iter().enumerate() {
        let name = format!("ILSVRC2012_val_{:08}.JPEG", i + 1);
        fs::write(val.join(&name), &item.bytes).unwrap();
        add(&mut tar, &name, &item.bytes);
    }
    tar.finish().unwrap();
    drop(tar);
    for path in [val.clone(), dir.path().join("ILSVRC2012_img_val.tar")] {
        let source = open(&path, &OpenOptions::default()).unwrap();
        assert_eq!(source.classes().len(), 1000);
        let labels: Vec<usize> = (0..3).map(|i| source.label(i)).collect();
        // In the order of labels: the second image is an alp.
        assert_eq!(labels, [65, 230, 970]);
        let notices = source.notices().join("\n");
        assert!(notices.contains("known by their file names"), "{notices}");
        assert!(notices.contains("49997 of 50000 labels have no image here"), "{notices}");
        // Ground truth in another numbering gives the same.
        let truth: String =
            (0..50_000).map(|i| format!("{}\n", (manyheads_data::imagenet::val_label(i) * 7 + 3) % 1000 + 1)).collect();
        let file = dir.path().join("ILSVRC2012_validation_ground_truth.txt");
        fs::write(&file, truth).unwrap();
        let source = open(&path, &OpenOptions { labels: Some(file), ..OpenOptions::default() }).unwrap();
        assert_eq!((0..3).map(|i| source.label(i)).collect::<Vec<_>>(), labels);
        let notices = source.notices().join("\n");
        assert!(notices.contains("ids in an order other than that of the labels"), "{notices}");
    }
    fs::write(val.join("other.jpg"), "x").unwrap();
    assert!(matches!(open(&val, &OpenOptions::default()).err().unwrap(), DataError::FlatFolder { count: 4, .. }));
    let labels = dir.path().join("labels.csv");
    fs::write(&labels, "file,label\nILSVRC2012_val_00000001.JPEG,cat\n").unwrap();
    let message = open(&val, &OpenOptions { labels: Some(labels), ..OpenOptions::default() }).err().unwrap().to_string();
    assert!(message.contains("3 of 4 images have no label") && message.contains("ILSVRC2012_val_00000002.JPEG"), "{message}");
}

#[test]
fn packing_and_unpacking_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let items = items(60);
    write_folder(&at("a"), &items);
    let folder = Folder::open(at("a")).unwrap();
    write_packed(&at("a.pack"), &folder);
    assert!(!at("a.pack.partial").exists());
    let packed = Packed::open(at("a.pack")).unwrap();
    check_same_classes(&folder, &packed).unwrap();
    assert_eq!(packed.shrunk(), None);
    packed.verify(2, &AtomicBool::new(false), |_| ()).unwrap();
    assert_eq!(unpack(at("a.pack"), at("b")).unwrap(), 60);
    assert_eq!(contents(&Folder::open(at("b")).unwrap()), items);
    // The same source gives the same file, and none is replaced unasked.
    write_packed(&at("b.pack"), &Folder::open(at("b")).unwrap());
    assert!(fs::read(at("a.pack")).unwrap() == fs::read(at("b.pack")).unwrap());
    let again = pack(&folder, at("a.pack"), &PackOptions::default(), &AtomicBool::new(false), |_| ());
    assert!(again.unwrap_err().to_string().contains("there is such a file already"));
    assert!(unpack(at("a.pack"), at("b")).is_err(), "files were overwritten");
}

#[test]
fn stopped_packing_goes_on_after_the_last_whole_item() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    write_folder(&at("a"), &items(60));
    let folder = Folder::open(at("a")).unwrap();
    write_packed(&at("whole.pack"), &folder);
    let whole = fs::read(at("whole.pack")).unwrap();
    let options = PackOptions::default();
    let stop = AtomicBool::new(false);
    let stopped = pack(&folder, at("x.pack"), &options, &stop, |p| stop.store(p.items == 20, Ordering::Relaxed));
    assert!(matches!(stopped, Err(DataError::Cancelled { .. })), "{stopped:?}");
    assert!(!at("x.pack").exists());
    let partial = fs::read(at("x.pack.partial")).unwrap();
    let go_on = |beginning: &[u8]| {
        let _ = fs::remove_file(at("x.pack"));
        fs::write(at("x.pack.partial"), beginning).unwrap();
        let report = pack(&folder, at("x.pack"), &options, &AtomicBool::new(false), |_| ()).unwrap();
        assert!(fs::read(at("x.pack")).unwrap() == whole);
        report.resumed
    };
    assert_eq!(go_on(&partial), 20);
    // A torn tail, whatever it is, is not trusted.
    assert_eq!(go_on(&partial[..partial.len() - 5]), 19);
    assert_eq!(go_on(&[&partial[..], &[0; 5000]].concat()), 20);
    let mut damaged = partial.clone();
    damaged[4096 + 24 + 10] ^= 1;
    assert_eq!(go_on(&damaged), 0);
    for cut in [0, 10, 4095, 4096, 4100, 5000] {
        assert!(go_on(&partial[..cut.min(partial.len())]) <= 1, "cut to {cut}");
    }
    // All written, but for the name.
    assert_eq!(go_on(&whole), 60);
    // The beginning of another dataset is not taken for this one's.
    fs::remove_file(at("x.pack")).unwrap();
    fs::write(at("x.pack.partial"), &partial).unwrap();
    let smaller = PackOptions { short_side: Some(20), ..PackOptions::default() };
    let message = pack(&folder, at("x.pack"), &smaller, &AtomicBool::new(false), |_| ()).unwrap_err().to_string();
    assert!(message.contains("with other settings"), "{message}");
    let overwrite = PackOptions { overwrite: true, ..smaller };
    let report = pack(&folder, at("x.pack"), &overwrite, &AtomicBool::new(false), |_| ()).unwrap();
    assert_eq!((report.resumed, report.shrunk), (0, 60));
}

#[test]
fn shrunk_images_have_the_short_side_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    write_folder(&at("a"), &items(6));
    let small = "tests/fixtures/modes/rgb.png";
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(small), at("a").join(CLASSES[0]).join("z.png")).unwrap();
    let folder = Folder::open(at("a")).unwrap();
    let options = PackOptions { short_side: Some(20), quality: 95, ..PackOptions::default() };
    pack(&folder, at("a.pack"), &options, &AtomicBool::new(false), |_| ()).unwrap();
    let packed = Packed::open(at("a.pack")).unwrap();
    assert_eq!(packed.shrunk(), Some((20, 95)));
    assert!(packed.notices()[0].contains("shrunk"));
    for i in 0..Source::len(&packed) {
        let before = manyheads_data::decode_rgb(&folder.read(i).unwrap(), "").unwrap();
        let after = manyheads_data::decode_rgb(&packed.read(i).unwrap(), "").unwrap();
        assert_eq!(after.width.min(after.height), before.width.min(before.height).min(20));
        assert_eq!(packed.label(i), folder.label(i));
    }
    for (options, key) in [
        (PackOptions { quality: 0, ..PackOptions::default() }, "quality"),
        (PackOptions { short_side: Some(0), ..PackOptions::default() }, "short_side"),
    ] {
        let error = pack(&folder, at("no.pack"), &options, &AtomicBool::new(false), |_| ()).unwrap_err();
        assert!(matches!(error, DataError::Config { key: k, .. } if k == key));
    }
    fs::write(at("a").join(CLASSES[1]).join("broken.png"), "no image").unwrap();
    let folder = Folder::open(at("a")).unwrap();
    let message = pack(&folder, at("no.pack"), &options, &AtomicBool::new(false), |_| ()).unwrap_err().to_string();
    assert!(message.contains("broken.png") && !at("no.pack").exists(), "{message}");
}

/// Every bit of the file is covered by some checksum.
#[test]
fn a_flipped_bit_anywhere_in_a_packed_file_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let items = items(9);
    write_folder(&at("a"), &items);
    write_packed(&at("a.pack"), &Folder::open(at("a")).unwrap());
    let whole = fs::read(at("a.pack")).unwrap();
    let data: usize = items.iter().map(|item| 24 + item.bytes.len()).sum();
    let check = |bytes: &[u8]| {
        fs::write(at("b.pack"), bytes).unwrap();
        let packed = Packed::open(at("b.pack"))?;
        packed.verify(1, &AtomicBool::new(false), |_| ())
    };
    check(&whole).unwrap();
    for byte in (0..whole.len()).step_by(11).chain(4090..4130).chain(whole.len() - 200..whole.len()) {
        let mut damaged = whole.clone();
        damaged[byte] ^= 1 << (byte % 8);
        let error = check(&damaged).expect_err("a flipped bit went unseen").to_string();
        if (4096..4096 + data).contains(&byte) {
            let mut end = 4096;
            let hit = items.iter().find(|item| {
                end += 24 + item.bytes.len();
                byte < end
            });
            assert!(error.contains(&hit.unwrap().file), "byte {byte}: {error}");
        } else {
            assert!(error.contains("b.pack"), "byte {byte}: {error}");
        }
    }
    for len in (0..whole.len()).step_by(97) {
        assert!(check(&whole[..len]).is_err(), "cut to {len}");
    }
    assert!(check(&[&whole[..], b"x"].concat()).unwrap_err().to_string().contains("something appended"));
}

#[test]
fn parquet_files_in_several_layouts() {
    let dir = tempfile::tempdir().unwrap();
    let items = items(60);
    for (i, (compression, rows)) in [
        (Compression::UNCOMPRESSED, 60),
        (Compression::SNAPPY, 7),
        (Compression::ZSTD(ZstdLevel::default()), 31),
        (Compression::LZ4_RAW, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = dir.path().join(i.to_string()).join("data");
        fs::create_dir_all(&folder).unwrap();
        for (shard, part) in items.chunks(23).enumerate() {
            write_parquet(&folder.join(format!("train-{shard:05}-of-00003.parquet")), part, compression, rows, true);
        }
        write_parquet(&folder.join("test-00000-of-00001.parquet"), &items[..5], compression, rows, true);
        let root = folder.parent().unwrap();
        let message = open(root, &OpenOptions::default()).err().unwrap().to_string();
        assert!(message.contains("several splits: test, train"), "{message}");
        let source = open(root, &OpenOptions { split: Some("train".into()), ..OpenOptions::default() }).unwrap();
        assert_eq!(contents(&*source), items);
        assert!(source.name(24).contains("train-00001-of-00003.parquet:row 1 ("), "{}", source.name(24));
        std::thread::scope(|scope| {
            for start in 0..4 {
                let (source, items) = (&source, &items);
                scope.spawn(move || {
                    (0..60)
                        .for_each(|i| assert_eq!(*source.read((i * 7 + start) % 60).unwrap(), items[(i * 7 + start) % 60].bytes))
                });
            }
        });
    }
    let plain = dir.path().join("plain.parquet");
    write_parquet(&plain, &items, Compression::SNAPPY, 20, false);
    let source = Parquet::open(&plain, None).unwrap();
    assert_eq!(source.classes(), ["0", "1", "2"]);
    assert!(source.notices()[0].contains("numbers without names"));
}

/// A file written by pyarrow with the columns and metadata that `datasets` writes.
#[test]
fn parquet_as_pyarrow_writes_it() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/source/pyarrow.parquet");
    let source = Parquet::open(path, None).unwrap();
    assert_eq!(source.classes(), ["cat", "dog"]);
    assert_eq!(Source::len(&source), 12);
    for i in 0..12 {
        assert_eq!(source.label(i), i % 2);
        assert_eq!(*source.read(i).unwrap(), [&[0xff, 0xd8][..], &[i as u8].repeat(100 * i)].concat());
        let path = format!("{}/{i:02}.jpg", source.classes()[i % 2]);
        assert_eq!(source.relative_path(i), path.as_bytes());
    }
}

#[test]
fn the_form_can_be_named_and_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    write_folder(&at("a"), &items(6));
    write_nested_tar(&at("a.tar"), &items(6));
    let named = |form| OpenOptions { form, ..OpenOptions::default() };
    assert_eq!(open(at("a"), &named(Form::Folder)).unwrap().len(), 6);
    assert_eq!(open(at("a.tar"), &named(Form::Tar)).unwrap().len(), 6);
    for (path, form) in
        [("a", Form::Tar), ("a", Form::Packed), ("a.tar", Form::Folder), ("a.tar", Form::Parquet), ("a.tar", Form::Packed)]
    {
        assert!(open(at(path), &named(form)).is_err(), "{path} as {form:?}");
    }
    let names = at("names.txt");
    fs::write(&names, "a\nb\n").unwrap();
    let message = open(at("a"), &OpenOptions { class_names: Some(names), ..OpenOptions::default() }).err().unwrap().to_string();
    assert!(message.contains("class names given for a dataset in the form"), "{message}");
}

#[test]
fn webdataset_labels_and_names() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, members: &[(&str, &str)]| {
        let mut builder = tar::Builder::new(fs::File::create(dir.path().join(name)).unwrap());
        members.iter().for_each(|(path, text)| add(&mut builder, path, text.as_bytes()));
        builder.finish().unwrap();
        dir.path().join(name)
    };
    let open = |path: &Path, names: Option<&[&str]>| {
        let names = names.map(|names| names.iter().map(|&n| n.to_owned()).collect());
        manyheads_data::source::webdataset::WebDataset::open(path, names, None)
    };
    let numbers =
        write("n.tar", &[("0.jpg", "a"), ("0.cls", "2"), ("1.jpg", "b"), ("1.json", r#"{"label": 0}"#), ("1.txt", "x")]);
    let source = open(&numbers, None).unwrap();
    assert_eq!(source.classes(), ["0", "1", "2"]);
    assert_eq!(source.read(1).unwrap().as_ref(), b"a");
    assert!(source.notices().join("\n").contains("1 file ignored: neither image nor label"), "{:?}", source.notices());
    assert_eq!(open(&numbers, Some(&["x", "y", "z"])).unwrap().classes(), ["x", "y", "z"]);
    let message = open(&numbers, Some(&["x", "y"])).err().unwrap().to_string();
    assert!(message.contains("the label of 0.jpg is not among the 2 classes"), "{message}");
    let text = write("t.tar", &[("a/0.png", "a"), ("a/0.cls", "dog"), ("b/0.png", "b"), ("b/0.cls", "cat")]);
    assert_eq!(open(&text, None).unwrap().classes(), ["cat", "dog"]);
    let named = write(
        "j.tar",
        &[
            ("0.jpg", "a"),
            ("0.json", r#"{"label": 1, "class_name": "n2"}"#),
            ("1.jpg", "b"),
            ("1.json", r#"{"label": 0, "class_name": "n7"}"#),
        ],
    );
    assert_eq!(open(&named, None).unwrap().classes(), ["n7", "n2"]);
    let both = write("s-0.tar", &[("0.jpg", "a"), ("0.cls", "0")]);
    write("s-1.tar", &[("0.jpg", "b"), ("0.cls", "0")]);
    assert_eq!(Source::len(&open(&both.with_file_name("s-{0..1}.tar"), None).unwrap()), 2);
    assert!(open(&both.with_file_name("s-{0..2}.tar"), None).err().unwrap().to_string().contains("s-2.tar"));
    for (members, part) in [
        (vec![("0.jpg", "a")], "no label"),
        (vec![("0.jpg", "a"), ("0.cls", "")], "0.cls is empty"),
        (vec![("0.jpg", "a"), ("0.cls", "99999999999")], "which is no class"),
        (vec![("0.jpg", "a"), ("0.json", "{")], "0.json is not JSON"),
        (vec![("0.jpg", "a"), ("0.png", "b"), ("0.cls", "1")], "several images"),
        (vec![("0.jpg", "a"), ("0.cls", "1"), ("1.jpg", "b"), ("1.cls", "cat")], "labels are numbers and 1 are names"),
        (vec![("0.cls", "1")], "no images found"),
    ] {
        let message = open(&write("bad.tar", &members), None).err().unwrap().to_string();
        assert!(message.contains(part), "{message}");
    }
}
