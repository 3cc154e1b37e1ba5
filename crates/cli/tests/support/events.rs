//! A reader of TensorBoard's event files and of safetensors, written for the tests from their formats alone.

use std::collections::BTreeMap;
use std::path::Path;

/// One value of an event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub time: f64,
    pub step: u64,
    pub tag: String,
    pub value: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Scalar(f32),
    Histogram(Histogram),
    /// Width, height, PNG.
    Image(u64, u64, Vec<u8>),
    Text(String),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// Least, greatest, number, sum, sum of squares.
    pub numbers: [f64; 5],
    pub limits: Vec<f64>,
    pub counts: Vec<f64>,
}

/// The values of a file without what two equal runs need not share: the clock, and what the machine made of the run.
pub fn lasting(path: &Path) -> Vec<(u64, String, Value)> {
    let passing = |tag: &str| ["per_second", "data_wait", "memory_bytes"].iter().any(|end| tag.ends_with(end));
    read(path).into_iter().filter(|event| !passing(&event.tag)).map(|event| (event.step, event.tag, event.value)).collect()
}

/// The values in a file, every checksum checked; the file ends with a whole record.
pub fn read(path: &Path) -> Vec<Event> {
    parse(&std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

pub fn parse(mut bytes: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    let mut first = true;
    while !bytes.is_empty() {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!(bytes[8..12], masked(&bytes[..8]));
        let record = &bytes[12..12 + length];
        assert_eq!(bytes[12 + length..16 + length], masked(record));
        bytes = &bytes[16 + length..];
        let event = fields(record);
        let time = double(&event[&1][0]);
        if std::mem::take(&mut first) {
            assert_eq!(event[&3][0], b"brain.Event:2");
            continue;
        }
        let step = event.get(&2).map_or(0, |step| varint(&step[0]));
        for value in &fields(&event[&5][0])[&1] {
            let value = fields(value);
            let tag = String::from_utf8(value[&1][0].clone()).unwrap();
            let read = if let Some(number) = value.get(&2) {
                Value::Scalar(f32::from_le_bytes(number[0][..].try_into().unwrap()))
            } else if let Some(image) = value.get(&4) {
                let image = fields(&image[0]);
                Value::Image(varint(&image[&2][0]), varint(&image[&1][0]), image[&4][0].clone())
            } else if let Some(histogram) = value.get(&5) {
                let histogram = fields(&histogram[0]);
                let packed = |field: u64| histogram[&field][0].chunks_exact(8).map(double).collect();
                let numbers = [1, 2, 3, 4, 5].map(|field| double(&histogram[&field][0]));
                Value::Histogram(Histogram { numbers, limits: packed(6), counts: packed(7) })
            } else {
                let tensor = fields(&value[&8][0]);
                assert_eq!(varint(&tensor[&1][0]), 7, "a tensor of strings");
                Value::Text(String::from_utf8(tensor[&8][0].clone()).unwrap())
            };
            events.push(Event { time, step, tag, value: read });
        }
    }
    events
}

/// The fields of a protobuf message; numbers as their bytes.
fn fields(mut bytes: &[u8]) -> BTreeMap<u64, Vec<Vec<u8>>> {
    let mut fields: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
    let take_varint = |bytes: &mut &[u8]| {
        let length = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        let (varint, rest) = bytes.split_at(length);
        *bytes = rest;
        varint.to_vec()
    };
    while !bytes.is_empty() {
        let key = varint(&take_varint(&mut bytes));
        let length = match key & 7 {
            0 => {
                fields.entry(key >> 3).or_default().push(take_varint(&mut bytes));
                continue;
            }
            1 => 8,
            5 => 4,
            2 => varint(&take_varint(&mut bytes)) as usize,
            wire => panic!("wire type {wire}"),
        };
        let (content, rest) = bytes.split_at(length);
        fields.entry(key >> 3).or_default().push(content.to_vec());
        bytes = rest;
    }
    fields
}

fn varint(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
}

fn double(bytes: impl AsRef<[u8]>) -> f64 {
    f64::from_le_bytes(bytes.as_ref().try_into().unwrap())
}

/// TFRecord's checksum, bit by bit.
fn masked(bytes: &[u8]) -> [u8; 4] {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    let crc = !crc;
    crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// The f32 tensors of a safetensors file.
pub fn tensors(bytes: &[u8]) -> BTreeMap<String, Vec<f32>> {
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let table: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let data = &bytes[8 + header..];
    let numbers = |entry: &serde_json::Value| {
        let [from, to] = [0, 1].map(|end| entry["data_offsets"][end].as_u64().unwrap() as usize);
        data[from..to].chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect()
    };
    table.iter().filter(|(name, _)| *name != "__metadata__").map(|(name, entry)| (name.clone(), numbers(entry))).collect()
}
