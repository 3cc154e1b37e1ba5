//! The training transform: crop, resize, flips, augmentation, normalisation, erasing, in this order.

use std::time::Instant;

use rand_chacha::ChaCha8Rng;

use super::crop::TrainCrop;
use super::resize::{Interpolation, Rect, Resizer, front};
use super::{Image, Scratch};
use crate::augment::canvas::Canvas;
use crate::augment::{AutoAugment, ColorJitter, Erased, Operation, RandomErasing};
use crate::error::DataError;
use crate::random::{chance, uniform_in};

/// The training transform.
///
/// timm leaves colour jitter out where there is a policy of augmentation; here each is done if it is given, so give one, or
/// both for DeiT III's three-augment (`"3a"`).
#[derive(Clone, Debug, PartialEq)]
pub struct TrainTransform {
    /// Height and width of the result, in pixels.
    pub size: [usize; 2],
    /// 3 for RGB, 1 for grey; grey is Pillow's `convert("L")`.
    pub channels: usize,
    /// Which part of the image is taken.
    pub crop: TrainCrop,
    /// Filter of the resize, and of rotation, shear and translation.
    pub interpolation: Interpolation,
    /// Probability of a mirror image, 0 to 1.
    pub horizontal_flip: f64,
    /// Probability of an image upside down, 0 to 1.
    pub vertical_flip: f64,
    /// RandAugment, AutoAugment or three-augment.
    pub auto_augment: Option<AutoAugment>,
    /// Brightness, contrast, saturation and hue.
    pub color_jitter: Option<ColorJitter>,
    /// Probability of a grey image, 0 to 1.
    pub grayscale: f64,
    /// Probability that values from 128 on are inverted, 0 to 1.
    pub solarize: f64,
    /// Probability of a blur of deviation uniform in 0.1 to 2 pixels, 0 to 1.
    pub gaussian_blur: f64,
    /// Rectangles filled with noise after normalisation.
    pub random_erasing: Option<RandomErasing>,
    /// Mean of each channel, on a scale where white is 1. Its colour fills what rotation, shear and translation uncover.
    pub mean: Vec<f32>,
    /// Standard deviation of each channel, on the same scale.
    pub std: Vec<f32>,
}

impl Default for TrainTransform {
    /// A random resized crop to 224 pixels and a flip, without further augmentation.
    fn default() -> Self {
        Self {
            size: [224; 2],
            channels: 3,
            crop: TrainCrop::default(),
            interpolation: Interpolation::Bicubic,
            horizontal_flip: 0.5,
            vertical_flip: 0.0,
            auto_augment: None,
            color_jitter: None,
            grayscale: 0.0,
            solarize: 0.0,
            gaussian_blur: 0.0,
            random_erasing: None,
            mean: super::IMAGENET_MEAN.to_vec(),
            std: super::IMAGENET_STD.to_vec(),
        }
    }
}

/// A crop as drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CropDraw {
    /// This rectangle of the image is resized.
    Rect(Rect),
    /// The image is resized to `resized`, [height, width], and padded on all sides; the result begins at `at`, [row, column],
    /// of the padded image.
    Padded {
        /// Height and width before the padding.
        resized: [usize; 2],
        /// Where the crop begins.
        at: [usize; 2],
    },
}

/// All that is random in a training sample, but the numbers that erased rectangles are filled with.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainDraw {
    /// The crop.
    pub crop: CropDraw,
    /// Whether it is mirrored.
    pub horizontal_flip: bool,
    /// Whether it is turned upside down.
    pub vertical_flip: bool,
    /// What is done with it then, in order.
    pub operations: Vec<Operation>,
    /// What is erased after normalisation.
    pub erased: Erased,
}

impl TrainDraw {
    pub(super) fn mirror_is_last(&self) -> bool {
        self.horizontal_flip && !self.vertical_flip && self.operations.is_empty()
    }
}

