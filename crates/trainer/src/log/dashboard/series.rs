//! A curve in bounded memory.

/// Points kept at most; a screen has fewer columns.
const MOST: usize = 4096;

/// Values over steps. Beyond some thousand points, neighbours are averaged.
#[derive(Debug, Clone, Default)]
pub(super) struct Series {
    points: Vec<(f64, f64)>,
    /// Values that make one point.
    stride: usize,
    /// The point that is being made: its number of values and their sums.
    open: (usize, f64, f64),
    last: Option<f64>,
}

impl Series {
    /// Adds a value at `step`. What is not finite is left out of the curve.
    pub fn push(&mut self, step: u64, value: f64) {
        if !value.is_finite() {
            return;
        }
        self.last = Some(value);
        let stride = self.stride.max(1);
        self.open = (self.open.0 + 1, self.open.1 + step as f64, self.open.2 + value);
        if self.open.0 < stride {
            return;
        }
        self.points.push((self.open.1 / stride as f64, self.open.2 / stride as f64));
        self.open = (0, 0.0, 0.0);
        if self.points.len() >= MOST {
            let middle = |pair: &[(f64, f64)]| ((pair[0].0 + pair[1].0) / 2.0, (pair[0].1 + pair[1].1) / 2.0);
            self.points = self.points.chunks_exact(2).map(middle).collect();
            self.stride = stride * 2;
        }
    }

    /// The curve.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// The newest value.
    pub fn last(&self) -> Option<f64> {
        self.last
    }
}

/// Least and greatest of steps and of values over several curves.
pub(super) fn bounds<'a>(series: impl IntoIterator<Item = &'a Series>) -> Option<[[f64; 2]; 2]> {
    let points = series.into_iter().flat_map(|series| series.points.iter());
    points.fold(None, |bounds, (x, y)| {
        let [[left, right], [low, high]] = bounds.unwrap_or([[*x; 2], [*y; 2]]);
        Some([[left.min(*x), right.max(*x)], [low.min(*y), high.max(*y)]])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_keeps_its_shape_in_bounded_memory() {
        let mut series = Series::default();
        for step in 0..100_000 {
            series.push(step, step as f64 * 2.0);
        }
        series.push(100_000, f64::NAN);
        assert_eq!(series.last(), Some(199_998.0));
        assert!(series.points().len() < MOST && series.points().len() > MOST / 4);
        assert!(series.points().iter().all(|(x, y)| (y - x * 2.0).abs() < 1e-6));
        assert!(series.points().is_sorted_by(|a, b| a.0 < b.0));
        let [[left, right], [low, high]] = bounds([&series]).unwrap();
        assert!(left < 64.0 && right > 99_900.0 && low < 128.0 && high > 199_800.0);
        assert_eq!(bounds([&Series::default()]), None);
    }
}
