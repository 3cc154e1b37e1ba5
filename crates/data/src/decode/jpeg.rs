//! JPEG as Pillow reads it, in whole or in part.

use super::libjpeg::{self, Decoded, Layout};
use super::{check_size, damaged};
use crate::transform::resize::Rect;

/// What the markers before the first scan say.
struct Header {
    width: u16,
    height: u16,
    components: u8,
    /// Bits of a sample.
    precision: u8,
    /// The frame's marker: the coding process.
    process: u8,
    /// Where the first scan's data begin.
    scan: usize,
}

/// Decodes the rectangle that `choose` names of an image of so many columns and rows, to red, green, blue and a byte without
/// meaning.
///
/// For the whole image the file is checked to its end. For a part nothing below it is read; that the file is cut there still
/// shows, because its end marker is looked for.
pub(super) fn decode(
    bytes: &[u8],
    choose: &mut dyn FnMut(usize, usize) -> Rect,
    out: &mut Vec<[u8; 4]>,
) -> Result<Decoded, String> {
    let header = header(bytes).map_err(damaged("JPEG"))?;
    check_size(header.width.into(), header.height.into())?;
    header.check_process()?;
    // The end marker cannot occur inside a scan, so its absence shows a cut file. It is nearly always the last thing there is.
    if !bytes[header.scan.min(bytes.len())..].windows(2).rev().any(|pair| pair == [0xff, 0xd9]) {
        return Err("the JPEG image is cut: its end marker is missing. Replace or remove the file".to_owned());
    }
    let layout = match header.components {
        1 | 3 => Layout::Rgbx,
        4 => Layout::Cmyk,
        n => return Err(format!("a JPEG image with {n} components, where 1, 3 or 4 are known. Convert it to RGB")),
    };
    let mut choose = |width: usize, height: usize| {
        // The library reads the markers itself, and might see another frame than we do.
        check_size(width as u64, height as u64)?;
        Ok(choose(width, height))
    };
    let decoded = libjpeg::decode(bytes, layout, &mut choose, out)?;
    if layout == Layout::Cmyk {
        out[..decoded.stride * decoded.rect.height].iter_mut().for_each(inverted_cmyk_to_rgb);
    }
    Ok(decoded)
}

/// Adobe writes inks inverted, 255 for none, and Pillow takes every four-component JPEG to be so: a channel is ink times
/// black over 255, rounded.
fn inverted_cmyk_to_rgb(pixel: &mut [u8; 4]) {
    let [c, m, y, k] = *pixel;
    let multiply = |ink: u8| {
        let product = u32::from(ink) * u32::from(k) + 128;
        ((product + (product >> 8)) >> 8) as u8
    };
    *pixel = [multiply(c), multiply(m), multiply(y), 0];
}

impl Header {
    /// Refuses what the decoder does not know, in words.
    fn check_process(&self) -> Result<(), String> {
        let process = match self.process {
            0xc0..=0xc2 if self.precision == 8 => return Ok(()),
            0xc0..=0xc2 => return Err(format!("a JPEG image with {} bits a sample. Convert it to 8 bits", self.precision)),
            0xc9 | 0xca => "arithmetic coding",
            0xc3 => "the lossless process",
            _ => "a hierarchical or arithmetic lossless process",
        };
        Err(format!("a JPEG image with {process}, which is not supported. Convert it to a baseline JPEG or to PNG"))
    }
}

/// Reads the markers up to the first scan (ITU-T T.81, annex B).
fn header(bytes: &[u8]) -> Result<Header, &'static str> {
    const CUT: &str = "it ends before the first scan";
    let word = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    let mut frame = None;
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
                let (Some(height), Some(width), Some(&[precision, .., components])) = (word(at + 3), word(at + 5), body.get(..6))
                else {
                    return Err(CUT);
                };
                frame = Some(Header { width, height, components, precision, process: marker, scan: 0 });
            }
            0xda => {
                let frame = frame.ok_or("it has a scan but no frame header")?;
                return Ok(Header { scan: at + length, ..frame });
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
        let rgb = |mut pixel: [u8; 4]| {
            inverted_cmyk_to_rgb(&mut pixel);
            [pixel[0], pixel[1], pixel[2]]
        };
        assert_eq!(rgb([255, 128, 0, 255]), [255, 128, 0]);
        assert_eq!(rgb([255, 128, 0, 128]), [128, 64, 0]);
    }
}
