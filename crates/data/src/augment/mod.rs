//! Operations on an image after its crop: timm's, on Pillow's arithmetic.
//!
//! Parameters and pixels are apart. A policy ([`AutoAugment`], [`ColorJitter`], …) draws [`Operation`]s, whose parameters are
//! then fixed; [`apply`] carries them out. The pixels are those of Pillow 13.0.0 for the same parameters, and the laws of the
//! draws those of timm 1.0.31 and torchvision 0.29, but for these points:
//!
//! - `Posterize` to 0 bits gives black, as in older versions of Pillow; Pillow 13 raises an error, which timm's magnitudes do
//!   run into (`rand-m9-mstd0.5-inc1` in one of a few hundred images).
//! - The blur with a probability of its own is DeiT's (Pillow's Gaussian, deviation uniform in 0.1 to 2), where timm's
//!   `gaussian_blur_prob` uses torchvision's kernel of 23 pixels.
//! - AugMix is not there.
//!
//! Grey images pass through the same code with three equal channels, which gives what Pillow gives in mode `L`.

mod affine;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod blur;
pub(crate) mod canvas;
mod config;
mod enhance;
mod erase;
mod jitter;
mod kind;
mod policy;
mod tone;
mod wide;

pub use config::AutoAugment;
pub use erase::{Erased, Fill, Patch, RandomErasing};
pub use jitter::ColorJitter;
pub use kind::Kind;
pub use policy::{Policy, RandAugment};

use crate::decode::Pixels;
use crate::decode::part::{pack, rgb};
use crate::transform::Interpolation;
use crate::transform::resize::Rect;
use canvas::Canvas;

/// An operation with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation {
    /// Each channel stretched to the whole range.
    AutoContrast,
    /// Each channel's histogram evened out.
    Equalize,
    /// 255 minus the value.
    Invert,
    /// Degrees against the clock, around the middle.
    Rotate(f64),
    /// Upper bits kept; 0: black, 8 and more: nothing changes.
    Posterize(u8),
    /// Values from the threshold on are inverted; 256: none.
    Solarize(u16),
    /// Added to values below 128.
    SolarizeAdd(u8),
    /// Saturation: 0 is grey, 1 leaves the image.
    Color(f64),
    /// 0 is the mean grey, 1 leaves the image.
    Contrast(f64),
    /// 0 is black, 1 leaves the image.
    Brightness(f64),
    /// 0 is smoothed, 1 leaves the image, 2 is sharpened.
    Sharpness(f64),
    /// Pixels to the side for each row.
    ShearX(f64),
    /// Pixels down for each column.
    ShearY(f64),
    /// Pixels to the left.
    TranslateX(f64),
    /// Pixels up.
    TranslateY(f64),
    /// Standard deviation in pixels.
    GaussianBlur(f64),
    /// Grey thrice.
    Grayscale,
    /// Share of the colour circle, -0.5 to 0.5.
    Hue(f64),
}

impl Operation {
    /// `fill`: the colour of places outside of the image. `filter`: for rotation, shear and translation.
    pub(crate) fn apply(self, canvas: &mut Canvas<'_>, fill: [u8; 3], filter: Interpolation) {
        let fill = [fill[0], fill[1], fill[2], 0];
        let mut affine = |matrix| affine::transform(canvas, matrix, filter, fill);
        match self {
            Self::AutoContrast => tone::auto_contrast(canvas),
            Self::Equalize => tone::equalize(canvas),
            Self::Invert => tone::look_up(canvas, &tone::uniform(|v| 255 - v)),
            Self::Rotate(degrees) => affine::rotate(canvas, degrees, filter, fill),
            Self::Posterize(bits) => tone::posterize(canvas, bits),
            Self::Solarize(threshold) => tone::solarize(canvas, threshold),
            Self::SolarizeAdd(add) => tone::solarize_add(canvas, add),
            Self::Color(factor) => enhance::color(canvas, factor),
            Self::Contrast(factor) => enhance::contrast(canvas, factor),
            Self::Brightness(factor) => enhance::brightness(canvas, factor),
            Self::Sharpness(factor) => enhance::sharpness(canvas, factor),
            Self::ShearX(factor) => affine([1.0, factor, 0.0, 0.0, 1.0, 0.0]),
            Self::ShearY(factor) => affine([1.0, 0.0, 0.0, factor, 1.0, 0.0]),
            Self::TranslateX(pixels) => affine([1.0, 0.0, pixels, 0.0, 1.0, 0.0]),
            Self::TranslateY(pixels) => affine([1.0, 0.0, 0.0, 0.0, 1.0, pixels]),
            Self::GaussianBlur(deviation) => blur::gaussian(canvas, deviation),
            Self::Grayscale => enhance::color(canvas, 0.0),
            Self::Hue(shift) => enhance::hue(canvas, shift),
        }
    }
}

/// Carries out operations on an image of 1 or 3 channels. `fill` and `filter` as timm's `img_mean` and `interpolation`: the
/// colour of places outside of the image, and the filter of rotation, shear and translation.
pub fn apply(image: &Pixels, operations: &[Operation], fill: [u8; 3], filter: Interpolation) -> Pixels {
    let (mut buffer, mut spare) = (Vec::new(), Vec::new());
    let all = Rect { x: 0, y: 0, width: image.width, height: image.height };
    pack(image, all, &mut buffer);
    let mut canvas = Canvas::new(image.width, image.height, &mut buffer, &mut spare);
    operations.iter().for_each(|operation| operation.apply(&mut canvas, fill, filter));
    let data = match image.channels {
        3 => rgb(canvas.pixels()),
        _ => canvas.pixels().iter().map(|p| p[0]).collect(),
    };
    Pixels { data, ..*image }
}
