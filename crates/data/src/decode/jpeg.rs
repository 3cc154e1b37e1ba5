//! JPEG by zune-jpeg in strict mode, with what it leaves open decided here as libjpeg-turbo and Pillow decide it.

use std::borrow::Cow;

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::{Pixels, check_size, damaged};

/// What the markers before the first scan say.
struct Header {
    width: u16,
    height: u16,
    components: u8,
    /// Component names are the letters R, G, B.
    named_rgb: bool,
    /// Colour transform of Adobe's APP14 marker, and its place in the file.
    adobe: Option<(u8, usize)>,
    /// Where the first scan's data begin.
    scan: usize,
}

pub(super) fn decode(bytes: &[u8]) -> Result<Pixels, String> {
    let header = header(bytes).map_err(damaged("JPEG"))?;
    check_size(header.width.into(), header.height.into())?;
    // The end marker cannot occur inside a scan, so its absence shows a cut file. zune-jpeg does not look for it, and does not
    // notice a cut within the last row of blocks.
    if !bytes[header.scan..].windows(2).any(|pair| pair == [0xff, 0xd9]) {
        return Err("the JPEG image is cut: its end marker is missing. Replace or remove the file".to_owned());
    }

    let (bytes, output) = match (header.components, header.adobe) {
        (1 | 3, None) => (Cow::Borrowed(bytes), ColorSpace::RGB),
        (1, Some(_)) => (Cow::Borrowed(bytes), ColorSpace::RGB),
        // Adobe's transform 0 with three components is plain RGB, which zune-jpeg takes for CMYK. Called YCbCr and asked for
        // as YCbCr, the values pass unchanged.
        (3, Some((0, at))) if !header.named_rgb => (with_transform(bytes, at, 1), ColorSpace::YCbCr),
        (3, Some((0, at))) => (with_transform(bytes, at, 1), ColorSpace::RGB),
        (3, Some((1 | 2, _))) => (Cow::Borrowed(bytes), ColorSpace::RGB),
        (3, Some((_, at))) => (with_transform(bytes, at, 1), ColorSpace::RGB),
        (4, None | Some((0, _))) => (Cow::Borrowed(bytes), ColorSpace::CMYK),
        (4, Some((2, _))) => (Cow::Borrowed(bytes), ColorSpace::RGB),
        (4, Some((_, at))) => (with_transform(bytes, at, 2), ColorSpace::RGB),
        (n, _) => return Err(format!("a JPEG image with {n} components, where 1, 3 or 4 are known. Convert it to RGB")),
    };
    let options = DecoderOptions::new_fast()
        .set_strict_mode(true)
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_out_colorspace(output);
    let mut data = JpegDecoder::new_with_options(ZCursor::new(&*bytes), options).decode().map_err(damaged("JPEG"))?;
    if output == ColorSpace::CMYK {
        data = inverted_cmyk_to_rgb(&data);
    }
    let (width, height) = (usize::from(header.width), usize::from(header.height));
    if data.len() != width * height * 3 {
        return Err(format!(
            "a damaged JPEG image: {} values for {width} × {height} RGB pixels. Replace or remove the file",
            data.len()
        ));
    }
    Ok(Pixels { width, height, channels: 3, data })
}

fn with_transform(bytes: &[u8], at: usize, transform: u8) -> Cow<'_, [u8]> {
    let mut bytes = bytes.to_vec();
    bytes[at] = transform;
    Cow::Owned(bytes)
}

/// Adobe writes inks inverted, 255 for none, and Pillow takes every four-component JPEG to be so: a channel is ink times
/// black over 255, rounded.
fn inverted_cmyk_to_rgb(data: &[u8]) -> Vec<u8> {
    let multiply = |ink: u8, black: u8| {
        let product = u32::from(ink) * u32::from(black) + 128;
        ((product + (product >> 8)) >> 8) as u8
    };
    data.chunks_exact(4).flat_map(|p| [multiply(p[0], p[3]), multiply(p[1], p[3]), multiply(p[2], p[3])]).collect()
}

/// Reads the markers up to the first scan (ITU-T T.81, annex B).
fn header(bytes: &[u8]) -> Result<Header, &'static str> {
    const CUT: &str = "it ends before the first scan";
    let word = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    let mut frame = None;
    let mut adobe = None;
    let mut at = 2;
    loop {
        // A marker may be preceded by fill bytes; stray bytes are left to the decoder to judge.
        while *bytes.get(at).ok_or(CUT)? != 0xff {
            at += 1;
        }
        while *bytes.get(at).ok_or(CUT)? == 0xff {
            at += 1;
        }
        let marker = bytes[at];
        at += 1;
        if matches!(marker, 0x00 | 0x01 | 0xd0..=0xd8) {
            continue;
        }
        if marker == 0xd9 {
            return Err("it ends without a scan");
        }
        let length = usize::from(word(at).ok_or(CUT)?);
        let body = bytes.get(at + 2..at + length.max(2)).ok_or(CUT)?;
        match marker {
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                let (Some(height), Some(width), Some(&components)) = (word(at + 3), word(at + 5), body.get(5)) else {
                    return Err(CUT);
                };
                let ids: Vec<u8> = body[6..].chunks_exact(3).map(|component| component[0]).collect();
                frame = Some((width, height, components, ids == *b"RGB"));
            }
            0xee if body.len() >= 12 && body.starts_with(b"Adobe") => adobe = Some((body[11], at + 2 + 11)),
            0xda => {
                let (width, height, components, named_rgb) = frame.ok_or("it has a scan but no frame header")?;
                return Ok(Header { width, height, components, named_rgb, adobe, scan: at + length });
            }
            _ => {}
        }
        at += length.max(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_end_early_are_errors() {
        for bytes in
            [&b"\xff\xd8"[..], b"\xff\xd8\xff", b"\xff\xd8\xff\xe0\0", b"\xff\xd8\xff\xe0\0\x10JFIF", b"\xff\xd8\xff\xd9"]
        {
            assert!(header(bytes).is_err(), "{bytes:x?}");
        }
    }

    #[test]
    fn inverted_inks() {
        assert_eq!(inverted_cmyk_to_rgb(&[255, 128, 0, 255, 255, 128, 0, 128]), [255, 128, 0, 128, 64, 0]);
    }
}
