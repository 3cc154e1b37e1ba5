//! Mixup (Zhang et al. 2017, arXiv:1710.09412) and CutMix (Yun et al. 2019, arXiv:1905.04899) of the images of a batch, with
//! timm's laws in its mode `batch`.
//!
//! A draw holds for a group of images, DeiT's 64 of one GPU; each image is mixed with its mirror place in the group: image i
//! of n with image n - 1 - i. timm refuses odd groups; here the middle image is mixed with itself, so that a last batch of any
//! size will do.
//!
//! Draws are named by (seed, epoch, group), see [`crate::random`]: how a batch is cut over devices changes nothing.

use serde::{Deserialize, Serialize};

use crate::error::DataError;
use crate::random::{Purpose, below, chance, stream, symmetric_beta};
use crate::transform::resize::Rect;

/// How groups are mixed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mix {
    /// Parameter of mixup's Beta(alpha, alpha); 0: no mixup. DeiT: 0.8.
    pub mixup_alpha: f64,
    /// Parameter of CutMix's Beta(alpha, alpha); 0: no CutMix. DeiT: 1.
    pub cutmix_alpha: f64,
    /// Probability that a group is mixed at all. DeiT: 1.
    pub probability: f64,
    /// Probability of CutMix where both are there. DeiT: 0.5.
    pub switch_probability: f64,
}

impl Default for Mix {
    /// DeiT's.
    fn default() -> Self {
        Self { mixup_alpha: 0.8, cutmix_alpha: 1.0, probability: 1.0, switch_probability: 0.5 }
    }
}

/// What is done with a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MixKind {
    /// Nothing.
    None,
    /// Images are `lambda` of themselves and the rest of their partners.
    Mixup,
    /// This rectangle is their partners'; it may be empty.
    CutMix(Rect),
}

/// A draw for one group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixDraw {
    /// What is done.
    pub kind: MixKind,
    /// Share of an image's own label. For CutMix the share of its area that is left, after the rectangle was cut at the
    /// image's edge.
    pub lambda: f64,
}

impl MixDraw {
    /// Leaves images and labels as they are.
    pub const NONE: Self = Self { kind: MixKind::None, lambda: 1.0 };

    /// CutMix for a given lambda and middle of the rectangle, [row, column], in images of `size`, [height, width].
    ///
    /// The rectangle's sides are `int(side * sqrt(1 - lambda))`, cut at the image's edge.
    pub fn cutmix(lambda: f64, middle: [usize; 2], size: [usize; 2]) -> Self {
        let ratio = (1.0 - lambda).sqrt();
        let [(y, height), (x, width)] = [0, 1].map(|axis| {
            let side = (size[axis] as f64 * ratio) as usize;
            let from = middle[axis].saturating_sub(side / 2);
            (from, (middle[axis] + side.div_ceil(2)).min(size[axis]) - from)
        });
        let lambda = 1.0 - (height * width) as f64 / (size[0] * size[1]) as f64;
        Self { kind: MixKind::CutMix(Rect { x, y, width, height }), lambda }
    }
}

impl Mix {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`DataError::Config`] naming the setting.
    pub fn validate(&self) -> Result<(), DataError> {
        for (key, value) in [("mix.mixup_alpha", self.mixup_alpha), ("mix.cutmix_alpha", self.cutmix_alpha)] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(DataError::config(key, format!("{value}, but it is 0 (off) or above")));
            }
        }
        for (key, value) in [("mix.probability", self.probability), ("mix.switch_probability", self.switch_probability)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(DataError::config(key, format!("{value}, but a probability is 0 to 1")));
            }
        }
        Ok(())
    }

    /// The draw of a group of images of `size`, [height, width].
    ///
    /// `group`: the number of the group in its epoch, counted over all ranks.
    ///
    /// Words drawn: one whether; one for the choice if both kinds are there; those of lambda ([`symmetric_beta`]); for CutMix
    /// one for the row of the rectangle's middle and one for its column.
    pub fn draw(&self, seed: u64, epoch: u64, group: u64, size: [usize; 2]) -> MixDraw {
        let mut rng = stream(seed, Purpose::Mix, epoch, group);
        if !chance(&mut rng, self.probability) {
            return MixDraw::NONE;
        }
        let cut = match (self.mixup_alpha > 0.0, self.cutmix_alpha > 0.0) {
            (true, true) => chance(&mut rng, self.switch_probability),
            (mixup, cutmix) if mixup || cutmix => cutmix,
            _ => return MixDraw::NONE,
        };
        if cut {
            let lambda = symmetric_beta(&mut rng, self.cutmix_alpha);
            let middle = size.map(|side| below(&mut rng, side as u64) as usize);
            MixDraw::cutmix(lambda, middle, size)
        } else {
            MixDraw { kind: MixKind::Mixup, lambda: symmetric_beta(&mut rng, self.mixup_alpha) }
        }
    }
}

