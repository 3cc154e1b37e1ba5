//! Pillow's affine `Image.transform` and `Image.rotate`: bicubic with a = -1 or bilinear, without antialiasing, in double
//! precision.

use super::canvas::Canvas;
use crate::transform::Interpolation;

/// From the middle of an output pixel to a place in the input: x' = m0 x + m1 y + m2, y' = m3 x + m4 y + m5.
pub(super) type Matrix = [f64; 6];

pub(super) type Pixel = [u8; 4];
type Lanes = [f64; 4];

/// Places outside of the image take the colour `fill`.
pub(super) fn transform(canvas: &mut Canvas<'_>, matrix: Matrix, filter: Interpolation, fill: Pixel) {
    let (width, height) = (canvas.width, canvas.height);
    canvas.replace(|image, out| {
        let image = Image { pixels: image, width, height };
        #[cfg(target_arch = "x86_64")]
        if filter == Interpolation::Bicubic && super::avx2::bicubic(image, out, matrix, fill) {
            return;
        }
        resample(image, out, matrix, filter, fill);
    });
}

/// Turns by `degrees` against the clock around the middle.
pub(super) fn rotate(canvas: &mut Canvas<'_>, degrees: f64, filter: Interpolation, fill: Pixel) {
    // Half turns, and quarter turns of a square, are copies in Pillow.
    let degrees = degrees.rem_euclid(360.0);
    if degrees == 0.0 {
        return;
    }
    if degrees == 180.0 {
        canvas.mirror();
        canvas.flip();
        return;
    }
    if canvas.width == canvas.height && (degrees == 90.0 || degrees == 270.0) {
        let side = canvas.width;
        canvas.replace(|image, out| {
            for (i, out) in out.iter_mut().enumerate() {
                let (y, x) = (i / side, i % side);
                *out = if degrees == 90.0 { image[x * side + side - 1 - y] } else { image[(side - 1 - x) * side + y] };
            }
        });
        return;
    }
    let angle = -degrees.to_radians();
    // Python's `round(v, 15)`: the exact value, written with 15 digits and read again.
    let rounded = |v: f64| format!("{v:.15}").parse::<f64>().unwrap_or(v);
    let (cos, sin, minus_sin) = (rounded(angle.cos()), rounded(angle.sin()), rounded(-angle.sin()));
    let (x, y) = (canvas.width as f64 / 2.0, canvas.height as f64 / 2.0);
    let c = cos * -x + sin * -y + 0.0 + x;
    let f = minus_sin * -x + cos * -y + 0.0 + y;
    transform(canvas, [cos, sin, c, minus_sin, cos, f], filter, fill);
}

#[derive(Clone, Copy)]
pub(super) struct Image<'a> {
    pub(super) pixels: &'a [Pixel],
    pub(super) width: usize,
    pub(super) height: usize,
}

/// Between which pixels a place lies: `x`, `y` and the next, and how far from the first.
pub(super) struct Place {
    pub(super) x: isize,
    pub(super) y: isize,
    pub(super) dx: f64,
    pub(super) dy: f64,
}

impl<'a> Image<'a> {
    /// Beyond the edges, the row at the edge.
    #[inline(always)]
    pub(super) fn row(self, y: isize) -> &'a [Pixel] {
        let y = y.clamp(0, self.height as isize - 1) as usize;
        &self.pixels[y * self.width..(y + 1) * self.width]
    }

    /// Where an output pixel comes from; none: from outside.
    #[inline(always)]
    pub(super) fn place(self, [a, b, c, d, e, f]: Matrix, x: usize, y: usize) -> Option<Place> {
        let (u, v) = (x as i32 as f64 + 0.5, y as i32 as f64 + 0.5);
        let (x, y) = (a * u + b * v + c, d * u + e * v + f);
        if x < 0.0 || x >= self.width as f64 || y < 0.0 || y >= self.height as f64 {
            return None;
        }
        let (x, y) = (x - 0.5, y - 0.5);
        // Not below -0.5, and far below the limits of an i32: truncation and a step down make the floor.
        let floor = |v: f64| v as i32 - i32::from(v < 0.0 && f64::from(v as i32) != v);
        let (ix, iy) = (floor(x), floor(y));
        Some(Place { x: ix as isize, y: iy as isize, dx: x - f64::from(ix), dy: y - f64::from(iy) })
    }

    /// Whether each row comes from itself: then the fraction along the column is 0, and the cubic there the middle value.
    pub(super) fn keeps_rows([.., d, e, f]: Matrix) -> bool {
        [d, e, f] == [0.0, 1.0, 0.0]
    }

    /// Whether each column comes from itself.
    pub(super) fn keeps_columns([a, b, c, ..]: Matrix) -> bool {
        [a, b, c] == [1.0, 0.0, 0.0]
    }
}

