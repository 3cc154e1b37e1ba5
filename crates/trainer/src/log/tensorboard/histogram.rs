//! How the values of a tensor are distributed.

/// Buckets of a histogram: TensorBoard's own number.
const BUCKETS: usize = 30;

/// A distribution in equal buckets between the least and the greatest value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Histogram {
    /// Least value.
    pub min: f64,
    /// Greatest value.
    pub max: f64,
    /// Values.
    pub count: f64,
    /// Their sum.
    pub sum: f64,
    /// The sum of their squares.
    pub sum_of_squares: f64,
    /// The upper end of each bucket; the last is `max`.
    pub limits: Vec<f64>,
    /// Values in each bucket.
    pub counts: Vec<f64>,
}

impl Histogram {
    /// The distribution of the finite ones among `values`. A tensor with others stops the run at its next checkpoint.
    pub fn of(values: &[f32]) -> Self {
        let finite = || values.iter().filter(|value| value.is_finite()).map(|value| f64::from(*value));
        let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
        let (mut count, mut sum, mut sum_of_squares) = (0.0, 0.0, 0.0);
        for value in finite() {
            min = min.min(value);
            max = max.max(value);
            count += 1.0;
            sum += value;
            sum_of_squares += value * value;
        }
        if count == 0.0 {
            (min, max) = (0.0, 0.0);
        }
        if min == max {
            return Self { min, max, count, sum, sum_of_squares, limits: vec![max], counts: vec![count] };
        }
        let width = (max - min) / BUCKETS as f64;
        let mut limits: Vec<f64> = (1..=BUCKETS).map(|bucket| min + width * bucket as f64).collect();
        limits[BUCKETS - 1] = max;
        let mut counts = vec![0.0; BUCKETS];
        let scale = 1.0 / width;
        for value in finite() {
            counts[(((value - min) * scale) as usize).min(BUCKETS - 1)] += 1.0;
        }
        Self { min, max, count, sum, sum_of_squares, limits, counts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finite_value_is_in_the_bucket_that_holds_it() {
        let values: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 1000) as f32 / 100.0 - 5.0).collect();
        let histogram = Histogram::of(&values);
        assert_eq!((histogram.min, histogram.max, histogram.count), (-5.0, f64::from(4.99f32), 1000.0));
        assert_eq!(histogram.counts.iter().sum::<f64>(), 1000.0);
        let mut low = histogram.min;
        for (limit, count) in histogram.limits.iter().zip(&histogram.counts) {
            let inside = values.iter().filter(|value| (low..*limit).contains(&f64::from(**value))).count() as f64;
            // A value at a limit may fall to either side by rounding; the greatest is in the last.
            assert!((inside - count).abs() <= 1.0, "{low} to {limit}: {inside} and {count}");
            low = *limit;
        }
        let exact: f64 = values.iter().map(|value| f64::from(*value)).sum();
        assert!((histogram.sum - exact).abs() < 1e-9);
    }

    #[test]
    fn degenerate_tensors_have_one_bucket() {
        let same = Histogram::of(&[0.5; 8]);
        assert_eq!((same.limits.as_slice(), same.counts.as_slice()), (&[0.5][..], &[8.0][..]));
        let none = Histogram::of(&[f32::NAN, f32::INFINITY]);
        assert_eq!((none.count, none.min, none.max), (0.0, 0.0, 0.0));
        let some = Histogram::of(&[f32::NAN, 1.0, 3.0]);
        assert_eq!((some.count, some.min, some.max), (2.0, 1.0, 3.0));
        // Extremes whose difference overflows f32 but not f64.
        assert_eq!(Histogram::of(&[f32::MIN, f32::MAX]).counts.iter().sum::<f64>(), 2.0);
    }
}
