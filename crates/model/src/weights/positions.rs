//! Position embeddings on another grid.

/// How a position embedding is brought to another grid. Both are bicubic, with pixel centres at half integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PositionResize {
    /// As timm 1.0 does (`resample_abs_pos_embed`, PyTorch's `interpolate` with `antialias=True`): the kernel has a = -0.5 and widens
    /// where the grid shrinks.
    #[default]
    Antialiased,
    /// As DeiT's own repository did for its 384-pixel models (PyTorch's `interpolate` without antialias): a = -0.75, four points.
    Plain,
}

/// `values` `[prefix + from_rows * from_columns, width]` as `[prefix + to_rows * to_columns, width]`, row-major both. The first `prefix`
/// rows are kept; the rest is resampled in each feature. The same grid is returned as it is.
///
/// Sums run in f64 and are rounded once; timm's run in f32.
pub fn resize_positions(
    values: &[f32],
    width: usize,
    prefix: usize,
    from: [usize; 2],
    to: [usize; 2],
    resize: PositionResize,
) -> Vec<f32> {
    assert_eq!(values.len(), (prefix + from[0] * from[1]) * width, "a position embedding of {prefix} + {from:?} places");
    if from == to {
        return values.to_vec();
    }
    let (kept, grid) = values.split_at(prefix * width);
    let vertical = taps(from[0], to[0], resize);
    let horizontal = taps(from[1], to[1], resize);

    // Columns first, then rows, each a weighted sum of whole tokens.
    let mut narrowed = vec![0.0f64; from[0] * to[1] * width];
    for row in 0..from[0] {
        for (column, taps) in horizontal.iter().enumerate() {
            let sum = &mut narrowed[(row * to[1] + column) * width..][..width];
            for &(source, weight) in taps {
                let token = &grid[(row * from[1] + source) * width..][..width];
                sum.iter_mut().zip(token).for_each(|(sum, value)| *sum += weight * f64::from(*value));
            }
        }
    }
    let mut resized = kept.to_vec();
    resized.reserve_exact(to[0] * to[1] * width);
    let mut sum = vec![0.0f64; to[1] * width];
    for taps in &vertical {
        sum.fill(0.0);
        for &(source, weight) in taps {
            let row = &narrowed[source * to[1] * width..][..to[1] * width];
            sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * value);
        }
        resized.extend(sum.iter().map(|value| *value as f32));
    }
    resized
}

/// For each place of a line of `to`, the places of a line of `from` that it is made of, with weights that sum to 1.
fn taps(from: usize, to: usize, resize: PositionResize) -> Vec<Vec<(usize, f64)>> {
    let scale = from as f64 / to as f64;
    (0..to)
        .map(|place| {
            let centre = scale * (place as f64 + 0.5);
            match resize {
                PositionResize::Antialiased => {
                    let stretch = scale.max(1.0);
                    let support = 2.0 * stretch;
                    let first = (centre - support + 0.5).max(0.0) as usize;
                    let last = ((centre + support + 0.5) as usize).min(from);
                    let weights: Vec<f64> =
                        (first..last).map(|source| cubic((source as f64 - centre + 0.5) / stretch, -0.5)).collect();
                    let total: f64 = weights.iter().sum();
                    (first..last).zip(weights.into_iter().map(|weight| weight / total)).collect()
                }
                PositionResize::Plain => {
                    let real = centre - 0.5;
                    let floor = real.floor();
                    (-1..3)
                        .map(|offset| {
                            let source = floor + f64::from(offset);
                            let clamped = source.clamp(0.0, (from - 1) as f64) as usize;
                            (clamped, cubic(real - source, -0.75))
                        })
                        .collect()
                }
            }
        })
        .collect()
}

/// Keys, Cubic convolution interpolation for digital image processing, 1981.
fn cubic(x: f64, a: f64) -> f64 {
    let x = x.abs();
    if x < 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_sum_to_one_and_constants_stay() {
        for resize in [PositionResize::Antialiased, PositionResize::Plain] {
            for (from, to) in [(14, 24), (14, 12), (14, 7), (1, 5), (5, 1), (37, 16)] {
                for taps in taps(from, to, resize) {
                    let total: f64 = taps.iter().map(|(_, weight)| weight).sum();
                    assert!((total - 1.0).abs() < 1e-12, "{from} to {to}: {total}");
                    assert!(taps.iter().all(|(source, _)| *source < from));
                }
            }
        }
        let constant = resize_positions(&[0.25; 9 * 2], 2, 0, [3, 3], [5, 4], PositionResize::Antialiased);
        assert!(constant.len() == 40 && constant.iter().all(|value| (value - 0.25).abs() < 1e-7));
    }

    #[test]
    fn the_same_grid_is_bit_equal_and_prefixes_stay() {
        let values: Vec<f32> = (0..(2 + 6) * 3).map(|value| (value as f32).sin()).collect();
        for resize in [PositionResize::Antialiased, PositionResize::Plain] {
            assert_eq!(resize_positions(&values, 3, 2, [2, 3], [2, 3], resize), values);
            assert_eq!(resize_positions(&values, 3, 2, [2, 3], [4, 4], resize)[..6], values[..6]);
        }
    }
}
