//! One small dataset, and how to write it in every form.

#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use manyheads_data::source::embedded::FashionMnist;
use manyheads_data::{LoaderConfig, OnError, PackOptions, PixelFormat, Source, pack};
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::sync::atomic::AtomicBool;

pub const CLASSES: [&str; 3] = ["n01440764", "n01443537", "n01484850"];

pub const CONFIG: LoaderConfig = LoaderConfig {
    seed: 7,
    batch_size: 16,
    shuffle: true,
    drop_last: false,
    workers: 0,
    prefetch: 3,
    on_error: OnError::Fail,
    rank: 0,
    world: 1,
    repeats: 1,
    format: PixelFormat::F32,
    memory: 4 << 30,
};

/// An image of the dataset.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    pub label: usize,
    pub file: String,
    pub bytes: Vec<u8>,
}

/// Images of three classes in the order of class folders.
pub fn items(count: usize) -> Vec<Item> {
    let images = FashionMnist::val().unwrap();
    let mut items: Vec<Item> = (0..count)
        .map(|i| {
            let label = i * 7 % 3;
            Item { label, file: format!("{}_{i}.png", CLASSES[label]), bytes: images.read(i * 13).unwrap().into_owned() }
        })
        .collect();
    items.sort_by(|a, b| (a.label, &a.file).cmp(&(b.label, &b.file)));
    items
}

pub fn write_folder(root: &Path, items: &[Item]) {
    for item in items {
        let folder = root.join(CLASSES[item.label]);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(&item.file), &item.bytes).unwrap();
    }
}

/// Images in one folder, and the path of their labels.
pub fn write_flat(root: &Path, items: &[Item]) -> PathBuf {
    fs::create_dir_all(root).unwrap();
    let mut text = String::new();
    for item in items.iter().rev() {
        fs::write(root.join(&item.file), &item.bytes).unwrap();
        text += &format!("{} {}\n", item.file, CLASSES[item.label]);
    }
    let labels = root.with_extension("txt");
    fs::write(&labels, text).unwrap();
    labels
}

pub fn add(builder: &mut tar::Builder<impl std::io::Write>, path: &str, bytes: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    builder.append_data(&mut header, path, bytes).unwrap();
}

/// A tar of one tar a class, as `ILSVRC2012_img_train.tar`.
pub fn write_nested_tar(path: &Path, items: &[Item]) {
    let mut outer = tar::Builder::new(fs::File::create(path).unwrap());
    for (label, class) in CLASSES.iter().enumerate().rev() {
        let mut inner = tar::Builder::new(Vec::new());
        for item in items.iter().filter(|item| item.label == label) {
            add(&mut inner, &item.file, &item.bytes);
        }
        add(&mut outer, &format!("{class}.tar"), &inner.into_inner().unwrap());
    }
    outer.finish().unwrap();
}

/// Four shards; labels as numbers in `.cls`, or for odd samples in `.json`.
pub fn write_webdataset(folder: &Path, items: &[Item]) {
    fs::create_dir_all(folder).unwrap();
    for shard in 0..4 {
        let path = folder.join(format!("shard-{shard:03}.tar"));
        let mut builder = tar::Builder::new(fs::File::create(path).unwrap());
        for (i, item) in items.iter().enumerate().filter(|(i, _)| i % 4 == shard) {
            let key = item.file.strip_suffix(".png").unwrap();
            add(&mut builder, &item.file, &item.bytes);
            if i % 8 < 4 {
                add(&mut builder, &format!("{key}.cls"), format!("{}\n", item.label).as_bytes());
            } else {
                add(&mut builder, &format!("{key}.json"), format!(r#"{{"label": {}, "size": [28, 28]}}"#, item.label).as_bytes());
            }
        }
        builder.finish().unwrap();
    }
}

pub fn write_parquet(path: &Path, items: &[Item], compression: Compression, rows_in_group: usize, with_names: bool) {
    let schema =
        "message schema { optional group image { optional binary bytes; optional binary path (UTF8); } optional int64 label; }";
    let names: Vec<String> = CLASSES.iter().map(|class| format!("{class:?}")).collect();
    let info = format!(r#"{{"info": {{"features": {{"label": {{"names": [{}], "_type": "ClassLabel"}}}}}}}}"#, names.join(", "));
    let metadata = with_names.then(|| vec![KeyValue::new("huggingface".to_owned(), info)]);
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_data_page_size_limit(4096)
        .set_write_batch_size(3)
        .set_key_value_metadata(metadata)
        .build();
    let file = fs::File::create(path).unwrap();
    let mut writer =
        SerializedFileWriter::new(file, Arc::new(parse_message_type(schema).unwrap()), Arc::new(properties)).unwrap();
    for rows in items.chunks(rows_in_group) {
        let mut group = writer.next_row_group().unwrap();
        let columns: [Vec<ByteArray>; 2] = [
            rows.iter().map(|item| ByteArray::from(item.bytes.clone())).collect(),
            rows.iter().map(|item| ByteArray::from(item.file.as_str())).collect(),
        ];
        for values in columns {
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&values, Some(&vec![2; rows.len()]), None).unwrap();
            column.close().unwrap();
        }
        let labels: Vec<i64> = rows.iter().map(|item| item.label as i64).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&labels, Some(&vec![1; rows.len()]), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

pub fn write_packed(path: &Path, source: &dyn Source) {
    pack(source, path, &PackOptions { threads: 3, ..PackOptions::default() }, &AtomicBool::new(false), |_| ()).unwrap();
}

/// What a source gives, item by item.
pub fn contents(source: &dyn Source) -> Vec<Item> {
    (0..source.len())
        .map(|i| {
            let path = String::from_utf8(source.relative_path(i)).unwrap();
            let (class, file) = path.split_once('/').unwrap();
            assert_eq!(class, source.classes()[source.label(i)]);
            Item { label: source.label(i), file: file.to_owned(), bytes: source.read(i).unwrap().into_owned() }
        })
        .collect()
}
