//! Encoded bytes to 8-bit RGB, as Pillow's `Image.open(…).convert("RGB")` does.
//!
//! - The decoder is chosen by content. ImageNet's `n02105855_2933.JPEG` is a PNG, and is read as one.
//! - Grey is repeated over three channels; a palette is looked up; alpha and transparency are dropped, not blended; CMYK and
//!   YCCK JPEGs are taken as Adobe's inverted inks. The first frame of an animation is taken.
//! - 16 bits a channel are cut to their upper 8. Here we differ from Pillow for 16-bit grey: its `convert("RGB")` clips such
//!   values at 255, which turns a photograph white.
//! - EXIF orientation and colour profiles are ignored, as torchvision and timm ignore them.
//! - A JPEG that is cut or breaks off is an error, as in Pillow. So is everything that makes the decoder doubt the data, which
//!   Pillow passes over: bad Huffman codes, bytes left over at a scan's end. Bytes after the end of an image are ignored.
//! - JPEGs of 12 bits, with arithmetic coding, lossless or hierarchical are errors.
//!
//! All formats give Pillow's pixels; JPEG is decoded by the same library with the same settings (accurate integer inverse
//! cosine transform, smooth upsampling of chroma).
//!
//! A training crop needs only a part of an image, and a JPEG is then read no further than that part's last row: damage below
//! it does not show, other than a missing end marker. [`decode_rgb`] reads everything; `data verify` uses it.

mod entropy;
#[cfg(test)]
mod equal;
mod huffman;
mod jpeg;
mod libjpeg;
pub(crate) mod part;
mod sniff;

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use image::codecs::{png::PngDecoder, webp::WebPDecoder};
use image::{ColorType, ImageDecoder, Limits};

use crate::error::DataError;
use crate::transform::resize::Rect;
use sniff::{Format, sniff};

/// Largest number of pixels decoded, as Pillow: twice the pixels whose RGB values take 256 MiB.
///
/// Pillow warns above half of this and fails above it.
pub const MAX_PIXELS: u64 = 178_956_970;

/// 8-bit pixels, rows from the top, channels interleaved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pixels {
    /// Pixels in a row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
    /// 1 (grey) or 3 (RGB).
    pub channels: usize,
    /// `height * width * channels` values.
    pub data: Vec<u8>,
}

/// Decodes JPEG, PNG or WebP to RGB; see the [module](self) for the rules.
///
/// `name` is for messages only.
///
/// # Errors
/// [`DataError::BadImage`] saying what the bytes look like if they are no such image, what is wrong with the image if it is
/// damaged, or that it has more than [`MAX_PIXELS`] pixels; that is found before memory is taken for them.
pub fn decode_rgb(bytes: &[u8], name: &str) -> Result<Pixels, DataError> {
    let mut buffer = Vec::new();
    let whole = &mut |width: usize, height: usize| Rect { x: 0, y: 0, width, height };
    let decoded = match sniff(bytes) {
        Format::Jpeg => jpeg::decode(bytes, whole, &mut buffer).map(|decoded| {
            let data = part::rgb(&buffer);
            Pixels { width: decoded.rect.width, height: decoded.rect.height, channels: 3, data }
        }),
        format => decode_other(bytes, format),
    };
    decoded.map_err(|reason| DataError::bad_image(name, reason))
}

/// Everything but JPEG.
fn decode_other(bytes: &[u8], format: Format) -> Result<Pixels, String> {
    // The decoders are other people's code, fed with what lies on other people's disks: a panic in one is one bad file. (The
    // one for JPEG tells its errors from panics itself.)
    let decoded = catch_unwind(AssertUnwindSafe(|| match format {
        Format::Png => {
            let decoder = PngDecoder::with_limits(Cursor::new(bytes), limits());
            decoder.map_err(damaged("PNG")).and_then(|decoder| to_rgb(decoder, "PNG"))
        }
        Format::WebP => WebPDecoder::new(Cursor::new(bytes)).map_err(damaged("WebP")).and_then(|d| to_rgb(d, "WebP")),
        Format::Jpeg => unreachable!("has its own decoder"),
        Format::Other(looks) => Err(format!("{looks}, where a JPEG, PNG or WebP image is expected. Replace or remove the file")),
    }));
    decoded.unwrap_or_else(|panic| Err(format!("the decoder failed: {}. Replace or remove the file", panic_message(&*panic))))
}

/// What a PNG may take besides its pixels: a small file can hold a colour profile that inflates to gigabytes.
fn limits() -> Limits {
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(64 << 20);
    limits
}

/// The text of a panic.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

fn damaged<E: std::fmt::Display>(format: &'static str) -> impl Fn(E) -> String {
    move |error| format!("damaged {format} image: {error}. Replace or remove the file")
}

/// Refuses sizes that would take too much memory.
fn check_size(width: u64, height: u64) -> Result<(), String> {
    if width == 0 || height == 0 {
        return Err(format!("an image of {width} × {height} pixels. Replace or remove the file"));
    }
    if width * height > MAX_PIXELS {
        return Err(format!(
            "{width} × {height} pixels are more than {MAX_PIXELS}: probably damaged. Scale it down, or remove the file"
        ));
    }
    Ok(())
}

fn to_rgb(decoder: impl ImageDecoder, format: &'static str) -> Result<Pixels, String> {
    let (width, height) = decoder.dimensions();
    check_size(width.into(), height.into())?;
    let (width, height) = (width as usize, height as usize);
    let color = decoder.color_type();
    let bytes = width as u64 * height as u64 * u64::from(color.bytes_per_pixel());
    if bytes > 4 * MAX_PIXELS {
        return Err(format!(
            "{width} × {height} pixels of type {color:?} take {bytes} bytes: probably damaged. Scale it down, or remove the file"
        ));
    }
    let mut raw = vec![0; width * height * usize::from(color.bytes_per_pixel())];
    decoder.read_image(&mut raw).map_err(damaged(format))?;
    // 16-bit samples come in the machine's byte order.
    let high = if cfg!(target_endian = "little") { 1 } else { 0 };
    let data = match color {
        ColorType::Rgb8 => raw,
        ColorType::L8 => raw.iter().flat_map(|&v| [v; 3]).collect(),
        ColorType::La8 => raw.chunks_exact(2).flat_map(|p| [p[0]; 3]).collect(),
        ColorType::Rgba8 => raw.chunks_exact(4).flat_map(|p| [p[0], p[1], p[2]]).collect(),
        ColorType::L16 => raw.chunks_exact(2).flat_map(|p| [p[high]; 3]).collect(),
        ColorType::La16 => raw.chunks_exact(4).flat_map(|p| [p[high]; 3]).collect(),
        ColorType::Rgb16 => raw.chunks_exact(2).map(|p| p[high]).collect(),
        ColorType::Rgba16 => raw.chunks_exact(8).flat_map(|p| [p[high], p[2 + high], p[4 + high]]).collect(),
        other => return Err(format!("a {format} image with pixels of type {other:?}. Convert it to 8-bit RGB")),
    };
    Ok(Pixels { width, height, channels: 3, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_sizes_are_refused_before_memory_is_taken() {
        assert!(check_size(1 << 30, 1 << 30).unwrap_err().contains("more than 178956970"));
        assert!(check_size(13_377, 13_377).is_ok());
        assert!(check_size(0, 5).is_err());
    }
}
