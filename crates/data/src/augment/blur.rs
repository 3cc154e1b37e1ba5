//! Pillow's `GaussianBlur`: three passes of an extended box blur each way (Gwosdek et al. 2011).

use super::canvas::Canvas;
use super::wide::blur_row;

const PASSES: usize = 3;

/// A box with fractional edges, in fixed point of 24 bits.
#[derive(Clone, Copy)]
struct Box {
    radius: usize,
    /// Weight of a whole pixel.
    whole: u32,
    /// Weight of the two at the ends.
    part: u32,
}

impl Box {
    /// The box whose repetition comes near a Gaussian of the given standard deviation; in single precision, as Pillow.
    fn for_gaussian(deviation: f32) -> Self {
        let variance = deviation * deviation / PASSES as f32;
        let length = (12.0 * f64::from(variance) + 1.0).sqrt() as f32;
        let whole = ((f64::from(length) - 1.0) / 2.0).floor() as f32;
        let mut part = (2.0 * whole + 1.0) * (whole * (whole + 1.0) - 3.0 * variance);
        part /= 6.0 * (variance - (whole + 1.0) * (whole + 1.0));
        let radius = whole + part;
        let full = radius as usize;
        let weight = ((1u32 << 24) as f32 / (radius * 2.0 + 1.0)) as u32;
        let rest = (1u32 << 24).wrapping_sub((2 * full as u32 + 1).wrapping_mul(weight)) / 2;
        Self { radius: full, whole: weight, part: rest }
    }
}

/// Blurs by a Gaussian of the given standard deviation in pixels.
pub(super) fn gaussian(canvas: &mut Canvas<'_>, deviation: f64) {
    let deviation = deviation as f32;
    if deviation == 0.0 {
        return;
    }
    let shape = Box::for_gaussian(deviation);
    let (width, height) = (canvas.width, canvas.height);
    if width == 0 || height == 0 {
        return;
    }
    // Columns go side by side, rows do not: for the passes along rows the image is turned over its diagonal.
    let mut sums = vec![[0u32; 4]; width.max(height)];
    canvas.replace(|image, out| transpose(image, out, width));
    for _ in 0..PASSES {
        canvas.replace(|image, out| along_columns(image, out, height, width, &mut sums[..height], shape));
    }
    canvas.replace(|image, out| transpose(image, out, height));
    for _ in 0..PASSES {
        canvas.replace(|image, out| along_columns(image, out, width, height, &mut sums[..width], shape));
    }
}

/// Rows of `width` pixels become columns.
fn transpose(image: &[[u8; 4]], out: &mut [[u8; 4]], width: usize) {
    // In blocks, so that what is read and what is written stays in the nearest cache.
    const BLOCK: usize = 16;
    let height = image.len() / width;
    for top in (0..height).step_by(BLOCK) {
        for left in (0..width).step_by(BLOCK) {
            for y in top..(top + BLOCK).min(height) {
                let right = (left + BLOCK).min(width);
                for (x, &pixel) in (left..right).zip(&image[y * width + left..y * width + right]) {
                    out[x * height + y] = pixel;
                }
            }
        }
    }
}

/// Adds a pixel to a sum.
fn add(sum: &mut [u32; 4], pixel: [u8; 4]) {
    sum.iter_mut().zip(pixel).for_each(|(sum, value)| *sum = sum.wrapping_add(u32::from(value)));
}

/// Pixels beyond an end are those at the end.
fn along_columns(image: &[[u8; 4]], out: &mut [[u8; 4]], width: usize, height: usize, sums: &mut [[u32; 4]], shape: Box) {
    let radius = shape.radius;
    let row = |y: usize| &image[y.min(height - 1) * width..][..width];
    for (sum, &first) in sums.iter_mut().zip(row(0)) {
        *sum = first.map(|v| u32::from(v) * (radius as u32 + 1));
    }
    for y in 0..radius {
        for (sum, &pixel) in sums.iter_mut().zip(row(y)) {
            add(sum, pixel);
        }
    }
    for (y, line) in out.chunks_exact_mut(width).enumerate() {
        let (left, near, far) = (row(y.saturating_sub(radius + 1)), row(y + radius), row(y + radius + 1));
        let weights = [shape.whole, shape.part];
        let values = [left.as_flattened(), near.as_flattened(), far.as_flattened()];
        blur_row(sums.as_flattened_mut(), values[0], values[1], values[2], line.as_flattened_mut(), weights);
    }
}