impl MixDraw {
    /// Mixes a group of normalised images in place.
    ///
    /// `images`: [N, C, H, W], with `shape` = [C, H, W], any N.
    ///
    /// # Panics
    /// If `images` is no whole number of images.
    pub fn apply(&self, images: &mut [f32], shape: [usize; 3]) {
        let [channels, height, width] = shape;
        let len = channels * height * width;
        assert_eq!(images.len() % len.max(1), 0, "{} values are no whole number of images of {shape:?}", images.len());
        let count = images.len() / len.max(1);
        // Both of a pair come from the images as they were; single precision, as timm's tensors.
        let (own, other) = (self.lambda as f32, (1.0 - self.lambda) as f32);
        for first in 0..count.div_ceil(2) {
            let second = count - 1 - first;
            if first == second {
                if self.kind == MixKind::Mixup {
                    images[first * len..(first + 1) * len].iter_mut().for_each(|v| *v = *v * own + *v * other);
                }
                continue;
            }
            let (front, back) = images.split_at_mut(second * len);
            let (a, b) = (&mut front[first * len..(first + 1) * len], &mut back[..len]);
            match self.kind {
                MixKind::None => {}
                MixKind::Mixup => {
                    for (a, b) in a.iter_mut().zip(b) {
                        (*a, *b) = (*a * own + *b * other, *b * own + *a * other);
                    }
                }
                MixKind::CutMix(rect) => {
                    for row in (0..channels).flat_map(|c| (rect.y..rect.y + rect.height).map(move |y| c * height + y)) {
                        let columns = row * width + rect.x..row * width + rect.x + rect.width;
                        a[columns.clone()].swap_with_slice(&mut b[columns]);
                    }
                }
            }
        }
    }
}

