//! Folder, tar and embedded sources: order, labels, and the ways a dataset is usually wrong.

use std::fs;
use std::path::Path;

use burn_dataset::Dataset;
use manyheads_data::source::embedded::{CLASSES, FashionMnist, LICENSE};
use manyheads_data::source::folder::Folder;
use manyheads_data::source::tar::Tar;
use manyheads_data::{AsDataset, DataError, EncodedImage, Source, check_same_classes, decode_rgb};
use std::sync::Arc;

/// Writes files whose content is their own path.
fn tree(root: &Path, files: &[&str]) {
    for file in files {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
}

/// Packs a tree below `prefix` in whatever order the file system lists it, folders included.
fn pack(root: &Path, prefix: &str, tar: &Path) {
    let mut builder = tar::Builder::new(fs::File::create(tar).unwrap());
    builder.append_dir_all(prefix, root).unwrap();
    builder.finish().unwrap();
}

fn items(source: &dyn Source) -> Vec<(String, Vec<u8>)> {
    (0..source.len()).map(|i| (source.classes()[source.label(i)].clone(), source.read(i).unwrap().into_owned())).collect()
}

const TREE: [&str; 9] = [
    "dog/b.jpg",
    "dog/a.JPEG",
    "cat/x.png",
    "cat/sub/deeper/z.webp",
    "cat/sub-2/y.jpg",
    "fox/10.jpg",
    "fox/9.jpg",
    "fox/a b.jpg",
    "ant/ünï.png",
];

#[test]
fn folder_and_tar_give_the_same_items_in_the_same_order() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("data");
    tree(&root, &TREE);
    tree(&root, &["README.txt", "cat/notes.txt", "cat/.hidden.jpg", "dog/old.bmp"]);
    let folder = Folder::open(&root).unwrap();
    assert_eq!(folder.classes(), ["ant", "cat", "dog", "fox"]);
    let order: Vec<String> = items(&folder).into_iter().map(|(_, bytes)| String::from_utf8(bytes).unwrap()).collect();
    let expected = [
        "ant/ünï.png",
        "cat/sub-2/y.jpg",
        "cat/sub/deeper/z.webp",
        "cat/x.png",
        "dog/a.JPEG",
        "dog/b.jpg",
        "fox/10.jpg",
        "fox/9.jpg",
        "fox/a b.jpg",
    ];
    assert_eq!(order, expected);
    assert_eq!(folder.name(3), root.join("cat/x.png").display().to_string());

    for prefix in ["", "./", "train", "some/where/train"] {
        let tar = dir.path().join("a.tar");
        pack(&root, prefix, &tar);
        let archive = Tar::open(&tar).unwrap();
        assert_eq!(archive.classes(), folder.classes());
        assert_eq!(items(&archive), items(&folder), "prefix {prefix:?}");
        assert_eq!(archive.name(3), format!("{}:cat/x.png", tar.display()));
    }
}

#[test]
fn what_is_left_out_is_counted_and_listed() {
    let dir = tempfile::tempdir().unwrap();
    tree(
        dir.path(),
        &["a/1.jpg", "a/r1.txt", "a/r2.txt", "b/r3.txt", "b/r4.txt", "b/1.jpg", "b/old.gif", ".DS_Store", "loose.png"],
    );
    let folder = Folder::open(dir.path()).unwrap();
    let notices = folder.notices().join("\n");
    assert!(notices.contains("4 files ignored: not images (a/r1.txt, a/r2.txt, b/r3.txt, …)"), "{notices}");
    assert!(
        notices.contains("1 file ignored: image formats that are not read here, convert them to PNG or JPEG (b/old.gif)"),
        "{notices}"
    );
    assert!(notices.contains("1 file ignored: hidden (.DS_Store)"), "{notices}");
    assert!(notices.contains("1 file ignored: images outside of any class folder (loose.png)"), "{notices}");
    assert_eq!(Source::len(&folder), 2);
}

