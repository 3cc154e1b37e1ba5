//! Pillow's 8-bit resampling, bit for bit.
//!
//! Separable convolution with a filter stretched by the scale when shrinking (antialias), weights in fixed point with 22 bits
//! after the point, each pass rounded and clipped to 8 bits. The reference is Pillow 13.0.0 (`Image.resize`); its fixtures are
//! made by `scripts/reference/data_fixtures.py`. Exactness holds for that version: 13 runs the vertical pass first where the
//! height loses more than twice as many pixels as the width, which earlier ones did not, and the order decides the rounding.

use serde::{Deserialize, Serialize};

use crate::decode::Pixels;

/// A resampling filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpolation {
    /// Triangle, two source pixels wide.
    Bilinear,
    /// Keys' cubic convolution with a = -0.5, four source pixels wide.
    #[default]
    Bicubic,
}

impl Interpolation {
    /// Half the width, in source pixels at scale 1.
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        const A: f64 = -0.5;
        let x = x.abs();
        match self {
            Self::Bilinear if x < 1.0 => 1.0 - x,
            Self::Bicubic if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
            Self::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
            _ => 0.0,
        }
    }
}

/// A rectangle in pixels, from the upper left corner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Rect {
    pub x: usize,
    pub y: usize,
    pub width: usize,
    pub height: usize,
}

/// A rectangle of an image, not copied.
#[derive(Clone, Copy)]
pub struct View<'a> {
    data: &'a [u8],
    stride: usize,
    width: usize,
    height: usize,
    channels: usize,
}

impl<'a> View<'a> {
    /// The whole image.
    pub fn new(pixels: &'a Pixels) -> Self {
        Self {
            data: &pixels.data,
            stride: pixels.width * pixels.channels,
            width: pixels.width,
            height: pixels.height,
            channels: pixels.channels,
        }
    }

    /// A part of it.
    ///
    /// # Panics
    /// If it reaches outside.
    pub fn crop(self, rect: Rect) -> Self {
        assert!(rect.x + rect.width <= self.width && rect.y + rect.height <= self.height, "{rect:?} is outside");
        let start = rect.y * self.stride + rect.x * self.channels;
        Self { data: &self.data[start.min(self.data.len())..], width: rect.width, height: rect.height, ..self }
    }

    /// Pixels in a row.
    pub fn width(self) -> usize {
        self.width
    }

    /// Number of rows.
    pub fn height(self) -> usize {
        self.height
    }

    /// Values of a pixel.
    pub fn channels(self) -> usize {
        self.channels
    }

    /// One row, channels interleaved.
    pub fn row(self, y: usize) -> &'a [u8] {
        let start = y * self.stride;
        &self.data[start..start + self.width * self.channels]
    }
}

/// Bits after the binary point of a weight: 32, less 8 for the value and 2 for sums outside of it.
const PRECISION: u32 = 22;

/// Weights of the source pixels that make each target pixel.
struct Weights {
    /// First source pixel of each target pixel, and how many.
    spans: Vec<(usize, usize)>,
    /// `width` weights for each target pixel.
    values: Vec<i32>,
    width: usize,
}

impl Weights {
    /// Weights of target pixels `targets` out of `target_len`, which show `region` of a line of `source_len` pixels.
    fn new(
        filter: Interpolation,
        source_len: usize,
        region: [f32; 2],
        target_len: usize,
        targets: std::ops::Range<usize>,
    ) -> Self {
        // The region's length is rounded to f32 before it is widened, as in the reference.
        let scale = f64::from(region[1] - region[0]) / target_len as f64;
        let stretch = scale.max(1.0);
        let support = filter.support() * stretch;
        let width = support.ceil() as usize * 2 + 1;
        let mut weights = Self { spans: Vec::new(), values: vec![0; width * targets.len()], width };
        let mut exact = vec![0.0; width];
        for (target, values) in targets.zip(weights.values.chunks_exact_mut(width)) {
            let centre = f64::from(region[0]) + (target as f64 + 0.5) * scale;
            // Conversion truncates towards zero, and saturates below it.
            let first = (centre - support + 0.5) as usize;
            let last = ((centre + support + 0.5) as usize).min(source_len);
            let count = last.saturating_sub(first);
            let inverse = 1.0 / stretch;
            let mut sum = 0.0;
            for (i, weight) in exact[..count].iter_mut().enumerate() {
                *weight = filter.weight(((i + first) as f64 - centre + 0.5) * inverse);
                sum += *weight;
            }
            for (weight, value) in exact[..count].iter().zip(values) {
                let weight = if sum == 0.0 { *weight } else { weight / sum };
                let fixed = weight * f64::from(1u32 << PRECISION);
                *value = if weight < 0.0 { (fixed - 0.5) as i32 } else { (fixed + 0.5) as i32 };
            }
            weights.spans.push((first, count));
        }
        weights
    }

