//! Pictures to look at.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};

/// Writes `rgb`, [height, width, 3] in rows, as a PNG file.
///
/// # Errors
/// Where the file cannot be written, or `rgb` has another length than the sides say.
pub fn write_png(path: &Path, rgb: &[u8], width: usize, height: usize) -> io::Result<()> {
    check(rgb, width, height)?;
    encode(BufWriter::new(File::create(path)?), rgb, width, height)
}

/// `rgb`, [height, width, 3] in rows, as the bytes of a PNG file.
///
/// # Errors
/// Where `rgb` has another length than the sides say.
pub fn encode_png(rgb: &[u8], width: usize, height: usize) -> io::Result<Vec<u8>> {
    check(rgb, width, height)?;
    let mut bytes = Vec::new();
    encode(&mut bytes, rgb, width, height)?;
    Ok(bytes)
}

fn check(rgb: &[u8], width: usize, height: usize) -> io::Result<()> {
    let fits = u32::try_from(width).is_ok() && u32::try_from(height).is_ok() && rgb.len() == width * height * 3;
    let reason = || format!("{} bytes are no picture of {width} × {height}", rgb.len());
    if fits { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, reason())) }
}

fn encode(to: impl io::Write, rgb: &[u8], width: usize, height: usize) -> io::Result<()> {
    PngEncoder::new(to).write_image(rgb, width as u32, height as u32, ExtendedColorType::Rgb8).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.png");
        let rgb: Vec<u8> = (0..5 * 4 * 3).collect();
        write_png(&path, &rgb, 5, 4).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), encode_png(&rgb, 5, 4).unwrap());
        let pixels = crate::decode_rgb(&std::fs::read(&path).unwrap(), "x.png").unwrap();
        assert_eq!((pixels.width, pixels.height, &pixels.data), (5, 4, &rgb));
        assert!(write_png(&path, &[0; 5], 1, 1).is_err());
    }
}
