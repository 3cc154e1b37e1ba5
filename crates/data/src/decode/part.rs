//! A part of an image in a buffer that is kept from image to image.

use super::libjpeg::Decoded;
use super::sniff::{Format, sniff};
use super::{Pixels, decode_other, jpeg};
use crate::transform::resize::{Rect, front};

/// Pixels of four bytes: red, green, blue, and one without meaning; or grey thrice.
///
/// A rectangle of an image, in rows of a stride that may be longer.
#[derive(Clone, Copy)]
pub(crate) struct Rgbx<'a> {
    data: &'a [[u8; 4]],
    stride: usize,
    width: usize,
    height: usize,
}

impl<'a> Rgbx<'a> {
    /// # Panics
    /// If `data` is too short.
    pub(crate) fn new(data: &'a [[u8; 4]], stride: usize, width: usize, height: usize) -> Self {
        assert!(width <= stride && (height == 0 || data.len() >= (height - 1) * stride + width));
        Self { data, stride, width, height }
    }

    pub(crate) fn width(self) -> usize {
        self.width
    }

    pub(crate) fn height(self) -> usize {
        self.height
    }

    pub(crate) fn row(self, y: usize) -> &'a [[u8; 4]] {
        &self.data[y * self.stride..][..self.width]
    }
}

/// Where a part lies in its buffer.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    stride: usize,
    left: usize,
    width: usize,
    height: usize,
}

impl Part {
    pub(crate) fn view(self, buffer: &[[u8; 4]]) -> Rgbx<'_> {
        Rgbx::new(&buffer[self.left..], self.stride, self.width, self.height)
    }

    /// All pixels of its rows, and some around it.
    pub(crate) fn buffer_mut(self, buffer: &mut [[u8; 4]]) -> &mut [[u8; 4]] {
        &mut buffer[..self.stride * self.height]
    }
}

/// Decodes the rectangle that `choose` names, given the image's width and height. The result lies in `buffer`.
///
/// A JPEG is read only as far as the rectangle needs; the pixels are those of the whole image.
///
/// # Errors
/// As [`super::decode_rgb`], without a name.
pub(crate) fn decode_part(
    bytes: &[u8],
    choose: &mut dyn FnMut(usize, usize) -> Rect,
    buffer: &mut Vec<[u8; 4]>,
) -> Result<Part, String> {
    match sniff(bytes) {
        Format::Jpeg => {
            let Decoded { rect, stride, left } = jpeg::decode(bytes, choose, buffer)?;
            Ok(Part { stride, left, width: rect.width, height: rect.height })
        }
        format => {
            let pixels = decode_other(bytes, format)?;
            let rect = choose(pixels.width, pixels.height);
            Ok(pack(&pixels, rect, buffer))
        }
    }
}

/// Copies a rectangle of an image to the front of `buffer`.
///
/// # Panics
/// If the rectangle reaches outside.
pub(crate) fn pack(pixels: &Pixels, rect: Rect, buffer: &mut Vec<[u8; 4]>) -> Part {
    let channels = pixels.channels;
    let out = front(buffer, rect.width * rect.height);
    for (y, line) in out.chunks_exact_mut(rect.width.max(1)).enumerate() {
        let start = ((rect.y + y) * pixels.width + rect.x) * channels;
        let row = &pixels.data[start..start + rect.width * channels];
        match channels {
            3 => line.iter_mut().zip(row.chunks_exact(3)).for_each(|(out, p)| *out = [p[0], p[1], p[2], 0]),
            _ => line.iter_mut().zip(row).for_each(|(out, &v)| *out = [v, v, v, 0]),
        }
    }
    Part { stride: rect.width, left: 0, width: rect.width, height: rect.height }
}

/// Without the fourth byte.
pub(crate) fn rgb(pixels: &[[u8; 4]]) -> Vec<u8> {
    let mut data = vec![0; pixels.len() * 3];
    data.chunks_exact_mut(3).zip(pixels).for_each(|(out, pixel)| out.copy_from_slice(&pixel[..3]));
    data
}
