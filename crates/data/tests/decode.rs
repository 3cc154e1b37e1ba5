//! Files as they lie on real disks: misnamed, cut, damaged, or no image at all.

use std::path::Path;

use manyheads_data::random::below;
use manyheads_data::{DataError, Purpose, decode_rgb, stream};

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/modes").join(name)).unwrap()
}

fn reason(bytes: &[u8]) -> String {
    match decode_rgb(bytes, "cls/x.jpg") {
        Err(DataError::BadImage { name, reason }) => {
            assert_eq!(name, "cls/x.jpg");
            reason
        }
        other => panic!("{other:?}"),
    }
}

const JPEGS: [&str; 9] = [
    "l.jpg",
    "ycbcr420.jpg",
    "ycbcr444.jpg",
    "progressive.jpg",
    "restart.jpg",
    "adobe_rgb.jpg",
    "cmyk.jpg",
    "ycck.jpg",
    "exif_rotated.jpg",
];

/// A JPEG cut anywhere is an error; a lenient decoder fills the rest with grey and says nothing.
#[test]
fn torchvision_138_truncated_jpeg() {
    for name in JPEGS {
        let whole = fixture(name);
        for percent in [3, 10, 50, 90, 97] {
            let cut = &whole[..whole.len() * percent / 100];
            assert!(decode_rgb(cut, name).is_err(), "{name} cut to {percent} %");
        }
        for missing in 1..40 {
            assert!(decode_rgb(&whole[..whole.len() - missing], name).is_err(), "{name} without its last {missing} bytes");
        }
    }
    assert!(reason(&fixture("ycbcr420.jpg")[..900]).contains("cut"));
}

#[test]
fn other_formats_cut_are_errors() {
    for name in ["rgb.png", "p.png", "rgba.png", "lossless.webp", "lossy.webp"] {
        let whole = fixture(name);
        for percent in [3, 10, 50, 90] {
            let cut = &whole[..whole.len() * percent / 100];
            let error = decode_rgb(cut, name).expect_err(&format!("{name} cut to {percent} %")).to_string();
            assert!(error.starts_with(&format!("{name}: ")), "{error}");
        }
    }
}

/// ImageNet's n02105855_2933.JPEG is a PNG: the name decides nothing.
#[test]
fn tfds_590_png_named_jpeg() {
    let pixels = decode_rgb(&fixture("rgb.png"), "n02105855_2933.JPEG").unwrap();
    assert_eq!((pixels.width, pixels.height, pixels.channels), (37, 29, 3));
}

/// The orientation tag asks a viewer to turn the image; torchvision and timm do not, and neither do we.
#[test]
fn exif_orientation_is_ignored() {
    let turned = decode_rgb(&fixture("exif_rotated.jpg"), "x").unwrap();
    assert_eq!(turned, decode_rgb(&fixture("ycbcr420.jpg"), "x").unwrap());
}

#[test]
fn stb_427_gzip_text_and_empty_files() {
    assert!(reason(b"").contains("an empty file"));
    assert!(reason(b"<html>404</html>").contains("an HTML page"));
    assert!(reason(b"hello, I am not an image").contains("a text file that begins with \"hello"));
    assert!(reason(&[0x1f, 0x8b, 8, 0, 0, 0]).contains("gzip"));
    assert!(reason(b"GIF89a......").contains("GIF"));
    for message in [reason(b""), reason(b"\xff\xd8"), reason(b"\x89PNG\r\n\x1a\n")] {
        assert!(message.contains("Replace or remove the file"), "{message}");
    }
}

#[test]
fn bytes_after_the_image_are_ignored() {
    for name in ["ycbcr420.jpg", "progressive.jpg", "rgb.png", "cmyk.jpg"] {
        let mut bytes = fixture(name);
        let clean = decode_rgb(&bytes, name).unwrap();
        bytes.extend(b"trailing garbage \xff\xd8\xff\xc4 and more");
        assert_eq!(decode_rgb(&bytes, name).unwrap(), clean, "{name}");
    }
}