/// Folders 0 to 11 sorted as text put 10 and 11 before 2.
#[test]
fn imagenetv2_4_numeric_class_folders() {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<String> = (0..12).rev().map(|i| format!("{i}/x.jpg")).collect();
    tree(dir.path(), &files.iter().map(String::as_str).collect::<Vec<_>>());
    let folder = Folder::open(dir.path()).unwrap();
    let expected: Vec<String> = (0..12).map(|i| i.to_string()).collect();
    assert_eq!(folder.classes(), expected);
    assert!(folder.notices()[0].contains(r#"numeric order: label 0 is "0", label 11 is "11""#), "{:?}", folder.notices());
    // One name that is no number, and the order is by text again.
    tree(dir.path(), &["10x/x.jpg"]);
    let folder = Folder::open(dir.path()).unwrap();
    assert_eq!(folder.classes()[..4], ["0", "1", "10", "10x"]);
    assert!(folder.notices().is_empty());
}

/// ILSVRC2012's validation images unpack into one folder; labels from that would be noise.
#[test]
fn timm_1081_flat_validation_folder() {
    let dir = tempfile::tempdir().unwrap();
    let val = dir.path().join("val");
    tree(&val, &["ILSVRC2012_val_00000002.JPEG", "ILSVRC2012_val_00000001.JPEG"]);
    let check = |error: DataError| {
        assert!(matches!(error, DataError::FlatFolder { count: 2, .. }), "{error}");
        let message = error.to_string();
        assert!(message.contains("ILSVRC2012_val_00000001.JPEG") && message.contains("sub-folder"), "{message}");
    };
    check(Folder::open(&val).err().unwrap());
    check(Folder::open(dir.path()).err().unwrap());
    for prefix in ["", "val"] {
        pack(&val, prefix, &dir.path().join("v.tar"));
        check(Tar::open(dir.path().join("v.tar")).err().unwrap());
    }
}

#[test]
fn the_folder_above_the_splits_is_not_a_dataset() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), &["train/cat/1.jpg", "val/cat/2.jpg"]);
    let message = Folder::open(dir.path()).err().unwrap().to_string();
    assert!(message.contains("train, val are splits") && message.ends_with("/train"), "{message}");
}

#[test]
fn empty_classes_and_folders_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let message = Folder::open(dir.path()).err().unwrap().to_string();
    assert!(message.contains("no images found"), "{message}");
    tree(dir.path(), &["a/1.jpg", "b/readme.txt"]);
    fs::create_dir(dir.path().join("c")).unwrap();
    let tar = dir.path().with_extension("tar");
    pack(dir.path(), "", &tar);
    for error in [Folder::open(dir.path()).err().unwrap(), Tar::open(&tar).err().unwrap()] {
        assert!(matches!(&error, DataError::EmptyClass { class, .. } if class == "b" || class == "c"), "{error}");
    }
    fs::remove_file(tar).unwrap();
    let missing = Folder::open(dir.path().join("nowhere")).err().unwrap();
    assert!(matches!(&missing, DataError::Io { name, .. } if name.ends_with("nowhere")), "{missing}");
}

#[test]
fn links_are_followed_and_circles_end() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), &["store/one.jpg", "data/a/x.jpg"]);
    std::os::unix::fs::symlink("../store", dir.path().join("data/b")).unwrap();
    std::os::unix::fs::symlink("../../store/one.jpg", dir.path().join("data/a/y.jpg")).unwrap();
    let folder = Folder::open(dir.path().join("data")).unwrap();
    assert_eq!(folder.classes(), ["a", "b"]);
    assert_eq!(Source::len(&folder), 3);
    assert_eq!(folder.read(1).unwrap().as_ref(), b"store/one.jpg");
    std::os::unix::fs::symlink(".", dir.path().join("data/a/loop")).unwrap();
    let message = Folder::open(dir.path().join("data")).err().unwrap().to_string();
    assert!(message.contains("circle") || message.contains("symbolic links"), "{message}");
}

#[test]
fn a_file_that_goes_away_is_named() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), &["a/1.jpg", "a/2.jpg"]);
    let folder = Folder::open(dir.path()).unwrap();
    fs::remove_file(dir.path().join("a/2.jpg")).unwrap();
    let message = folder.read(1).unwrap_err().to_string();
    assert!(message.contains("a/2.jpg"), "{message}");
    assert!(folder.read(0).is_ok());
}