fn resample(image: Image<'_>, out: &mut [Pixel], matrix: Matrix, filter: Interpolation, fill: Pixel) {
    for (y, line) in out.chunks_exact_mut(image.width.max(1)).enumerate() {
        for (x, out) in line.iter_mut().enumerate() {
            let Some(place) = image.place(matrix, x, y) else {
                *out = fill;
                continue;
            };
            let Place { x: ix, y: iy, dx, dy } = place;
            *out = match filter {
                Interpolation::Bicubic => bicubic_pixel(image, &place),
                Interpolation::Bilinear => {
                    let rows = [0, 1].map(|i| {
                        let row = image.row(iy + i);
                        let [p, q] = [0, 1].map(|j| lanes(row[(ix + j).clamp(0, row.len() as isize - 1) as usize]));
                        linear(p, q, dx)
                    });
                    cut(linear(rows[0], rows[1], dy))
                }
            };
        }
    }
}

/// The cubic along a column through the cubics along four rows.
pub(super) fn bicubic_pixel(image: Image<'_>, place: &Place) -> Pixel {
    cut(cubic([-1, 0, 1, 2].map(|i| along(image.row(place.y + i), place.x, place.dx)), place.dy))
}

/// The cubic through four pixels of a row, the second of which is at `x`; beyond the ends those at the ends.
#[inline(always)]
fn along(row: &[Pixel], x: isize, d: f64) -> Lanes {
    cubic([-1, 0, 1, 2].map(|i| lanes(row[(x + i).clamp(0, row.len() as isize - 1) as usize])), d)
}

#[inline(always)]
fn lanes(pixel: Pixel) -> Lanes {
    pixel.map(|v| f64::from(i32::from(v)))
}

/// Keys' cubic with a = -1, in Pillow's order of operations.
#[inline(always)]
fn cubic([v1, v2, v3, v4]: [Lanes; 4], d: f64) -> Lanes {
    std::array::from_fn(|i| {
        let (v1, v2, v3, v4) = (v1[i], v2[i], v3[i], v4[i]);
        let p2 = -v1 + v3;
        let p3 = 2.0 * (v1 - v2) + v3 - v4;
        let p4 = -v1 + v2 - v3 + v4;
        v2 + d * (p2 + d * (p3 + d * p4))
    })
}

#[inline(always)]
fn linear(a: Lanes, b: Lanes, d: f64) -> Lanes {
    std::array::from_fn(|i| a[i] + (b[i] - a[i]) * d)
}

#[inline(always)]
fn cut(values: Lanes) -> Pixel {
    values.map(|v| v.clamp(0.0, 255.0) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, below, stream, uniform_in};

    /// Also against rows that are kept, which the fast form treats apart.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn both_forms_agree() {
        for case in 0..200 {
            let mut rng = stream(11, Purpose::Augment, 0, case);
            let (width, height) = (1 + below(&mut rng, 40) as usize, 1 + below(&mut rng, 40) as usize);
            let pixels: Vec<Pixel> = (0..width * height).map(|_| (below(&mut rng, 1 << 32) as u32).to_le_bytes()).collect();
            let image = Image { pixels: &pixels, width, height };
            let mut any = |scale: f64| uniform_in(&mut rng, -scale, scale);
            let matrix = match case % 4 {
                0 => [1.0, any(0.5), any(9.0), 0.0, 1.0, 0.0],
                1 => [1.0, 0.0, 0.0, any(0.5), 1.0, any(9.0)],
                _ => [any(2.0), any(2.0), any(30.0), any(2.0), any(2.0), any(30.0)],
            };
            let (mut plain, mut fast) = (vec![[1; 4]; width * height], vec![[2; 4]; width * height]);
            resample(image, &mut plain, matrix, Interpolation::Bicubic, [9; 4]);
            if super::super::avx2::bicubic(image, &mut fast, matrix, [9; 4]) {
                assert_eq!(plain, fast, "case {case}: {matrix:?}");
            }
        }
    }
}
