//! Our Huffman decoder against the library's.

use std::path::{Path, PathBuf};

use super::libjpeg::{Decoded, Entropy, Failure, Layout, attempt, decode};
use crate::Purpose;
use crate::random::{ChaCha8Rng, below, stream};
use crate::transform::resize::Rect;

fn jpegs(folder: &Path, out: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        match path.is_dir() {
            true => jpegs(&path, out),
            false if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("jpg") || e.eq_ignore_ascii_case("jpeg")) => {
                out.push(path)
            }
            false => {}
        }
    }
}

fn fixtures() -> Vec<(String, Vec<u8>)> {
    let mut paths = Vec::new();
    jpegs(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"), &mut paths);
    assert!(paths.len() >= 40);
    paths.into_iter().map(|path| (path.display().to_string(), std::fs::read(path).unwrap())).collect()
}

/// Of the frame's marker: whether the file is Huffman-coded and sequential, and the components.
fn frame(bytes: &[u8]) -> (bool, u8) {
    let at = bytes.windows(2).position(|pair| matches!(pair, [0xff, 0xc0..=0xc2])).unwrap();
    (bytes[at + 1] < 0xc2, bytes[at + 9])
}

fn layout(bytes: &[u8]) -> Layout {
    if frame(bytes).1 == 4 { Layout::Cmyk } else { Layout::Rgbx }
}

type Pixels = (usize, usize, Vec<[u8; 4]>);

fn pixels(decoded: Decoded, mut out: Vec<[u8; 4]>) -> Pixels {
    out.truncate(decoded.stride * decoded.rect.height);
    (decoded.stride, decoded.left, out)
}

/// By one of the two decoders alone, the part given by quarters: left, top, right, bottom.
fn by(entropy: Entropy, bytes: &[u8], part: [usize; 4]) -> Result<Pixels, Failure> {
    let mut out = Vec::new();
    attempt(bytes, layout(bytes), entropy, &mut |width, height| Ok(rect(part, width, height)), &mut out).map(|d| pixels(d, out))
}

fn rect([left, top, right, bottom]: [usize; 4], width: usize, height: usize) -> Rect {
    let (x, y) = (left * (width - 1) / 16, top * (height - 1) / 16);
    Rect { x, y, width: (right * width / 16).max(x + 1) - x, height: (bottom * height / 16).max(y + 1) - y }
}

const WHOLE: [usize; 4] = [0, 0, 16, 16];
const PARTS: [[usize; 4]; 8] =
    [WHOLE, [3, 5, 9, 11], [0, 0, 1, 1], [13, 13, 16, 16], [0, 9, 16, 10], [9, 0, 10, 16], [5, 2, 15, 16], [15, 15, 16, 16]];

/// The library's pixels, and ours, which must have been decoded without its help if `alone`.
fn check(name: &str, bytes: &[u8], parts: &[[usize; 4]], alone: bool) {
    for &part in parts {
        let Ok(theirs) = by(Entropy::Library, bytes, part) else { panic!("{name}: refused by the library") };
        match by(Entropy::Ours, bytes, part) {
            Ok(ours) => assert!(ours == theirs, "{name} {part:?}: other pixels"),
            Err(Failure::Doubt) => assert!(!alone, "{name} {part:?}: left to the library"),
            Err(Failure::Message(text)) => panic!("{name} {part:?}: {text}"),
        }
    }
}

#[test]
fn pixels_of_all_fixtures() {
    for (name, bytes) in fixtures() {
        check(&name, &bytes, &PARTS, true);
    }
}

/// A folder of photographs, named by `MANYHEADS_PHOTOS`: every file as a whole and four parts of it.
#[test]
#[ignore = "needs photographs: MANYHEADS_PHOTOS=FOLDER cargo test --release -p manyheads-data pixels_of_photographs -- --ignored"]
fn pixels_of_photographs() {
    let folder = std::env::var_os("MANYHEADS_PHOTOS").expect("MANYHEADS_PHOTOS names a folder of JPEGs");
    let mut paths = Vec::new();
    jpegs(Path::new(&folder), &mut paths);
    let mut left = 0;
    for (item, path) in paths.iter().enumerate() {
        let bytes = std::fs::read(path).unwrap();
        let mut rng = stream(0, Purpose::Subset, 0, item as u64);
        let mut pair = || {
            let (a, b) = (below(&mut rng, 16) as usize, below(&mut rng, 16) as usize);
            (a.min(b), a.max(b) + 1)
        };
        let mut parts = vec![WHOLE];
        for _ in 0..4 {
            let ((left, right), (top, bottom)) = (pair(), pair());
            parts.push([left, top, right, bottom]);
        }
        check(&path.display().to_string(), &bytes, &parts, false);
        left += usize::from(matches!(by(Entropy::Ours, &bytes, WHOLE), Err(Failure::Doubt)));
    }
    println!("{} photographs, {left} left to the library", paths.len());
}

#[test]
fn bytes_behind_the_image_are_ignored() {
    for (name, mut bytes) in fixtures() {
        bytes.extend(b"\0\xff\xff\0 and \xff\xd8 more");
        check(&name, &bytes, &PARTS[..4], true);
    }
}

/// Where a scan's data begin and where they end, in a file of one scan.
fn scan_data(bytes: &[u8]) -> (usize, usize) {
    let header = bytes.windows(2).position(|pair| pair == [0xff, 0xda]).unwrap();
    let start = header + 2 + usize::from(u16::from_be_bytes([bytes[header + 2], bytes[header + 3]]));
    let len = bytes[start..].windows(2).position(|pair| pair[0] == 0xff && !matches!(pair[1], 0 | 0xd0..=0xd7)).unwrap();
    (start, start + len)
}

/// A grey image's data, used for three components in turn.
#[test]
fn a_scan_for_each_component() {
    for name in ["grey_baseline_64.jpg", "grey_baseline_83.jpg", "grey_restart_83.jpg"] {
        let grey = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/subsampling").join(name)).unwrap();
        let (start, end) = scan_data(&grey);
        let frame = grey.windows(2).position(|pair| matches!(pair, [0xff, 0xc0 | 0xc1])).unwrap();
        let mut bytes = grey[..frame + 2].to_vec();
        bytes.extend([0, 17, 8]);
        bytes.extend(&grey[frame + 5..frame + 9]);
        bytes.extend([3, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0]);
        let behind = frame + 2 + 11;
        let header = start - 10;
        assert_eq!(grey[header..header + 2], [0xff, 0xda]);
        bytes.extend(&grey[behind..header]);
        for component in 1..=3 {
            bytes.extend([0xff, 0xda, 0, 8, 1, component, 0, 0, 63, 0]);
            bytes.extend(&grey[start..end]);
        }
        bytes.extend([0xff, 0xd9]);
        check(name, &bytes, &PARTS, true);
        let (_, _, pixels) = by(Entropy::Ours, &bytes, WHOLE).unwrap_or_else(|_| panic!("{name}"));
        assert!(pixels.iter().any(|p| p[0] != p[1]), "three components make a coloured image");
    }
}

/// Fill bytes may come before any marker; a scan may end in the middle of a byte only.
#[test]
fn ends_of_scans() {
    for (name, bytes) in fixtures().into_iter().filter(|(name, _)| name.contains("baseline_64")) {
        let (_, end) = scan_data(&bytes);
        let with = |extra: &[u8]| [&bytes[..end], extra, &bytes[end..]].concat();
        check(&name, &with(&[0xff; 3]), &PARTS, true);
        for extra in [&[0u8][..], &[0x55, 0xaa], &[0xff, 0], &[7; 9], &[7; 60]] {
            same_verdict(&name, &with(extra), WHOLE);
        }
        for fewer in 1..12 {
            let cut = [&bytes[..end - fewer], &bytes[end..]].concat();
            assert!(by(Entropy::Library, &cut, WHOLE).is_err() == verdict(&cut, WHOLE).is_err(), "{name} less {fewer}");
        }
    }
}

fn verdict(bytes: &[u8], part: [usize; 4]) -> Result<Pixels, String> {
    let mut out = Vec::new();
    decode(bytes, layout(bytes), &mut |width, height| Ok(rect(part, width, height)), &mut out).map(|d| pixels(d, out))
}

/// What the library refuses is refused with its words or ours; what is decoded has its pixels. Returns whether it was decoded.
fn same_verdict(name: &str, bytes: &[u8], part: [usize; 4]) -> bool {
    match (by(Entropy::Library, bytes, part), verdict(bytes, part)) {
        (Ok(theirs), Ok(ours)) => {
            assert!(ours == theirs, "{name} {part:?}: other pixels");
            true
        }
        (Err(_), Ok(_)) => panic!("{name} {part:?}: refused by the library only"),
        (_, Err(text)) => {
            assert!(text.contains("Replace or remove the file"), "{name} {part:?}: {text}");
            false
        }
    }
}

fn damage(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>) {
    let scan = bytes.windows(2).position(|pair| pair == [0xff, 0xda]).unwrap() as u64;
    for _ in 0..=below(rng, 2) {
        let first = if below(rng, 4) == 0 { 2 } else { scan };
        let at = (first + below(rng, bytes.len() as u64 - first)) as usize;
        let len = (1 + below(rng, 6) as usize).min(bytes.len() - at);
        match below(rng, 8) {
            0 | 1 => bytes[at] ^= 1 << below(rng, 8),
            2 => bytes[at] = below(rng, 256) as u8,
            3 => bytes[at..at + len].fill(0xff),
            4 => bytes[at..at + len].fill(0),
            5 => bytes[at] = 0xd0 + below(rng, 10) as u8,
            6 => {
                let again = bytes[at..at + len].to_vec();
                bytes.splice(at..at, again);
            }
            _ => drop(bytes.drain(at..at + len)),
        }
    }
}

/// `MANYHEADS_MUTATIONS` sets the number of cases for each file.
#[test]
fn damaged_files_have_the_librarys_verdict_or_a_stricter_one() {
    let cases = std::env::var("MANYHEADS_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(150);
    let (mut all, mut decoded, mut by_ours) = (0, 0, 0);
    for (number, (name, original)) in fixtures().into_iter().enumerate().filter(|(_, (_, bytes))| bytes.len() < 20_000) {
        for case in 0..cases {
            let mut rng = stream(case, Purpose::Subset, 0, number as u64);
            let mut bytes = original.clone();
            damage(&mut rng, &mut bytes);
            // A damaged frame may call for any amount of memory and time, in both decoders.
            let frame_at = |bytes: &[u8]| bytes.windows(2).position(|pair| matches!(pair, [0xff, 0xc0..=0xc2]));
            let same = |at: Option<usize>| at.is_some_and(|at| bytes.get(at..at + 10) == original.get(at..at + 10));
            if frame_at(&bytes) != frame_at(&original) || !same(frame_at(&bytes)) {
                continue;
            }
            all += 1;
            let ours = |text: &String| text.contains("Huffman code that") || text.contains("coefficients in a block");
            by_ours += u64::from(verdict(&bytes, WHOLE).is_err_and(|text| ours(&text)));
            decoded += u64::from(same_verdict(&name, &bytes, PARTS[case as usize % PARTS.len()]));
        }
    }
    println!("{decoded} of {all} damaged files decoded, {by_ours} refused with our words");
    assert!(by_ours > all / 50, "{by_ours} of {all}: our decoder is not in use");
    assert!(decoded > all / 10 && decoded < all * 9 / 10, "{decoded} of {all}");
}