/// The checksum of a PNG chunk's type and data.
fn crc(bytes: &[u8]) -> [u8; 4] {
    let sum = bytes.iter().fold(!0u32, |mut crc, &byte| {
        crc ^= u32::from(byte);
        (0..8).for_each(|_| crc = if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 });
        crc
    });
    (!sum).to_be_bytes()
}

/// 74 bytes that promise 13,000 × 13,000 pixels of eight bytes each: 1.3 GB, though the pixels alone are within bounds.
#[test]
fn bytes_are_bounded_as_well_as_pixels() {
    let mut png = fixture("rgba16.png");
    png[16..24].copy_from_slice(&[0, 0, 0x32, 0xc8, 0, 0, 0x32, 0xc8]);
    let sum = crc(&png[12..29]);
    png[29..33].copy_from_slice(&sum);
    assert!(reason(&png).contains("1352000000 bytes"), "{}", reason(&png));
}

/// A header may promise any size; memory is taken after it is checked.
#[test]
fn absurd_sizes_are_refused() {
    let mut jpeg = fixture("ycbcr420.jpg");
    let frame = jpeg.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0xff; 4]);
    assert!(reason(&jpeg).contains("65535 × 65535 pixels are more than 178956970"));

    let mut png = fixture("rgb.png");
    png[16..24].copy_from_slice(&[0, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0xff]);
    let sum = crc(&png[12..29]);
    png[29..33].copy_from_slice(&sum);
    assert!(reason(&png).contains("pixels are more than"), "{}", reason(&png));
}

/// Whatever the bytes, the answer is pixels or an error with the file's name; never a panic that gets out.
#[test]
fn damaged_bytes_never_panic() {
    let mut errors = 0;
    for (file, name) in JPEGS.iter().chain(&["rgb.png", "p.png", "la16.png", "lossless_alpha.webp", "lossy.webp"]).enumerate() {
        let whole = fixture(name);
        for case in 0..150 {
            let mut rng = stream(file as u64, Purpose::Augment, 0, case);
            let mut bytes = whole.clone();
            for _ in 0..=below(&mut rng, 4) {
                let at = below(&mut rng, bytes.len() as u64) as usize;
                bytes[at] = below(&mut rng, 256) as u8;
            }
            match decode_rgb(&bytes, name) {
                Ok(pixels) => assert_eq!(pixels.data.len(), pixels.width * pixels.height * 3),
                Err(error) => {
                    errors += 1;
                    assert!(error.to_string().starts_with(&format!("{name}: ")), "{error}");
                }
            }
        }
    }
    assert!(errors > 100, "only {errors} of the damaged files were found out");
}

/// Kinds of JPEG that are not read are named.
#[test]
fn unknown_kinds_of_jpeg_are_named() {
    let whole = fixture("ycbcr420.jpg");
    let frame = whole.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
    let with = |at: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[frame + at] = value;
        reason(&bytes)
    };
    assert!(with(1, 0xc9).contains("arithmetic coding"));
    assert!(with(1, 0xc3).contains("lossless"));
    assert!(with(1, 0xc5).contains("hierarchical"));
    assert!(with(4, 12).contains("12 bits a sample"));
    assert!(with(9, 2).contains("2 components"));
}

/// libjpeg only warns of what it can guess its way past. A changed bit shows where a code becomes another of a different
/// length, so that bits are left over or missing; most change a coefficient, which nothing can tell from a picture.
#[test]
fn warnings_are_errors() {
    let whole = fixture("ycbcr420.jpg");
    let scan = whole.windows(2).position(|w| w == [0xff, 0xda]).unwrap() + 14;
    let found = (scan..whole.len() - 2).filter(|&at| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        decode_rgb(&bytes, "x").is_err()
    });
    let (found, all) = (found.count(), whole.len() - 2 - scan);
    assert!(found * 5 > all, "{found} of {all} flipped bits found");
    let mut extra = whole.clone();
    // A few bytes would pass for what the decoder reads ahead.
    extra.splice(whole.len() - 2..whole.len() - 2, [1; 50]);
    let message = decode_rgb(&extra, "x").unwrap_err().to_string();
    assert!(message.contains("extraneous bytes"), "{message}");
}