/// Targets of a batch, [B, K], with label smoothing, mixed as the images are: group after group of `group` images, the last
/// may be smaller, each with its draw.
///
/// An image's own class has `1 - smoothing + smoothing / K` and every other `smoothing / K`, before mixing; in single
/// precision, as timm's `mixup_target`.
///
/// # Panics
/// If a label is not below `classes`, `group` is 0, or there are fewer draws than groups.
pub fn targets(labels: &[u32], classes: usize, smoothing: f64, group: usize, draws: &[MixDraw]) -> Vec<f32> {
    assert!(
        draws.len() >= labels.len().div_ceil(group),
        "{} draws for {} images in groups of {group}",
        draws.len(),
        labels.len()
    );
    let off = smoothing / classes as f64;
    let (on, off) = ((1.0 - smoothing + off) as f32, off as f32);
    let mut out = Vec::with_capacity(labels.len() * classes);
    for (labels, draw) in labels.chunks(group).zip(draws) {
        let (own, other) = (draw.lambda as f32, (1.0 - draw.lambda) as f32);
        for (&label, &partner) in labels.iter().zip(labels.iter().rev()) {
            assert!((label as usize) < classes && (partner as usize) < classes, "label {label} of {classes} classes");
            let start = out.len();
            out.resize(start + classes, off * own + off * other);
            let value = |is: bool| if is { on } else { off };
            for class in [label as usize, partner as usize] {
                out[start + class] = value(class == label as usize) * own + value(class == partner as usize) * other;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// timm refuses odd batches; the middle image is its own partner here.
    #[test]
    fn timm_1304_batches_of_any_size_are_mixed() {
        let rect = Rect { x: 1, y: 0, width: 2, height: 2 };
        let cut = MixDraw { kind: MixKind::CutMix(rect), lambda: 1.0 - 4.0 / 12.0 };
        for (count, draw) in
            [0, 1, 3, 65].into_iter().flat_map(|n| [(n, MixDraw { kind: MixKind::Mixup, lambda: 0.25 }), (n, cut)])
        {
            let shape = [2, 4, 3];
            let mut images: Vec<f32> = (0..count * 24).map(|v| v as f32).collect();
            let before = images.clone();
            draw.apply(&mut images, shape);
            for (place, value) in images.iter().enumerate() {
                let (image, within) = (place / 24, place % 24);
                let (own, partner) = (before[place], before[(count - 1 - image) * 24 + within]);
                let (row, column) = (within % 12 / 3, within % 3);
                let expected = match draw.kind {
                    MixKind::Mixup => own * 0.25 + partner * 0.75,
                    _ if row < 2 && column >= 1 => partner,
                    _ => own,
                };
                assert_eq!(*value, expected, "{count} images, {draw:?}, value {place}");
            }
            let labels: Vec<u32> = (0..count as u32).map(|label| label % 3).collect();
            let targets = targets(&labels, 3, 0.0, 65, &[draw]);
            for (image, row) in targets.chunks(3).enumerate() {
                let (own, other) = (labels[image], labels[count - 1 - image]);
                for (class, target) in (0..).zip(row) {
                    let share = |is: bool, share: f64| if is { share } else { 0.0 };
                    let expected = share(class == own, draw.lambda) + share(class == other, 1.0 - draw.lambda);
                    assert!((f64::from(*target) - expected).abs() < 1e-7, "{count} images, {draw:?}, image {image}: {row:?}");
                }
            }
        }
        let draw = MixDraw { kind: MixKind::Mixup, lambda: 0.25 };
        assert_eq!(targets(&[1], 3, 0.0, 64, &[draw]), [0.0, 1.0, 0.0]);
        assert_eq!(targets(&[0, 1, 2], 3, 0.0, 64, &[draw]), [0.25, 0.0, 0.75, 0.0, 1.0, 0.0, 0.75, 0.0, 0.25]);
    }

    #[test]
    fn groups_are_mixed_by_themselves() {
        let draws = [MixDraw { kind: MixKind::Mixup, lambda: 0.5 }, MixDraw::NONE];
        assert_eq!(targets(&[0, 1, 1], 2, 0.0, 2, &draws), [0.5, 0.5, 0.5, 0.5, 0.0, 1.0]);
    }

    #[test]
    fn draws_are_named_by_seed_epoch_and_group() {
        let mix = Mix::default();
        let draw = mix.draw(1, 2, 3, [224; 2]);
        assert_eq!(draw, mix.draw(1, 2, 3, [224; 2]));
        assert!(
            [mix.draw(2, 2, 3, [224; 2]), mix.draw(1, 3, 3, [224; 2]), mix.draw(1, 2, 4, [224; 2])].iter().all(|d| *d != draw)
        );
        let off = Mix { mixup_alpha: 0.0, cutmix_alpha: 0.0, ..mix };
        assert_eq!(off.draw(1, 2, 3, [224; 2]), MixDraw::NONE);
    }

    #[test]
    fn cut_rectangles_stay_inside_and_lambda_is_their_area() {
        for group in 0..2000 {
            let size = [1 + group as usize % 37, 1 + group as usize % 11];
            let MixDraw { kind: MixKind::CutMix(rect), lambda } =
                (Mix { mixup_alpha: 0.0, ..Mix::default() }).draw(0, 0, group, size)
            else {
                panic!()
            };
            assert!(rect.x + rect.width <= size[1] && rect.y + rect.height <= size[0]);
            let share = (rect.width * rect.height) as f64 / (size[0] * size[1]) as f64;
            assert!((lambda - (1.0 - share)).abs() < 1e-12);
        }
    }

    #[test]
    fn settings_are_checked_by_name() {
        let key = |mix: Mix| match mix.validate() {
            Err(DataError::Config { key, .. }) => key,
            other => panic!("{other:?}"),
        };
        assert_eq!(key(Mix { mixup_alpha: -1.0, ..Mix::default() }), "mix.mixup_alpha");
        assert_eq!(key(Mix { cutmix_alpha: f64::NAN, ..Mix::default() }), "mix.cutmix_alpha");
        assert_eq!(key(Mix { probability: 1.5, ..Mix::default() }), "mix.probability");
        assert_eq!(key(Mix { switch_probability: -0.1, ..Mix::default() }), "mix.switch_probability");
        assert!(Mix::default().validate().is_ok());
    }
}
