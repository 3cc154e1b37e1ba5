//! Pillow's 8-bit resampling, bit for bit.
//!
//! Separable convolution with a filter stretched by the scale when shrinking (antialias), weights in fixed point with 22 bits
//! after the point, each pass rounded and clipped to 8 bits. The reference is Pillow 13.0.0 (`Image.resize`); its fixtures are
//! made by `scripts/reference/data_fixtures.py`. Exactness holds for that version: 13 runs the vertical pass first where the
//! height loses more than twice as many pixels as the width, which earlier ones did not, and the order decides the rounding.

use serde::{Deserialize, Serialize};

use super::kernel;
use super::weights::Weights;
use crate::decode::Pixels;
use crate::decode::part::{Rgbx, rgb};

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
    pub(super) fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
        }
    }

    pub(super) fn weight(self, x: f64) -> f64 {
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

/// A resize in the making: its weights, and the buffer between the passes. Kept from image to image.
#[derive(Debug, Default)]
pub(crate) struct Resizer {
    horizontal: Weights,
    vertical: Weights,
    /// Whether the sides change at all.
    passes: [bool; 2],
    vertical_first: bool,
    window: Option<Rect>,
    between: Vec<[u8; 4]>,
}

impl Resizer {
    /// Prepares the resize of an image of `source` to `size`, both [height, width], of which the part `window` is wanted.
    ///
    /// `region`, [left, top, right, bottom] in pixels of the source, is Pillow's `box`: the part that the result shows.
    /// Unlike a crop, pixels around it still reach into the result through the filter. Without it the whole is shown.
    ///
    /// Gives the part of the source that the result depends on.
    ///
    /// # Panics
    /// If source or size is empty, or if `window` reaches outside of `size`.
    pub(crate) fn prepare(
        &mut self,
        source: [usize; 2],
        size: [usize; 2],
        filter: Interpolation,
        region: Option<[f32; 4]>,
        window: Rect,
    ) -> Rect {
        let ([source_height, source_width], [height, width]) = (source, size);
        assert!(source_width > 0 && source_height > 0 && width > 0 && height > 0, "resize of or to nothing");
        assert!(window.x + window.width <= width && window.y + window.height <= height, "{window:?} of {width} × {height}");
        let whole = [0.0, 0.0, source_width as f32, source_height as f32];
        let [left, top, right, bottom] = region.unwrap_or(whole);
        let mut columns = window.x..window.x + window.width;
        let mut rows = window.y..window.y + window.height;
        self.passes = [
            height != source_height || top != 0.0 || bottom != height as f32,
            width != source_width || left != 0.0 || right != width as f32,
        ];
        if self.passes[0] {
            self.vertical.make(filter, source_height, [top, bottom], height, rows);
            rows = self.vertical.source();
        }
        if self.passes[1] {
            self.horizontal.make(filter, source_width, [left, right], width, columns);
            columns = self.horizontal.source();
        }
        let lost = |from: usize, to: usize| from as i64 - to as i64;
        self.vertical_first = source_height > height && lost(source_height, height) > 2 * lost(source_width, width);
        self.window = Some(window);
        Rect { x: columns.start, y: rows.start, width: columns.len(), height: rows.len() }
    }

    /// Resizes `view`, which is the part `needed` of the source that [`Resizer::prepare`] gave, to the front of `out`.
    ///
    /// # Panics
    /// If nothing is prepared, or the view is of another size.
    pub(crate) fn run(&mut self, view: Rgbx<'_>, needed: Rect, out: &mut Vec<[u8; 4]>) {
        let window = self.window.take().expect("a resize is prepared before it is run");
        assert_eq!([view.width(), view.height()], [needed.width, needed.height]);
        let out = front(out, window.width * window.height);
        match self.passes {
            [true, true] if self.vertical_first => {
                let between = front(&mut self.between, view.width() * window.height);
                kernel::vertical(view, &self.vertical, needed.y, between);
                let between = Rgbx::new(between, view.width(), view.width(), window.height);
                kernel::horizontal(between, &mut self.horizontal, needed.x, out);
            }
            [true, true] => {
                let between = front(&mut self.between, window.width * view.height());
                kernel::horizontal(view, &mut self.horizontal, needed.x, between);
                let between = Rgbx::new(between, window.width, window.width, view.height());
                kernel::vertical(between, &self.vertical, needed.y, out);
            }
            [false, true] => kernel::horizontal(view, &mut self.horizontal, needed.x, out),
            [true, false] => kernel::vertical(view, &self.vertical, needed.y, out),
            [false, false] => {
                for (y, line) in out.chunks_exact_mut(window.width.max(1)).enumerate() {
                    line.copy_from_slice(view.row(y));
                }
            }
        }
    }
}

/// The first `len` places of a buffer, which grows to hold them.
pub(crate) fn front(buffer: &mut Vec<[u8; 4]>, len: usize) -> &mut [[u8; 4]] {
    if buffer.len() < len {
        buffer.resize(len, [0; 4]);
    }
    &mut buffer[..len]
}

/// Resizes a view to `size`, [height, width], and returns the part `window` of the result.
///
/// `region`, [left, top, right, bottom] in pixels of the view, is Pillow's `box`: the part that the result shows. Unlike a
/// crop, pixels of the view around it still reach into the result through the filter. Without it the whole view is shown.
///
/// # Panics
/// If the view or `size` is empty, or if `window` reaches outside of `size`.
pub fn resize(view: View<'_>, size: [usize; 2], filter: Interpolation, region: Option<[f32; 4]>, window: Rect) -> Pixels {
    let mut resizer = Resizer::default();
    let needed = resizer.prepare([view.height, view.width], size, filter, region, window);
    let part = view.crop(needed);
    let mut packed = Vec::with_capacity(needed.width * needed.height);
    for y in 0..part.height {
        match view.channels {
            3 => packed.extend(part.row(y).chunks_exact(3).map(|p| [p[0], p[1], p[2], 0])),
            _ => packed.extend(part.row(y).iter().map(|&v| [v, v, v, 0])),
        }
    }
    let mut out = Vec::new();
    resizer.run(Rgbx::new(&packed, needed.width, needed.width, needed.height), needed, &mut out);
    let data = match view.channels {
        3 => rgb(&out),
        _ => out.iter().map(|p| p[0]).collect(),
    };
    Pixels { width: window.width, height: window.height, channels: view.channels, data }
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

    /// The chosen kernels against the plain ones, on rows shorter and longer than the filter and far from the scale 1.
    #[test]
    fn all_forms_of_a_pass_agree() {
        for case in 0..400 {
            let mut rng = stream(7, Purpose::Augment, 0, case);
            let mut up_to = |n: u64| 1 + below(&mut rng, n) as usize;
            let sides = if case % 4 == 0 { 900 } else { 60 };
            let (width, height, len) = (up_to(sides), up_to(sides / 4), up_to(60));
            let pixels = random_image(width, height, 3, case);
            let packed: Vec<[u8; 4]> = pixels.data.chunks_exact(3).map(|p| [p[0], p[1], p[2], 255]).collect();
            let view = Rgbx::new(&packed, width, width, height);
            let filter = if case % 3 == 0 { Interpolation::Bilinear } else { Interpolation::Bicubic };
            let mut weights = Weights::default();

            weights.make(filter, width, [0.0, width as f32], len, 0..len);
            let (mut fast, mut plain) = (vec![[0; 4]; len * height], vec![[1; 4]; len * height]);
            kernel::horizontal(view, &mut weights, 0, &mut fast);
            kernel::plain_horizontal(view, &weights, 0, &mut plain);
            assert_eq!(fast, plain, "case {case}: rows of {width} to {len}");

            weights.make(filter, height, [0.0, height as f32], len, 0..len);
            let (mut fast, mut plain) = (vec![[0; 4]; width * len], vec![[1; 4]; width * len]);
            kernel::vertical(view, &weights, 0, &mut fast);
            kernel::plain_vertical(view, &weights, 0, &mut plain, 0);
            assert_eq!(fast, plain, "case {case}: columns of {height} to {len}");
        }
    }
}
