//! Pixels of four bytes to planes.

use crate::decode::part::Rgbx;

/// Writes `(value / 255 - mean) / std` of each channel to `out`, [C, H, W]; in f32, in this order of operations, as torchvision's
/// `ToTensor` and `Normalize`. With `mirror` each row is written from right to left.
///
/// `mean`, `std` and `out` must fit the view; the transforms see to it.
pub(super) fn planar(view: Rgbx<'_>, mirror: bool, mean: &[f32], std: &[f32], out: &mut [f32]) {
    // 256 divisions instead of one a pixel, and the same bits.
    let table = |c: usize| std::array::from_fn::<f32, 256, _>(|value| (value as f32 / 255.0 - mean[c]) / std[c]);
    if mean.len() == 3 {
        let tables = [table(0), table(1), table(2)];
        planes(view, mirror, out, |c, value| tables[c][usize::from(value)]);
    } else {
        let table = table(0);
        plane(view, mirror, out, |value| table[usize::from(value)]);
    }
}

/// Writes the values as they are to `out`, [C, H, W].
pub(super) fn planar_u8(view: Rgbx<'_>, mirror: bool, channels: usize, out: &mut [u8]) {
    if channels == 3 {
        planes(view, mirror, out, |_, value| value);
    } else {
        plane(view, mirror, out, |value| value);
    }
}

#[inline(always)]
fn planes<T>(view: Rgbx<'_>, mirror: bool, out: &mut [T], value: impl Fn(usize, u8) -> T) {
    let (width, area) = (view.width(), view.width() * view.height());
    let (red, rest) = out.split_at_mut(area);
    let (green, blue) = rest.split_at_mut(area);
    let lines = red.chunks_exact_mut(width).zip(green.chunks_exact_mut(width)).zip(blue.chunks_exact_mut(width));
    for (y, ((red, green), blue)) in lines.enumerate() {
        let places = red.iter_mut().zip(green).zip(blue);
        let write = |(((r, g), b), p): (((&mut T, &mut T), &mut T), &[u8; 4])| {
            (*r, *g, *b) = (value(0, p[0]), value(1, p[1]), value(2, p[2]));
        };
        match mirror {
            true => places.zip(view.row(y).iter().rev()).for_each(write),
            false => places.zip(view.row(y)).for_each(write),
        }
    }
}

fn plane<T>(view: Rgbx<'_>, mirror: bool, out: &mut [T], value: impl Fn(u8) -> T) {
    for (y, line) in out.chunks_exact_mut(view.width()).enumerate() {
        match mirror {
            true => line.iter_mut().zip(view.row(y).iter().rev()).for_each(|(out, p)| *out = value(p[0])),
            false => line.iter_mut().zip(view.row(y)).for_each(|(out, p)| *out = value(p[0])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_are_normalised_and_mirrored() {
        let pixels = [[0, 51, 255, 7], [102, 153, 204, 7]];
        let view = Rgbx::new(&pixels, 2, 2, 1);
        let (mean, std) = ([0.485f32, 0.456, 0.406], [0.229f32, 0.224, 0.225]);
        let mut out = [0.0; 6];
        planar(view, false, &mean, &std, &mut out);
        let expected: Vec<f32> = [(0, 0), (102, 0), (51, 1), (153, 1), (255, 2), (204, 2)]
            .iter()
            .map(|&(v, c)| (v as f32 / 255.0 - mean[c]) / std[c])
            .collect();
        assert_eq!(out, expected[..]);
        let mut mirrored = [0.0; 6];
        planar(view, true, &mean, &std, &mut mirrored);
        assert_eq!(mirrored, [expected[1], expected[0], expected[3], expected[2], expected[5], expected[4]]);

        let mut bytes = [0; 6];
        planar_u8(view, true, 3, &mut bytes);
        assert_eq!(bytes, [102, 0, 153, 51, 204, 255]);
        let mut grey = [0; 2];
        planar_u8(view, false, 1, &mut grey);
        assert_eq!(grey, [0, 102]);
    }
}