    /// Source pixels that any target pixel needs.
    fn source(&self) -> std::ops::Range<usize> {
        let start = self.spans.iter().map(|s| s.0).min().unwrap_or(0);
        let end = self.spans.iter().map(|s| s.0 + s.1).max().unwrap_or(0);
        start..end.max(start)
    }

    fn targets(&self) -> impl Iterator<Item = (usize, &[i32])> {
        let lines = self.values.chunks_exact(self.width);
        self.spans.iter().zip(lines).map(|(&(first, count), values)| (first, &values[..count]))
    }
}

/// Resizes a view to `size`, [height, width], and returns the part `window` of the result.
///
/// `region`, [left, top, right, bottom] in pixels of the view, is Pillow's `box`: the part that the result shows. Unlike a
/// crop, pixels of the view around it still reach into the result through the filter. Without it the whole view is shown.
///
/// # Panics
/// If the view or `size` is empty, or if `window` reaches outside of `size`.
pub fn resize(view: View<'_>, size: [usize; 2], filter: Interpolation, region: Option<[f32; 4]>, window: Rect) -> Pixels {
    let [height, width] = size;
    assert!(view.width > 0 && view.height > 0 && width > 0 && height > 0, "resize of or to nothing");
    assert!(window.x + window.width <= width && window.y + window.height <= height, "{window:?} of {width} × {height}");
    let whole = [0.0, 0.0, view.width as f32, view.height as f32];
    let [left, top, right, bottom] = region.unwrap_or(whole);
    let columns = window.x..window.x + window.width;
    let rows = window.y..window.y + window.height;
    let horizontal = (width != view.width || left != 0.0 || right != width as f32)
        .then(|| Weights::new(filter, view.width, [left, right], width, columns.clone()));
    let vertical = (height != view.height || top != 0.0 || bottom != height as f32)
        .then(|| Weights::new(filter, view.height, [top, bottom], height, rows.clone()));

    match (horizontal, vertical) {
        (Some(horizontal), Some(vertical)) => {
            let lost = |from: usize, to: usize| from as i64 - to as i64;
            let vertical_first = view.height > height && lost(view.height, height) > 2 * lost(view.width, width);
            if vertical_first {
                let needed = horizontal.source();
                let part = Rect { x: needed.start, y: 0, width: needed.len(), height: view.height };
                let between = resize_vertical(view.crop(part), &vertical, 0);
                resize_horizontal(View::new(&between), &horizontal, needed.start)
            } else {
                let needed = vertical.source();
                let part = Rect { x: 0, y: needed.start, width: view.width, height: needed.len() };
                let between = resize_horizontal(view.crop(part), &horizontal, 0);
                resize_vertical(View::new(&between), &vertical, needed.start)
            }
        }
        (Some(horizontal), None) => {
            let part = Rect { x: 0, y: rows.start, width: view.width, height: rows.len() };
            resize_horizontal(view.crop(part), &horizontal, 0)
        }
        (None, Some(vertical)) => {
            let part = Rect { x: columns.start, y: 0, width: columns.len(), height: view.height };
            resize_vertical(view.crop(part), &vertical, 0)
        }
        (None, None) => {
            let view = view.crop(window);
            let data = (0..view.height).flat_map(|y| view.row(y).iter().copied()).collect();
            Pixels { width: view.width, height: view.height, channels: view.channels, data }
        }
    }
}

/// Half of the last bit kept, where every sum starts.
const HALF: i32 = 1 << (PRECISION - 1);

