//! Weights of a resize along one side, as Pillow computes them.

use std::ops::Range;

use super::resize::Interpolation;

/// Bits after the binary point of a weight: 32, less 8 for the value and 2 for sums outside of it.
pub(super) const PRECISION: u32 = 22;

/// Bits of the lower part of a packed weight.
#[cfg(target_arch = "x86_64")]
pub(super) const LOW_BITS: u32 = 15;

/// For each target pixel the source pixels it is the weighted sum of. Made anew for each image in the same memory.
#[derive(Debug, Default)]
pub(super) struct Weights {
    /// First source pixel and number of weights of each target.
    spans: Vec<(usize, usize)>,
    /// Fixed-point weights, `width` places for each target.
    values: Vec<i32>,
    width: usize,
    /// Weights in groups of four, lower parts first, for each target.
    #[cfg(target_arch = "x86_64")]
    packed: Vec<[i16; 8]>,
    /// Where the groups of a target begin in the view's rows.
    #[cfg(target_arch = "x86_64")]
    starts: Vec<usize>,
    exact: Vec<f64>,
}

impl Weights {
    /// Weights from `source_len` pixels, of which the interval `region` is resized to `len`, for the pixels `targets` of the
    /// result.
    pub(super) fn make(&mut self, filter: Interpolation, source_len: usize, region: [f32; 2], len: usize, targets: Range<usize>) {
        let scale = (f64::from(region[1]) - f64::from(region[0])) / len as f64;
        let stretch = scale.max(1.0);
        let support = filter.support() * stretch;
        self.width = support.ceil() as usize * 2 + 1;
        self.spans.clear();
        self.values.clear();
        self.values.resize(self.width * targets.len(), 0);
        self.exact.clear();
        self.exact.resize(self.width, 0.0);
        let inverse = 1.0 / stretch;
        for (target, values) in targets.zip(self.values.chunks_exact_mut(self.width)) {
            let centre = f64::from(region[0]) + (target as f64 + 0.5) * scale;
            // Conversion truncates towards zero, and saturates below it.
            let first = (centre - support + 0.5) as usize;
            let last = ((centre + support + 0.5) as usize).min(source_len);
            let count = last.saturating_sub(first);
            let mut sum = 0.0;
            for (i, weight) in self.exact[..count].iter_mut().enumerate() {
                *weight = filter.weight(((i + first) as f64 - centre + 0.5) * inverse);
                sum += *weight;
            }
            for (weight, value) in self.exact[..count].iter().zip(values) {
                let weight = if sum == 0.0 { *weight } else { weight / sum };
                let fixed = weight * f64::from(1u32 << PRECISION);
                *value = if weight < 0.0 { (fixed - 0.5) as i32 } else { (fixed + 0.5) as i32 };
            }
            self.spans.push((first, count));
        }
    }

    /// Number of targets.
    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }

    /// Source pixels that any target needs.
    pub(super) fn source(&self) -> Range<usize> {
        let start = self.spans.iter().map(|s| s.0).min().unwrap_or(0);
        let end = self.spans.iter().map(|s| s.0 + s.1).max().unwrap_or(0);
        start..end.max(start)
    }

    /// First source pixel and weights of each target.
    pub(super) fn targets(&self) -> impl Iterator<Item = (usize, &[i32])> {
        let lines = self.values.chunks_exact(self.width.max(1));
        self.spans.iter().zip(lines).map(|(&(first, count), values)| (first, &values[..count]))
    }

    /// Packs the weights for rows that begin at source pixel `offset` and have `row` pixels. False: rows are too short for
    /// whole groups.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn pack(&mut self, offset: usize, row: usize) -> bool {
        let longest = self.spans.iter().map(|s| s.1).max().unwrap_or(0);
        let groups = longest.div_ceil(4).max(1);
        if groups * 4 > row {
            return false;
        }
        self.packed.clear();
        self.packed.resize(groups * self.spans.len(), [0; 8]);
        self.starts.clear();
        let lines = self.values.chunks_exact(self.width);
        for ((&(first, count), values), packed) in self.spans.iter().zip(lines).zip(self.packed.chunks_exact_mut(groups)) {
            // Near the right edge the groups begin earlier, with weights of zero in front.
            let start = (first - offset).min(row - groups * 4);
            let skip = first - offset - start;
            for (i, &value) in values[..count].iter().enumerate() {
                let group = &mut packed[(skip + i) / 4];
                group[(skip + i) % 4] = (value & ((1 << LOW_BITS) - 1)) as i16;
                group[4 + (skip + i) % 4] = (value >> LOW_BITS) as i16;
            }
            self.starts.push(start);
        }
        true
    }

    /// Start in the row and groups of weights of each target, after [`Weights::pack`].
    #[cfg(target_arch = "x86_64")]
    pub(super) fn packed(&self) -> impl Iterator<Item = (usize, &[[i16; 8]])> {
        let groups = self.packed.len() / self.starts.len().max(1);
        self.starts.iter().copied().zip(self.packed.chunks_exact(groups.max(1)))
    }
}
