//! Which part of an image a training sample shows.

use rand_chacha::rand_core::Rng;

use super::resize::Rect;
use super::train::CropDraw;
use crate::error::DataError;
use crate::random::{below, uniform_in};

/// A crop of random area and aspect ratio (Szegedy et al. 2015, arXiv:1409.4842, section 6; torchvision's `RandomResizedCrop`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomResizedCrop {
    /// Smallest and largest share of the image's area; DeiT: 0.08 to 1.
    pub scale: [f64; 2],
    /// Smallest and largest width over height; DeiT: 3/4 to 4/3.
    pub ratio: [f64; 2],
}

impl Default for RandomResizedCrop {
    /// DeiT's: 8 to 100 % of the area, 3:4 to 4:3.
    fn default() -> Self {
        Self { scale: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0] }
    }
}

/// Which part of an image a training sample shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TrainCrop {
    /// A part of random size and shape, resized. Words drawn: see [`RandomResizedCrop::draw`].
    RandomResized(RandomResizedCrop),
    /// DeiT III's simple random crop (Touvron et al. 2022, arXiv:2204.07118, section 3): the short side is resized to the
    /// crop's, the image padded by four pixels of its reflection, and a crop taken at random. For square crops of at least 5
    /// pixels. Words drawn: one for the row, one for the column.
    Simple,
    /// The whole image, its aspect ratio not kept. Draws nothing.
    Squash,
}

impl Default for TrainCrop {
    fn default() -> Self {
        Self::RandomResized(RandomResizedCrop::default())
    }
}

impl TrainCrop {
    /// Pixels of reflection around the image of a simple random crop.
    pub const PADDING: usize = 4;

    pub(super) fn validate(&self, size: [usize; 2]) -> Result<(), DataError> {
        match self {
            Self::RandomResized(crop) => crop.validate(),
            Self::Simple if size[0] != size[1] || size[0] <= Self::PADDING => {
                let [height, width] = size;
                let reason = format!("a simple random crop is square and of at least 5 pixels, not {height} × {width}");
                Err(DataError::config("crop", reason))
            }
            Self::Simple | Self::Squash => Ok(()),
        }
    }

    /// Draws for an image of `width` × `height` pixels, both at least 1, and a result of `size`, [height, width].
    pub(super) fn draw(&self, width: usize, height: usize, size: [usize; 2], rng: &mut impl Rng) -> CropDraw {
        match self {
            Self::RandomResized(crop) => CropDraw::Rect(crop.draw(width, height, rng)),
            Self::Squash => CropDraw::Rect(Rect { x: 0, y: 0, width, height }),
            Self::Simple => {
                let (short, long) = (width.min(height), width.max(height));
                let long = ((size[0] * long) as f64 / short as f64) as usize;
                let resized = if height <= width { [size[0], long] } else { [long, size[0]] };
                let mut place = |axis: usize| below(rng, (resized[axis] + 2 * Self::PADDING - size[axis]) as u64 + 1) as usize;
                let y = place(0);
                let x = place(1);
                CropDraw::Padded { resized, at: [y, x] }
            }
        }
    }
}

impl RandomResizedCrop {
    /// Tries before the fallback.
    const TRIES: usize = 10;

    /// Checks the ranges.
    ///
    /// # Errors
    /// [`DataError::Config`] naming the setting.
    pub fn validate(&self) -> Result<(), DataError> {
        let [low, high] = self.scale;
        if !(low > 0.0 && low <= high && high <= 1.0) {
            let reason = format!("[{low}, {high}], but shares of the area are above 0, at most 1, the smaller first");
            return Err(DataError::config("random_resized_crop.scale", reason));
        }
        let [low, high] = self.ratio;
        if !(low > 0.0 && low <= high && high.is_finite()) {
            let reason = format!("[{low}, {high}], but aspect ratios are above 0, the smaller first");
            return Err(DataError::config("random_resized_crop.ratio", reason));
        }
        Ok(())
    }

    /// Draws a crop of an image of `width` × `height` pixels, both at least 1.
    ///
    /// At most ten times: the area uniform in `scale`, the logarithm of the ratio uniform between those of `ratio`, sides
    /// rounded half to even; a crop that fits is placed uniformly, the row first. If none fits, the largest centred crop whose
    /// ratio is inside `ratio`. Words drawn: two a try, two for the place.
    pub fn draw(&self, width: usize, height: usize, rng: &mut impl Rng) -> Rect {
        let (w, h) = (width as f64, height as f64);
        let log_ratio = self.ratio.map(f64::ln);
        for _ in 0..Self::TRIES {
            let area = w * h * uniform_in(rng, self.scale[0], self.scale[1]);
            let ratio = uniform_in(rng, log_ratio[0], log_ratio[1]).exp();
            let crop_w = (area * ratio).sqrt().round_ties_even() as usize;
            let crop_h = (area / ratio).sqrt().round_ties_even() as usize;
            if (1..=width).contains(&crop_w) && (1..=height).contains(&crop_h) {
                let y = below(rng, (height - crop_h) as u64 + 1) as usize;
                let x = below(rng, (width - crop_w) as u64 + 1) as usize;
                return Rect { x, y, width: crop_w, height: crop_h };
            }
        }
        let ratio = w / h;
        let (crop_w, crop_h) = if ratio < self.ratio[0] {
            (width, ((w / self.ratio[0]).round_ties_even() as usize).clamp(1, height))
        } else if ratio > self.ratio[1] {
            (((h * self.ratio[1]).round_ties_even() as usize).clamp(1, width), height)
        } else {
            (width, height)
        };
        Rect { x: (width - crop_w) / 2, y: (height - crop_h) / 2, width: crop_w, height: crop_h }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, stream};