impl TrainTransform {
    pub(super) fn validate(&self) -> Result<(), DataError> {
        for (key, value) in [
            ("horizontal_flip", self.horizontal_flip),
            ("vertical_flip", self.vertical_flip),
            ("grayscale", self.grayscale),
            ("solarize", self.solarize),
            ("gaussian_blur", self.gaussian_blur),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return Err(DataError::config(key, format!("{value}, but a probability is 0 to 1")));
            }
        }
        self.crop.validate(self.size)?;
        self.color_jitter.as_ref().map_or(Ok(()), ColorJitter::validate)?;
        self.random_erasing.as_ref().map_or(Ok(()), RandomErasing::validate)
    }

    /// Draws all that is random for an image of `width` × `height` pixels, both at least 1.
    ///
    /// Words drawn, in this order: the crop's ([`TrainCrop`]); one for each flip, the horizontal first; the policy's
    /// ([`AutoAugment::draw`]); colour jitter's ([`ColorJitter::draw`]); one each for grey, solarise and blur, and one for the
    /// deviation of a blur that is done; erasing's ([`RandomErasing::draw`]).
    pub fn draw(&self, width: usize, height: usize, rng: &mut ChaCha8Rng) -> TrainDraw {
        let crop = self.crop.draw(width, height, self.size, rng);
        let horizontal_flip = chance(rng, self.horizontal_flip);
        let vertical_flip = chance(rng, self.vertical_flip);
        let mut operations = Vec::new();
        if let Some(policy) = &self.auto_augment {
            policy.draw(self.size, rng, &mut operations);
        }
        if let Some(jitter) = &self.color_jitter {
            jitter.draw(rng, &mut operations);
        }
        if chance(rng, self.grayscale) {
            operations.push(Operation::Grayscale);
        }
        if chance(rng, self.solarize) {
            operations.push(Operation::Solarize(128));
        }
        if chance(rng, self.gaussian_blur) {
            operations.push(Operation::GaussianBlur(uniform_in(rng, 0.1, 2.0)));
        }
        let erased = self.random_erasing.as_ref().map(|erasing| erasing.draw(self.size, rng)).unwrap_or_default();
        TrainDraw { crop, horizontal_flip, vertical_flip, operations, erased }
    }

    /// Puts the augmented pixels into `scratch.image`; a mirror image that nothing follows is left to the caller.
    pub(super) fn pixels(&self, image: Image<'_>, rng: &mut ChaCha8Rng, scratch: &mut Scratch) -> Result<TrainDraw, DataError> {
        let [height, width] = self.size;
        let whole = Rect { x: 0, y: 0, width, height };
        let mut prepared = None;
        let mut choose = |image_width: usize, image_height: usize, resizer: &mut Resizer| {
            let draw = self.draw(image_width, image_height, rng);
            let (needed, rect) = match draw.crop {
                CropDraw::Rect(crop) => {
                    let needed = resizer.prepare([crop.height, crop.width], self.size, self.interpolation, None, whole);
                    (needed, Rect { x: crop.x + needed.x, y: crop.y + needed.y, ..needed })
                }
                CropDraw::Padded { resized, at } => {
                    let window = Padding { resized, at, size: self.size }.window();
                    let source = [image_height, image_width];
                    let needed = resizer.prepare(source, resized, self.interpolation, None, window);
                    (needed, needed)
                }
            };
            prepared = Some((draw, needed));
            rect
        };
        let part = scratch.decode(image, &mut choose)?;
        let (draw, needed) = prepared.expect("every decoder asks for the part");
        scratch.resize(part, needed, self.channels);
        if let CropDraw::Padded { resized, at } = draw.crop {
            let padding = Padding { resized, at, size: self.size };
            padding.reflect(&scratch.image, front(&mut scratch.spare, width * height));
            std::mem::swap(&mut scratch.image, &mut scratch.spare);
        }
        let start = Instant::now();
        if draw.vertical_flip || !draw.operations.is_empty() {
            let mut canvas = Canvas::new(width, height, &mut scratch.image, &mut scratch.spare);
            if draw.horizontal_flip {
                canvas.mirror();
            }
            if draw.vertical_flip {
                canvas.flip();
            }
            let [r, g, b, _] = super::mean_colour(&self.mean);
            draw.operations.iter().for_each(|operation| operation.apply(&mut canvas, [r, g, b], self.interpolation));
        }
        scratch.stages.augment += start.elapsed();
        Ok(draw)
    }
}

