//! RandAugment and AutoAugment: which operations an image gets, and how strong.

use rand_chacha::rand_core::Rng;

use super::Operation;
use super::kind::{Kind, SCALE};
use crate::random::{below, chance, normal, uniform, uniform_in};

/// How magnitudes scatter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Spread {
    /// All alike.
    None,
    /// Normal around the magnitude.
    Normal(f64),
    /// Uniform from 0 to the magnitude.
    Uniform,
}

/// One operation of a policy: drawn or not, and at a magnitude that may scatter. The bound is `most`.
///
/// Words drawn: one whether it is applied; then two for a normal magnitude or one for a uniform one; then those of
/// [`Kind::at`].
fn draw_one(
    (kind, probability, magnitude): (Kind, f64, f64),
    spread: Spread,
    most: f64,
    size: [usize; 2],
    rng: &mut impl Rng,
    out: &mut Vec<Operation>,
) {
    if !chance(rng, probability) {
        return;
    }
    let magnitude = match spread {
        Spread::None => magnitude,
        Spread::Normal(deviation) => magnitude + deviation * normal(rng),
        Spread::Uniform => uniform_in(rng, 0.0, magnitude),
    };
    out.push(kind.at(magnitude.clamp(0.0, most), size, rng));
}

/// RandAugment (Cubuk et al. 2020, arXiv:1909.13719) as timm has it.
#[derive(Clone, Debug, PartialEq)]
pub struct RandAugment {
    pub(super) magnitude: f64,
    pub(super) spread: Spread,
    /// Magnitudes are cut at this.
    pub(super) most: f64,
    pub(super) layers: usize,
    pub(super) probability: f64,
    pub(super) kinds: &'static [Kind],
    /// With weights, the operations of an image are all different.
    pub(super) weights: Option<&'static [f64]>,
}

impl RandAugment {
    /// Draws the operations for an image of `size`, [height, width], and appends them to `out`.
    ///
    /// Words drawn: one for each layer's choice, then those of each layer's operation in turn.
    pub fn draw(&self, size: [usize; 2], rng: &mut impl Rng, out: &mut Vec<Operation>) {
        let mut chosen = Vec::with_capacity(self.layers);
        for _ in 0..self.layers {
            let choice = match self.weights {
                None => below(rng, self.kinds.len() as u64) as usize,
                Some(weights) => weighted(weights, &chosen, rng),
            };
            chosen.push(choice);
        }
        for choice in chosen {
            draw_one((self.kinds[choice], self.probability, self.magnitude), self.spread, self.most, size, rng, out);
        }
    }
}

/// An index by weight, none of those taken. One word.
fn weighted(weights: &[f64], taken: &[usize], rng: &mut impl Rng) -> usize {
    let left = |i: usize| if taken.contains(&i) { 0.0 } else { weights[i] };
    let total: f64 = (0..weights.len()).map(left).sum();
    let mut rest = uniform(rng) * total;
    let mut last = 0;
    for i in (0..weights.len()).filter(|i| !taken.contains(i)) {
        last = i;
        rest -= left(i);
        if rest < 0.0 {
            break;
        }
    }
    last
}

/// A learned policy: a list of pairs of operations, of which an image gets one (AutoAugment, Cubuk et al. 2019,
/// arXiv:1805.09501), or DeiT III's three (Touvron et al. 2022, arXiv:2204.07118).
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub(super) steps: &'static [&'static [(Kind, f64, f64)]],
    pub(super) spread: Spread,
}

impl Policy {
    /// Draws the operations for an image of `size`, [height, width], and appends them to `out`.
    ///
    /// Words drawn: one for the choice, then those of each of its operations in turn.
    pub fn draw(&self, size: [usize; 2], rng: &mut impl Rng, out: &mut Vec<Operation>) {
        let steps = self.steps[below(rng, self.steps.len() as u64) as usize];
        steps.iter().for_each(|&step| draw_one(step, self.spread, SCALE, size, rng, out));
    }
}

