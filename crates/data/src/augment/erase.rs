//! Rectangles of normalised images erased at random (Zhong et al. 2017, arXiv:1708.04896), as timm's `RandomErasing`.

use rand_chacha::rand_core::Rng;
use serde::{Deserialize, Serialize};

use crate::error::DataError;
use crate::random::{below, chance, fill_normal, normal, uniform_in};
use crate::transform::resize::Rect;

/// What an erased rectangle is filled with, after normalisation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fill {
    /// 0, which is the mean colour.
    Const,
    /// One standard normal number for each channel.
    Rand,
    /// One standard normal number for each value; DeiT's.
    #[default]
    Pixel,
}

/// Random erasing with timm's laws: the share of the area uniform, the logarithm of the aspect ratio uniform, at most ten tries
/// for a rectangle that fits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomErasing {
    /// Probability that an image is erased in.
    pub probability: f64,
    /// What the rectangles are filled with.
    pub fill: Fill,
    /// Most rectangles; their number is uniform from 1 to this, and they share the area.
    pub count: usize,
    /// Smallest and largest share of the area.
    pub area: [f64; 2],
    /// Smallest and largest height over width.
    pub aspect: [f64; 2],
}

impl Default for RandomErasing {
    /// DeiT's: probability 0.25, noise in one rectangle of 2 to 33 % of the area.
    fn default() -> Self {
        Self { probability: 0.25, fill: Fill::Pixel, count: 1, area: [0.02, 1.0 / 3.0], aspect: [0.3, 1.0 / 0.3] }
    }
}

/// The rectangles that are erased in an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Erased(pub Vec<Rect>);

/// An erased rectangle with what it is filled with.
#[derive(Clone, Debug, PartialEq)]
pub struct Patch {
    /// The rectangle; it is not empty.
    pub rect: Rect,
    /// The fill: one number for each channel where [`Patch::is_plain`], otherwise [C, height, width] of the rectangle.
    pub values: Vec<f32>,
}

impl Patch {
    /// Whether each of `channels` has one number all over the rectangle.
    pub fn is_plain(&self, channels: usize) -> bool {
        self.values.len() == channels
    }

    /// Fills the rectangle of a normalised image, [C, H, W] with H and W as `size`.
    ///
    /// # Panics
    /// If the rectangle does not lie in the image, or the fill does not suit it.
    pub fn write(&self, [height, width]: [usize; 2], image: &mut [f32]) {
        let Rect { x, y, width: columns, height: rows } = self.rect;
        let plain = self.is_plain(image.len() / (height * width));
        let each = if plain { 1 } else { rows * columns };
        for (plane, values) in image.chunks_exact_mut(height * width).zip(self.values.chunks_exact(each)) {
            let lines = plane.chunks_exact_mut(width).skip(y).take(rows).map(|line| &mut line[x..x + columns]);
            match plain {
                true => lines.for_each(|line| line.fill(values[0])),
                false => lines.zip(values.chunks_exact(columns)).for_each(|(line, values)| line.copy_from_slice(values)),
            }
        }
    }
}