/// A crop of an image padded by its reflection.
struct Padding {
    resized: [usize; 2],
    at: [usize; 2],
    size: [usize; 2],
}

impl Padding {
    /// The row or column of the image that a place of the crop shows: the edge itself is not repeated.
    fn source(&self, axis: usize, place: usize) -> usize {
        let last = self.resized[axis] as isize - 1;
        let place = (self.at[axis] + place) as isize - TrainCrop::PADDING as isize;
        let place = place.abs();
        (if place > last { 2 * last - place } else { place }) as usize
    }

    /// The rows and columns that are needed.
    fn window(&self) -> Rect {
        let [(y, bottom), (x, right)] = [0, 1].map(|axis| {
            let places = || (0..self.size[axis]).map(|place| self.source(axis, place));
            (places().min().unwrap_or(0), places().max().unwrap_or(0) + 1)
        });
        Rect { x, y, width: right - x, height: bottom - y }
    }

    /// Fills the crop from the pixels of [`Padding::window`].
    fn reflect(&self, image: &[[u8; 4]], out: &mut [[u8; 4]]) {
        let window = self.window();
        for (y, line) in out.chunks_exact_mut(self.size[1]).enumerate() {
            let row = &image[(self.source(0, y) - window.y) * window.width..][..window.width];
            for (x, pixel) in line.iter_mut().enumerate() {
                *pixel = row[self.source(1, x) - window.x];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, stream};

    #[test]
    fn the_words_drawn_do_not_depend_on_the_answers() {
        // Each flip takes one word whether it is done or not.
        let next = |horizontal: f64, vertical: f64| {
            let transform = TrainTransform {
                horizontal_flip: horizontal,
                vertical_flip: vertical,
                auto_augment: Some("rand-m9-mstd0.5-inc1".parse().unwrap()),
                ..TrainTransform::default()
            };
            transform.draw(500, 375, &mut stream(3, Purpose::Augment, 0, 0)).operations
        };
        assert_eq!(next(0.0, 0.0), next(1.0, 1.0));
    }

    #[test]
    fn reflection_leaves_the_edge_single() {
        let padding = Padding { resized: [8, 6], at: [0, 8], size: [6, 6] };
        let places = |axis: usize| (0..6).map(|place| padding.source(axis, place)).collect::<Vec<_>>();
        assert_eq!(places(0), [4, 3, 2, 1, 0, 1]);
        assert_eq!(places(1), [4, 5, 4, 3, 2, 1]);
        assert_eq!(padding.window(), Rect { x: 1, y: 0, width: 5, height: 5 });
    }

    #[test]
    fn settings_are_checked_by_name() {
        let key = |t: TrainTransform| match t.validate() {
            Err(DataError::Config { key, .. }) => key,
            other => panic!("{other:?}"),
        };
        let plain = TrainTransform::default;
        assert_eq!(key(TrainTransform { vertical_flip: 2.0, ..plain() }), "vertical_flip");
        assert_eq!(key(TrainTransform { grayscale: f64::NAN, ..plain() }), "grayscale");
        assert_eq!(key(TrainTransform { crop: TrainCrop::Simple, size: [224, 192], ..plain() }), "crop");
        assert_eq!(key(TrainTransform { crop: TrainCrop::Simple, size: [4, 4], ..plain() }), "crop");
        let jitter = Some(ColorJitter { hue: 0.6, ..ColorJitter::uniform(0.4) });
        assert_eq!(key(TrainTransform { color_jitter: jitter, ..plain() }), "color_jitter.hue");
        let erasing = Some(RandomErasing { count: 0, ..RandomErasing::default() });
        assert_eq!(key(TrainTransform { random_erasing: erasing, ..plain() }), "random_erasing.count");
        assert!(plain().validate().is_ok());
    }
}