use Kind::*;

pub(super) const PLAIN: [Kind; 15] = [
    AutoContrast,
    Equalize,
    Invert,
    Rotate,
    Posterize,
    Solarize,
    SolarizeAdd,
    Color,
    Contrast,
    Brightness,
    Sharpness,
    ShearX,
    ShearY,
    TranslateXRel,
    TranslateYRel,
];

pub(super) const INCREASING: [Kind; 15] = [
    AutoContrast,
    Equalize,
    Invert,
    Rotate,
    PosterizeIncreasing,
    SolarizeIncreasing,
    SolarizeAdd,
    ColorIncreasing,
    ContrastIncreasing,
    BrightnessIncreasing,
    SharpnessIncreasing,
    ShearX,
    ShearY,
    TranslateXRel,
    TranslateYRel,
];

pub(super) const THREE: [Kind; 3] = [SolarizeIncreasing, Desaturate, GaussianBlur];

pub(super) const WEIGHTED_THREE: ([Kind; 14], [f64; 14]) = (
    [
        SolarizeIncreasing,
        Desaturate,
        GaussianBlur,
        Rotate,
        ShearX,
        ShearY,
        PosterizeIncreasing,
        AutoContrast,
        ColorIncreasing,
        SharpnessIncreasing,
        ContrastIncreasing,
        BrightnessIncreasing,
        Equalize,
        Invert,
    ],
    [6.0, 6.0, 6.0, 3.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
);

pub(super) const WEIGHTED: ([Kind; 15], [f64; 15]) = (
    [
        Rotate,
        ShearX,
        ShearY,
        TranslateXRel,
        TranslateYRel,
        ColorIncreasing,
        SharpnessIncreasing,
        AutoContrast,
        SolarizeIncreasing,
        SolarizeAdd,
        ContrastIncreasing,
        BrightnessIncreasing,
        Equalize,
        PosterizeIncreasing,
        Invert,
    ],
    [3.0, 2.0, 2.0, 1.0, 1.0, 0.25, 0.25, 0.25, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05],
);

/// AutoAugment's policy for ImageNet in the version of the EfficientNet code; `P` is the form of Posterize.
macro_rules! version_0 {
    ($posterize:ident) => {
        [
            &[(Equalize, 0.8, 1.0), (ShearY, 0.8, 4.0)],
            &[(Color, 0.4, 9.0), (Equalize, 0.6, 3.0)],
            &[(Color, 0.4, 1.0), (Rotate, 0.6, 8.0)],
            &[(Solarize, 0.8, 3.0), (Equalize, 0.4, 7.0)],
            &[(Solarize, 0.4, 2.0), (Solarize, 0.6, 2.0)],
            &[(Color, 0.2, 0.0), (Equalize, 0.8, 8.0)],
            &[(Equalize, 0.4, 8.0), (SolarizeAdd, 0.8, 3.0)],
            &[(ShearX, 0.2, 9.0), (Rotate, 0.6, 8.0)],
            &[(Color, 0.6, 1.0), (Equalize, 1.0, 2.0)],
            &[(Invert, 0.4, 9.0), (Rotate, 0.6, 0.0)],
            &[(Equalize, 1.0, 9.0), (ShearY, 0.6, 3.0)],
            &[(Color, 0.4, 7.0), (Equalize, 0.6, 0.0)],
            &[($posterize, 0.4, 6.0), (AutoContrast, 0.4, 7.0)],
            &[(Solarize, 0.6, 8.0), (Color, 0.6, 9.0)],
            &[(Solarize, 0.2, 4.0), (Rotate, 0.8, 9.0)],
            &[(Rotate, 1.0, 7.0), (TranslateYRel, 0.8, 9.0)],
            &[(ShearX, 0.0, 0.0), (Solarize, 0.8, 4.0)],
            &[(ShearY, 0.8, 0.0), (Color, 0.6, 4.0)],
            &[(Color, 1.0, 0.0), (Rotate, 0.6, 2.0)],
            &[(Equalize, 0.8, 4.0), (Equalize, 0.0, 8.0)],
            &[(Equalize, 1.0, 4.0), (AutoContrast, 0.6, 2.0)],
            &[(ShearY, 0.4, 7.0), (SolarizeAdd, 0.6, 7.0)],
            &[($posterize, 0.8, 2.0), (Solarize, 0.6, 10.0)],
            &[(Solarize, 0.6, 8.0), (Equalize, 0.6, 1.0)],
            &[(Color, 0.8, 6.0), (Rotate, 0.4, 5.0)],
        ]
    };
}

/// AutoAugment's policy for ImageNet as published.
macro_rules! original {
    ($posterize:ident) => {
        [
            &[($posterize, 0.4, 8.0), (Rotate, 0.6, 9.0)],
            &[(Solarize, 0.6, 5.0), (AutoContrast, 0.6, 5.0)],
            &[(Equalize, 0.8, 8.0), (Equalize, 0.6, 3.0)],
            &[($posterize, 0.6, 7.0), ($posterize, 0.6, 6.0)],
            &[(Equalize, 0.4, 7.0), (Solarize, 0.2, 4.0)],
            &[(Equalize, 0.4, 4.0), (Rotate, 0.8, 8.0)],
            &[(Solarize, 0.6, 3.0), (Equalize, 0.6, 7.0)],
            &[($posterize, 0.8, 5.0), (Equalize, 1.0, 2.0)],
            &[(Rotate, 0.2, 3.0), (Solarize, 0.6, 8.0)],
            &[(Equalize, 0.6, 8.0), ($posterize, 0.4, 6.0)],
            &[(Rotate, 0.8, 8.0), (Color, 0.4, 0.0)],
            &[(Rotate, 0.4, 9.0), (Equalize, 0.6, 2.0)],
            &[(Equalize, 0.0, 7.0), (Equalize, 0.8, 8.0)],
            &[(Invert, 0.6, 4.0), (Equalize, 1.0, 8.0)],
            &[(Color, 0.6, 4.0), (Contrast, 1.0, 8.0)],
            &[(Rotate, 0.8, 8.0), (Color, 1.0, 2.0)],
            &[(Color, 0.8, 8.0), (Solarize, 0.8, 7.0)],
            &[(Sharpness, 0.4, 7.0), (Invert, 0.6, 8.0)],
            &[(ShearX, 0.6, 5.0), (Equalize, 1.0, 9.0)],
            &[(Color, 0.4, 0.0), (Equalize, 0.6, 3.0)],
            &[(Equalize, 0.4, 7.0), (Solarize, 0.2, 4.0)],
            &[(Solarize, 0.6, 5.0), (AutoContrast, 0.6, 5.0)],
            &[(Invert, 0.6, 4.0), (Equalize, 1.0, 8.0)],
            &[(Color, 0.6, 4.0), (Contrast, 1.0, 8.0)],
            &[(Equalize, 0.8, 8.0), (Equalize, 0.6, 3.0)],
        ]
    };
}

type Steps<const N: usize> = [&'static [(Kind, f64, f64)]; N];

pub(super) static V0: Steps<25> = version_0!(Posterize);
pub(super) static V0R: Steps<25> = version_0!(PosterizeIncreasing);
pub(super) static ORIGINAL: Steps<25> = original!(PosterizeOriginal);
pub(super) static ORIGINAL_R: Steps<25> = original!(PosterizeIncreasing);

/// Solarise at 128, grey, or blur by a deviation uniform in 0.1 to 2.
pub(super) static THREE_AUGMENT: Steps<3> =
    [&[(Solarize, 1.0, 5.0)], &[(Desaturate, 1.0, 10.0)], &[(GaussianBlurRand, 1.0, 10.0)]];