#[test]
fn tars_that_are_cut_compressed_or_none_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("data");
    tree(&root, &["a/1.jpg", "a/2.jpg", "b/1.jpg"]);
    fs::write(root.join("b/1.jpg"), vec![7u8; 3000]).unwrap();
    let tar = dir.path().join("a.tar");
    pack(&root, "", &tar);
    let whole = fs::read(&tar).unwrap();
    let cut = dir.path().join("cut.tar");
    // Within data, within a header, and after the last member.
    for len in [whole.len() - 1024, whole.len() - 1024 - 600, 700, 100, 0] {
        fs::write(&cut, &whole[..len]).unwrap();
        let error = Tar::open(&cut).err().unwrap_or_else(|| panic!("cut to {len} of {} opened", whole.len()));
        let message = error.to_string();
        assert!(matches!(error, DataError::BadTar { .. }), "{message}");
        assert!(message.contains("cut.tar: at byte "), "{message}");
    }
    fs::write(&cut, b"\x1f\x8b\x08\0\0\0\0\0").unwrap();
    let message = Tar::open(&cut).err().unwrap().to_string();
    assert!(message.contains("gzip") && message.contains("gunzip --keep"), "{message}");
    fs::write(&cut, vec![b'x'; 4096]).unwrap();
    assert!(matches!(Tar::open(&cut).err().unwrap(), DataError::BadTar { offset: 0, .. }));
    assert!(matches!(Tar::open(dir.path().join("none.tar")).err().unwrap(), DataError::Io { .. }));
}

/// Long names, pax headers, replaced and hidden members, and links, as tools write them.
#[test]
fn tar_members_of_all_kinds() {
    let dir = tempfile::tempdir().unwrap();
    let tar = dir.path().join("a.tar");
    let mut builder = tar::Builder::new(fs::File::create(&tar).unwrap());
    let mut add = |path: &str, data: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, data).unwrap();
    };
    let long = format!("cat/{}.jpg", "x".repeat(180));
    add("cat/a.jpg", b"old");
    add(&long, b"long");
    add("cat/a.jpg", b"new");
    add("cat/._a.jpg", b"resource fork");
    builder.append_pax_extensions([("path", "dog/p\u{e4}x.jpg".as_bytes())]).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(3);
    header.set_path("short").unwrap();
    header.set_cksum();
    builder.append(&header, &b"pax"[..]).unwrap();
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    builder.append_link(&mut header, "dog/link.jpg", "../cat/a.jpg").unwrap();
    builder.finish().unwrap();
    drop(builder);

    let archive = Tar::open(&tar).unwrap();
    let found = items(&archive);
    let expected = [("cat", "new"), ("cat", "long"), ("dog", "pax")];
    assert_eq!(found.len(), 3);
    for ((class, bytes), (expected_class, content)) in found.iter().zip(expected) {
        assert_eq!((class.as_str(), bytes.as_slice()), (expected_class, content.as_bytes()));
    }
    let notices = archive.notices().join("\n");
    assert!(notices.contains("replaced by a later member of the same name (cat/a.jpg)"), "{notices}");
    assert!(notices.contains("hidden (cat/._a.jpg)"), "{notices}");
    assert!(notices.contains("links") && notices.contains("dog/link.jpg"), "{notices}");
}

#[test]
fn sparse_members_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let tar = dir.path().join("a.tar");
    let mut builder = tar::Builder::new(fs::File::create(&tar).unwrap());
    builder.append_pax_extensions([("GNU.sparse.major", &b"1"[..]), ("GNU.sparse.minor", b"0")]).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(4);
    header.set_path("cat/hole.jpg").unwrap();
    header.set_cksum();
    builder.append(&header, &b"data"[..]).unwrap();
    builder.finish().unwrap();
    drop(builder);
    let message = Tar::open(&tar).err().unwrap().to_string();
    assert!(message.contains("cat/hole.jpg") && message.contains("--sparse"), "{message}");
}