impl RandomErasing {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`DataError::Config`] naming the setting.
    pub fn validate(&self) -> Result<(), DataError> {
        if !(0.0..=1.0).contains(&self.probability) {
            let reason = format!("{}, but a probability is 0 to 1", self.probability);
            return Err(DataError::config("random_erasing.probability", reason));
        }
        if self.count == 0 || self.count > 1000 {
            return Err(DataError::config("random_erasing.count", format!("{}, but it is 1 to 1000", self.count)));
        }
        let [low, high] = self.area;
        if !(low > 0.0 && low <= high && high <= 1.0) {
            let reason = format!("[{low}, {high}], but shares of the area are above 0, at most 1, the smaller first");
            return Err(DataError::config("random_erasing.area", reason));
        }
        let [low, high] = self.aspect;
        if !(low > 0.0 && low <= high && high.is_finite()) {
            let reason = format!("[{low}, {high}], but aspect ratios are above 0, the smaller first");
            return Err(DataError::config("random_erasing.aspect", reason));
        }
        Ok(())
    }

    /// Draws the rectangles for an image of `size`, [height, width].
    ///
    /// Words drawn: one whether; one for the number if there may be several; for each rectangle two a try, and two for the
    /// place, the row first.
    pub fn draw(&self, [height, width]: [usize; 2], rng: &mut impl Rng) -> Erased {
        let mut erased = Erased::default();
        if !chance(rng, self.probability) {
            return erased;
        }
        let count = if self.count > 1 { 1 + below(rng, self.count as u64) as usize } else { 1 };
        let log_aspect = self.aspect.map(f64::ln);
        for _ in 0..count {
            for _ in 0..10 {
                let area = uniform_in(rng, self.area[0], self.area[1]) * (height * width) as f64 / count as f64;
                let aspect = uniform_in(rng, log_aspect[0], log_aspect[1]).exp();
                let h = (area * aspect).sqrt().round_ties_even() as usize;
                let w = (area / aspect).sqrt().round_ties_even() as usize;
                if w < width && h < height {
                    let y = below(rng, (height - h) as u64 + 1) as usize;
                    let x = below(rng, (width - w) as u64 + 1) as usize;
                    erased.0.push(Rect { x, y, width: w, height: h });
                    break;
                }
            }
        }
        erased
    }

    /// Draws what the rectangles of an image of `channels` are filled with; rectangles without a pixel are left out.
    ///
    /// Draws for each rectangle in turn, channel by channel: for [`Fill::Rand`] two words, for [`Fill::Pixel`] a word for every
    /// two values of a row, see [`fill_normal`].
    pub fn patches(&self, erased: &Erased, channels: usize, rng: &mut impl Rng) -> impl Iterator<Item = Patch> {
        let patch = move |rect: &Rect| {
            let area = rect.width * rect.height;
            let values = match self.fill {
                Fill::Const => vec![0.0; channels],
                Fill::Rand => (0..channels).map(|_| normal(rng) as f32).collect(),
                Fill::Pixel => {
                    let mut values = vec![0.0; channels * area];
                    values.chunks_mut(rect.width.max(1)).for_each(|row| fill_normal(rng, row));
                    values
                }
            };
            (area > 0).then_some(Patch { rect: *rect, values })
        };
        erased.0.iter().filter_map(patch)
    }

    /// Fills the rectangles of a normalised image, [C, H, W] with H and W as `size`. Draws as [`RandomErasing::patches`].
    pub fn apply(&self, erased: &Erased, size: [usize; 2], rng: &mut impl Rng, image: &mut [f32]) {
        let channels = image.len() / (size[0] * size[1]);
        self.patches(erased, channels, rng).for_each(|patch| patch.write(size, image));
    }

    /// Most numbers that the patches of an image of `shape`, [C, H, W], hold, but for the rounding of their sides.
    pub fn most_values(&self, [channels, height, width]: [usize; 3]) -> usize {
        match self.fill {
            Fill::Const | Fill::Rand => channels * self.count,
            Fill::Pixel => channels * (self.area[1] * (height * width) as f64) as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, stream};

    #[test]
    fn rectangles_are_filled_and_nothing_else() {
        let size = [30, 40];
        let erased = Erased(vec![Rect { x: 5, y: 7, width: 21, height: 11 }]);
        let inside = |i: usize| (5..26).contains(&(i % 40)) && (7..18).contains(&(i / 40 % 30));
        for fill in [Fill::Const, Fill::Rand, Fill::Pixel] {
            let erasing = RandomErasing { fill, ..RandomErasing::default() };
            let mut image = vec![9.0; 3 * 30 * 40];
            erasing.apply(&erased, size, &mut stream(1, Purpose::Augment, 0, 0), &mut image);
            assert!(image.iter().enumerate().all(|(i, &v)| (v == 9.0) != inside(i)), "{fill:?}");
            let patches: Vec<Patch> = erasing.patches(&erased, 3, &mut stream(1, Purpose::Augment, 0, 0)).collect();
            assert_eq!((patches.len(), patches[0].rect, patches[0].is_plain(3)), (1, erased.0[0], fill != Fill::Pixel));
            for plane in image.chunks_exact(1200) {
                let mut values: Vec<f32> = (0..1200).filter(|&i| inside(i)).map(|i| plane[i]).collect();
                values.sort_by(f32::total_cmp);
                values.dedup();
                match fill {
                    Fill::Const => assert_eq!(values, [0.0]),
                    Fill::Rand => assert_eq!(values.len(), 1),
                    Fill::Pixel => assert!(values.len() > 200),
                }
            }
        }
    }

    /// The numbers drawn for a rectangle without a pixel are drawn all the same: those after it are what they were.
    #[test]
    fn empty_rectangles_leave_no_patch() {
        let (empty, one) = (Rect { x: 0, y: 2, width: 3, height: 0 }, Rect { x: 1, y: 1, width: 1, height: 1 });
        let draw = |fill: Fill, rects: &[Rect]| -> Vec<Patch> {
            let erasing = RandomErasing { fill, ..RandomErasing::default() };
            erasing.patches(&Erased(rects.to_vec()), 3, &mut stream(1, Purpose::Augment, 0, 0)).collect()
        };
        for fill in [Fill::Const, Fill::Rand, Fill::Pixel] {
            let patches = draw(fill, &[empty, one]);
            assert_eq!(patches.len(), 1, "{fill:?}");
            assert_eq!((patches[0].rect, patches[0].values.len()), (one, 3));
            assert_eq!(patches == draw(fill, &[one]), fill != Fill::Rand, "{fill:?}");
        }
    }
}
