//! 8-bit interleaved pixels to normalised planes.

use super::resize::View;
use crate::decode::Pixels;

/// Writes `(value / 255 - mean) / std` of each channel to `out`, [C, H, W]; in f32, in this order of operations, as torchvision's
/// `ToTensor` and `Normalize`. With `mirror` each row is written from right to left.
///
/// `mean`, `std` and `out` must fit the view; the transforms see to it.
pub(super) fn planar(view: View<'_>, mirror: bool, mean: &[f32], std: &[f32], out: &mut [f32]) {
    let (width, height, channels) = (view.width(), view.height(), view.channels());
    for (channel, plane) in out.chunks_exact_mut(width * height).enumerate() {
        // 256 divisions instead of one a pixel, and the same bits.
        let table: [f32; 256] = std::array::from_fn(|value| (value as f32 / 255.0 - mean[channel]) / std[channel]);
        for (y, line) in plane.chunks_exact_mut(width).enumerate() {
            let values = view.row(y)[channel..].iter().step_by(channels);
            if mirror {
                line.iter_mut().rev().zip(values).for_each(|(out, &value)| *out = table[usize::from(value)]);
            } else {
                line.iter_mut().zip(values).for_each(|(out, &value)| *out = table[usize::from(value)]);
            }
        }
    }
}

/// The mirror image.
pub(super) fn mirrored(pixels: &Pixels) -> Pixels {
    let row = pixels.width * pixels.channels;
    let data = pixels.data.chunks_exact(row).flat_map(|line| line.rchunks_exact(pixels.channels).flatten().copied());
    Pixels { data: data.collect(), ..*pixels }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_are_normalised_and_mirrored() {
        let pixels = Pixels { width: 2, height: 1, channels: 3, data: vec![0, 51, 255, 102, 153, 204] };
        let (mean, std) = ([0.485f32, 0.456, 0.406], [0.229f32, 0.224, 0.225]);
        let mut out = [0.0; 6];
        planar(View::new(&pixels), false, &mean, &std, &mut out);
        let expected: Vec<f32> = [(0, 0), (102, 0), (51, 1), (153, 1), (255, 2), (204, 2)]
            .iter()
            .map(|&(v, c)| (v as f32 / 255.0 - mean[c]) / std[c])
            .collect();
        assert_eq!(out, expected[..]);

        let mut straight = [0.0; 6];
        planar(View::new(&mirrored(&pixels)), false, &mean, &std, &mut straight);
        planar(View::new(&pixels), true, &mean, &std, &mut out);
        assert_eq!(out, straight);
        assert_eq!(out[..2], [expected[1], expected[0]]);
    }
}