/// ImageNet's training archive holds one tar a class.
#[test]
fn torchvision_1563_tar_of_tars() {
    let dir = tempfile::tempdir().unwrap();
    let mut outer = tar::Builder::new(fs::File::create(dir.path().join("outer.tar")).unwrap());
    for class in ["n02", "n01"] {
        let root = dir.path().join(class);
        tree(&root, &["a.JPEG", "b.JPEG"]);
        fs::write(root.join("a.JPEG"), format!("{class}-a")).unwrap();
        let inner = dir.path().join(format!("{class}.tar"));
        pack(&root, "", &inner);
        outer.append_path_with_name(&inner, format!("{class}.tar")).unwrap();
    }
    outer.finish().unwrap();
    drop(outer);
    let archive = Tar::open(dir.path().join("outer.tar")).unwrap();
    assert_eq!(archive.classes(), ["n01", "n02"]);
    assert_eq!(Source::len(&archive), 4);
    assert_eq!(archive.read(0).unwrap().as_ref(), b"n01-a");
    assert_eq!(archive.read(3).unwrap().as_ref(), b"b.JPEG");
    assert!(archive.name(2).ends_with("outer.tar:n02/a.JPEG"));
}

#[test]
fn class_lists_of_splits_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), &["t/a/1.jpg", "t/b/1.jpg", "t/c/1.jpg", "v/a/1.jpg", "v/c/1.jpg"]);
    let (train, val) = (Folder::open(dir.path().join("t")).unwrap(), Folder::open(dir.path().join("v")).unwrap());
    let message = check_same_classes(&train, &val).unwrap_err().to_string();
    assert!(message.contains(r#"label 1 is "b" against "c""#), "{message}");
    assert!(check_same_classes(&train, &train).is_ok());
}

#[test]
fn embedded_images_are_the_originals() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/fashion");
    for (split, source) in [("train", FashionMnist::train().unwrap()), ("val", FashionMnist::val().unwrap())] {
        for label in [0, 3, 9] {
            let original = fs::read(fixtures.join(format!("{split}_{label}.png"))).unwrap();
            let index = (0..Source::len(&source)).find(|&i| source.label(i) == label).unwrap();
            let ours = decode_rgb(&source.read(index).unwrap(), "ours").unwrap();
            assert_eq!(ours, decode_rgb(&original, "original").unwrap(), "{split} {label}");
        }
    }
}

#[test]
fn the_embedded_dataset_is_balanced_disjoint_and_decodes() {
    let (train, val) = (FashionMnist::train().unwrap(), FashionMnist::val().unwrap());
    check_same_classes(&train, &val).unwrap();
    assert_eq!(train.classes(), CLASSES);
    assert_eq!((Source::len(&train), Source::len(&val)), (9_960, 2_000));
    let mut seen = std::collections::HashSet::new();
    for source in [&train, &val] {
        let mut counts = [0; 10];
        for i in 0..Source::len(source) {
            counts[source.label(i)] += 1;
            let pixels = decode_rgb(&source.read(i).unwrap(), &source.name(i)).unwrap();
            assert_eq!((pixels.width, pixels.height), (28, 28));
            assert!(seen.insert(pixels.data), "{} comes twice", source.name(i));
        }
        assert_eq!(counts, [Source::len(source) / 10; 10]);
    }
    assert_eq!(val.name(42), "fashion-mnist/val/00042.png");
    assert!(LICENSE.contains("2017 Zalando SE"));
}

/// Any Burn program can read a source through burn-dataset's trait.
#[test]
fn sources_are_burn_datasets() {
    fn total<D: Dataset<EncodedImage, DataError>>(dataset: &D) -> (usize, usize) {
        let items: Vec<EncodedImage> = dataset.iter().collect::<Result<_, _>>().unwrap();
        (items.len(), items.iter().map(|item| item.bytes.len()).sum())
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("data");
    tree(&root, &TREE);
    let bytes = TREE.iter().map(|file| file.len()).sum();
    let folder = Folder::open(&root).unwrap();
    assert_eq!(total(&folder), (9, bytes));
    pack(&root, "", &dir.path().join("a.tar"));
    assert_eq!(total(&Tar::open(dir.path().join("a.tar")).unwrap()), (9, bytes));
    assert_eq!(total(&FashionMnist::val().unwrap()).0, 2000);
    let shared = AsDataset(Arc::new(folder));
    assert_eq!(total(&shared), (9, bytes));
    let item = shared.get(0).unwrap();
    assert_eq!((item.label, item.bytes.as_slice()), (0, "ant/ünï.png".as_bytes()));
    fs::remove_file(root.join("ant/ünï.png")).unwrap();
    assert!(shared.get(0).is_err());
}