fn clip(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

/// `offset`: the source column at which the view begins.
fn resize_horizontal(view: View<'_>, weights: &Weights, offset: usize) -> Pixels {
    match view.channels {
        1 => resize_rows::<1>(view, weights, offset),
        3 => resize_rows::<3>(view, weights, offset),
        n => unreachable!("pixels of {n} channels"),
    }
}

fn resize_rows<const C: usize>(view: View<'_>, weights: &Weights, offset: usize) -> Pixels {
    let width = weights.spans.len();
    let mut data = vec![0u8; width * view.height * C];
    for (y, out) in data.chunks_exact_mut((width * C).max(1)).enumerate() {
        let row = view.row(y);
        for (pixel, (first, values)) in out.chunks_exact_mut(C).zip(weights.targets()) {
            let start = (first - offset) * C;
            let mut sums = [HALF; C];
            for (source, &weight) in row[start..].chunks_exact(C).zip(values) {
                for (sum, &value) in sums.iter_mut().zip(source) {
                    *sum += i32::from(value) * weight;
                }
            }
            for (out, sum) in pixel.iter_mut().zip(sums) {
                *out = clip(sum);
            }
        }
    }
    Pixels { width, height: view.height, channels: C, data }
}

/// `offset`: the source row at which the view begins.
fn resize_vertical(view: View<'_>, weights: &Weights, offset: usize) -> Pixels {
    // Sums of a piece of a row stay in registers and the nearest cache over all its source rows.
    const PIECE: usize = 64;
    let height = weights.spans.len();
    let row = view.width * view.channels;
    let mut data = vec![0u8; row * height];
    for (out, (first, values)) in data.chunks_exact_mut(row.max(1)).zip(weights.targets()) {
        for (piece, out) in out.chunks_mut(PIECE).enumerate() {
            let mut sums = [HALF; PIECE];
            let columns = piece * PIECE..piece * PIECE + out.len();
            for (y, &weight) in (first - offset..).zip(values) {
                let source = &view.row(y)[columns.clone()];
                for (sum, &value) in sums.iter_mut().zip(source) {
                    *sum += i32::from(value) * weight;
                }
            }
            for (out, sum) in out.iter_mut().zip(sums) {
                *out = clip(sum);
            }
        }
    }
    Pixels { width: view.width, height, channels: view.channels, data }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, below, stream};

    fn random_image(width: usize, height: usize, channels: usize, seed: u64) -> Pixels {
        let mut rng = stream(seed, Purpose::Augment, 0, 0);
        let data = (0..width * height * channels).map(|_| below(&mut rng, 256) as u8).collect();
        Pixels { width, height, channels, data }
    }

    fn all(size: [usize; 2]) -> Rect {
        Rect { x: 0, y: 0, width: size[1], height: size[0] }
    }

    #[test]
    fn a_flat_image_stays_flat() {
        for case in 0..200 {
            let mut rng = stream(4, Purpose::Augment, 0, case);
            let mut side = || 1 + below(&mut rng, 50) as usize;
            let (width, height, size) = (side(), side(), [side(), side()]);
            let image = Pixels { width, height, channels: 3, data: vec![case as u8; width * height * 3] };
            for filter in [Interpolation::Bilinear, Interpolation::Bicubic] {
                let out = resize(View::new(&image), size, filter, None, all(size));
                assert!(out.data.iter().all(|&v| v == case as u8), "{width} × {height} to {size:?}");
            }
        }
    }

    #[test]
    fn a_window_is_that_part_of_the_whole() {
        for case in 0..300 {
            let mut rng = stream(5, Purpose::Augment, 0, case);
            let mut up_to = |n: usize| below(&mut rng, n as u64) as usize;
            let image = random_image(1 + up_to(40), 1 + up_to(40), if case % 2 == 0 { 3 } else { 1 }, case);
            let size = [1 + up_to(40), 1 + up_to(40)];
            let (x, y) = (up_to(size[1]), up_to(size[0]));
            let window = Rect { x, y, width: 1 + up_to(size[1] - x), height: 1 + up_to(size[0] - y) };
            let whole = resize(View::new(&image), size, Interpolation::Bicubic, None, all(size));
            let part = resize(View::new(&image), size, Interpolation::Bicubic, None, window);
            let cut = resize(
                View::new(&whole).crop(window),
                [window.height, window.width],
                Interpolation::Bicubic,
                None,
                all([window.height, window.width]),
            );
            assert_eq!(part, cut, "case {case}");
        }
    }

    #[test]
    fn the_same_size_is_a_copy() {
        let image = random_image(17, 9, 3, 6);
        assert_eq!(resize(View::new(&image), [9, 17], Interpolation::Bicubic, None, all([9, 17])), image);
    }
}
