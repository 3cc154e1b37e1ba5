//! Operations as policies name them, and what a magnitude means for each.

use rand_chacha::rand_core::Rng;

use super::Operation;
use crate::random::{chance, uniform_in};

/// Where a magnitude's scale ends, unless it is told otherwise.
pub(super) const SCALE: f64 = 10.0;

/// Share of the image by which translations move it at full magnitude.
const TRANSLATE: f64 = 0.45;

/// An operation under timm's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    AutoContrast,
    Equalize,
    Invert,
    Rotate,
    Posterize,
    PosterizeIncreasing,
    PosterizeOriginal,
    Solarize,
    SolarizeIncreasing,
    SolarizeAdd,
    Color,
    ColorIncreasing,
    Contrast,
    ContrastIncreasing,
    Brightness,
    BrightnessIncreasing,
    Sharpness,
    SharpnessIncreasing,
    ShearX,
    ShearY,
    TranslateXRel,
    TranslateYRel,
    Desaturate,
    GaussianBlur,
    GaussianBlurRand,
}

impl Kind {
    /// The operation at a magnitude, 0 to 10 and beyond, for an image of `width` × `height` pixels.
    ///
    /// Words drawn: one for the sign of rotations, shears, translations and the increasing enhancements, one for the
    /// deviation of `GaussianBlurRand`, none for the others.
    pub fn at(self, magnitude: f64, [height, width]: [usize; 2], rng: &mut impl Rng) -> Operation {
        let level = magnitude / SCALE;
        let mut signed = |value: f64| if chance(rng, 0.5) { -value } else { value };
        let posterize = (level * 4.0) as u8;
        let solarize = ((level * 256.0) as u16).min(256);
        let enhance = level * 1.8 + 0.1;
        match self {
            Self::AutoContrast => Operation::AutoContrast,
            Self::Equalize => Operation::Equalize,
            Self::Invert => Operation::Invert,
            Self::Rotate => Operation::Rotate(signed(level * 30.0)),
            Self::Posterize => Operation::Posterize(posterize),
            Self::PosterizeIncreasing => Operation::Posterize(4u8.saturating_sub(posterize)),
            Self::PosterizeOriginal => Operation::Posterize(posterize + 4),
            Self::Solarize => Operation::Solarize(solarize),
            Self::SolarizeIncreasing => Operation::Solarize(256 - solarize),
            Self::SolarizeAdd => Operation::SolarizeAdd(((level * 110.0) as u8).min(128)),
            Self::Color => Operation::Color(enhance),
            Self::Contrast => Operation::Contrast(enhance),
            Self::Brightness => Operation::Brightness(enhance),
            Self::Sharpness => Operation::Sharpness(enhance),
            Self::ColorIncreasing => Operation::Color((1.0 + signed(level * 0.9)).max(0.1)),
            Self::ContrastIncreasing => Operation::Contrast((1.0 + signed(level * 0.9)).max(0.1)),
            Self::BrightnessIncreasing => Operation::Brightness((1.0 + signed(level * 0.9)).max(0.1)),
            Self::SharpnessIncreasing => Operation::Sharpness((1.0 + signed(level * 0.9)).max(0.1)),
            Self::ShearX => Operation::ShearX(signed(level * 0.3)),
            Self::ShearY => Operation::ShearY(signed(level * 0.3)),
            Self::TranslateXRel => Operation::TranslateX(signed(level * TRANSLATE) * width as f64),
            Self::TranslateYRel => Operation::TranslateY(signed(level * TRANSLATE) * height as f64),
            Self::Desaturate => Operation::Color((1.0 - (0.5 + 0.5 * level).clamp(0.5, 1.0)).clamp(0.0, 1.0)),
            Self::GaussianBlur => Operation::GaussianBlur((0.1 + (2.0 - 0.1) * level).clamp(0.1, 2.0)),
            Self::GaussianBlurRand => Operation::GaussianBlur(uniform_in(rng, 0.1, 2.0 * level.clamp(0.0, 1.0))),
        }
    }
}