    const DEIT: RandomResizedCrop = RandomResizedCrop { scale: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0] };

    #[test]
    fn crops_lie_inside_for_any_size() {
        for case in 0..20_000u64 {
            let mut rng = stream(1, Purpose::Augment, 0, case);
            let (width, height) = (1 + below(&mut rng, 60) as usize, 1 + below(&mut rng, 60) as usize);
            let crop = DEIT.draw(width, height, &mut rng);
            assert!(crop.width >= 1 && crop.height >= 1);
            assert!(crop.x + crop.width <= width && crop.y + crop.height <= height, "{crop:?} in {width} × {height}");
        }
    }

    /// In a square image, where every try with an area below 0.5 fits: below it the area, the logarithm of the ratio and the
    /// place are uniform.
    #[test]
    fn the_law_of_area_ratio_and_place() {
        let draws: Vec<Rect> = (0..10_000).map(|i| DEIT.draw(2000, 2000, &mut stream(2, Purpose::Augment, 0, i))).collect();
        let area = |r: &Rect| (r.width * r.height) as f64 / 4e6;
        let small: Vec<&Rect> = draws.iter().filter(|r| area(r) < 0.5).collect();
        let mut bins = [0f64; 10];
        for crop in &small {
            bins[((area(crop) - 0.08) / 0.042).clamp(0.0, 9.0) as usize] += 1.0;
        }
        let expected = small.len() as f64 / 10.0;
        let chi2: f64 = bins.iter().map(|b| (b - expected).powi(2) / expected).sum();
        assert!(chi2 < 27.88, "area: chi-square {chi2}, 9 degrees of freedom, p = 0.001");

        let log = (4.0f64 / 3.0).ln();
        let mut bins = [0f64; 10];
        for crop in &small {
            let ratio = (crop.width as f64 / crop.height as f64).ln();
            bins[((ratio + log) / (2.0 * log) * 10.0).clamp(0.0, 9.0) as usize] += 1.0;
        }
        let chi2: f64 = bins.iter().map(|b| (b - expected).powi(2) / expected).sum();
        assert!(chi2 < 27.88, "ratio: chi-square {chi2}");

        for place in [|r: &Rect| (r.x, 2000 - r.width), |r: &Rect| (r.y, 2000 - r.height)] {
            let mut bins = [0f64; 10];
            for crop in &small {
                let (at, room) = place(crop);
                bins[at * 10 / (room + 1)] += 1.0;
            }
            let chi2: f64 = bins.iter().map(|b| (b - expected).powi(2) / expected).sum();
            assert!(chi2 < 27.88, "place: chi-square {chi2}");
        }
        // Tries that do not fit are drawn again: an area a above 3/4 fits if |ln ratio| <= -ln a. The mean of the law so
        // thinned is 0.4778, and the standard error of this one 0.0022.
        let mean = draws.iter().map(area).sum::<f64>() / 1e4;
        assert!((mean - 0.4778).abs() < 0.009, "mean area {mean}");
    }

    #[test]
    fn what_never_fits_is_cut_to_the_nearest_ratio() {
        let whole = RandomResizedCrop { scale: [1.0, 1.0], ..DEIT };
        let mut rng = stream(3, Purpose::Augment, 0, 0);
        assert_eq!(whole.draw(1000, 100, &mut rng), Rect { x: 433, y: 0, width: 133, height: 100 });
        assert_eq!(whole.draw(100, 1000, &mut rng), Rect { x: 0, y: 433, width: 100, height: 133 });
        assert_eq!(DEIT.draw(1, 1, &mut rng), Rect { x: 0, y: 0, width: 1, height: 1 });
    }

    #[test]
    fn ranges_are_checked() {
        assert!(DEIT.validate().is_ok());
        for scale in [[0.0, 1.0], [0.5, 0.4], [0.1, 1.5], [f64::NAN, 1.0]] {
            assert!(RandomResizedCrop { scale, ..DEIT }.validate().is_err());
        }
        for ratio in [[0.0, 1.0], [2.0, 1.0], [0.5, f64::INFINITY]] {
            assert!(RandomResizedCrop { ratio, ..DEIT }.validate().is_err());
        }
    }
}
