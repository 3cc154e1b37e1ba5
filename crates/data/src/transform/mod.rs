//! Encoded images to the values a network takes: crop, resize, flip, augment, normalise, erase.
//!
//! The values are those of timm and torchvision on Pillow images, see each part. Every draw comes from the generator given to
//! [`Transform::load`], in a fixed order, so that a sample is a function of the image and the generator's key.
//!
//! Only the pixels that the result depends on are decoded and resized, see [`crate::decode`].

#[cfg(target_arch = "x86_64")]
mod avx2;
pub mod crop;
mod eval;
mod kernel;
pub mod normalise;
pub mod resize;
mod train;
mod weights;

use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;

pub use crop::{RandomResizedCrop, TrainCrop};
pub use eval::{CropMode, EvalTransform};
pub use resize::Interpolation;
use resize::{Rect, Resizer};
pub use train::{CropDraw, TrainDraw, TrainTransform};

use crate::augment::Patch;
use crate::augment::canvas::Canvas;
use crate::decode::Pixels;
use crate::decode::part::{Part, Rgbx, decode_part, pack, rgb};
use crate::error::DataError;
use crate::loader::PixelFormat;

/// Longest side of a transformed image, in pixels.
pub const MAX_SIDE: usize = 16_384;

const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const IMAGENET_STD: [f32; 3] = [0.229, 0.224, 0.225];

/// The mean as a colour, rounded half to even; of a single channel thrice.
fn mean_colour(mean: &[f32]) -> [u8; 4] {
    let part = |i: usize| (255.0 * f64::from(mean[i.min(mean.len() - 1)])).round_ties_even().clamp(0.0, 255.0) as u8;
    [part(0), part(1), part(2), 0]
}

/// What is done with an image.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "there are two in a run")]
pub enum Transform {
    /// Random, for training.
    Train(TrainTransform),
    /// The same each time, for evaluation.
    Eval(EvalTransform),
}

/// Where a sample goes, [C, H, W].
#[derive(Debug)]
pub enum Output<'a> {
    /// Normalised: `(value / 255 - mean) / std`.
    F32(&'a mut [f32]),
    /// Not normalised: that is left to the device, with the transform's mean and deviation.
    U8 {
        /// 0 to 255.
        values: &'a mut [u8],
        /// What is erased in the normalised image, in order: later ones may lie over earlier ones. Those of another image are
        /// removed first.
        patches: &'a mut Vec<Patch>,
    },
}

impl Output<'_> {
    fn len(&self) -> usize {
        match self {
            Self::F32(out) => out.len(),
            Self::U8 { values, .. } => values.len(),
        }
    }
}

/// Buffers that a thread keeps from sample to sample. Holds nothing that a result depends on.
#[derive(Debug, Default)]
pub struct Scratch {
    decoded: Vec<[u8; 4]>,
    resizer: Resizer,
    image: Vec<[u8; 4]>,
    spare: Vec<[u8; 4]>,
    stages: Stages,
}

/// Time spent in the stages of [`Transform::load`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// Samples counted.
    pub samples: u64,
    /// Encoded bytes to pixels.
    pub decode: Duration,
    /// Weights and both passes of the resize.
    pub resize: Duration,
    /// Flips and operations.
    pub augment: Duration,
    /// Planes, normalisation and erasing.
    pub finish: Duration,
}

impl Scratch {
    /// The times since the last call, and zero from now on.
    pub fn take_stages(&mut self) -> Stages {
        std::mem::take(&mut self.stages)
    }
}

/// Where the image comes from.
#[derive(Clone, Copy)]
enum Image<'a> {
    Encoded(&'a [u8]),
    Decoded(&'a Pixels),
}

impl Image<'_> {
    /// The part that `choose` names, told width and height.
    fn part(self, choose: &mut dyn FnMut(usize, usize) -> Rect, buffer: &mut Vec<[u8; 4]>) -> Result<Part, DataError> {
        match self {
            Self::Encoded(bytes) => decode_part(bytes, choose, buffer).map_err(|reason| DataError::bad_image("", reason)),
            Self::Decoded(pixels) => {
                let rect = choose(pixels.width, pixels.height);
                Ok(pack(pixels, rect, buffer))
            }
        }
    }
}

impl Scratch {
    /// Decodes the part that `choose` names and makes its resize ready.
    fn decode(
        &mut self,
        image: Image<'_>,
        choose: &mut dyn FnMut(usize, usize, &mut Resizer) -> Rect,
    ) -> Result<Part, DataError> {
        let start = Instant::now();
        let mut choosing = Duration::ZERO;
        let resizer = &mut self.resizer;
        let mut timed = |width: usize, height: usize| {
            let start = Instant::now();
            let rect = choose(width, height, resizer);
            choosing = start.elapsed();
            rect
        };
        let part = image.part(&mut timed, &mut self.decoded);
        self.stages.resize += choosing;
        self.stages.decode += start.elapsed().saturating_sub(choosing);
        part
    }

    /// Resizes the part that was decoded, as prepared; grey first if one channel is wanted, as Pillow's `convert("L")`.
    fn resize(&mut self, part: Part, needed: Rect, channels: usize) {
        let start = Instant::now();
        if channels == 1 {
            for pixel in part.buffer_mut(&mut self.decoded) {
                *pixel = [luma(pixel); 4];
            }
        }
        self.resizer.run(part.view(&self.decoded), needed, &mut self.image);
        self.stages.resize += start.elapsed();
    }
}

impl Transform {
    /// Shape of the result, [C, H, W].
    pub fn sample_shape(&self) -> [usize; 3] {
        let (channels, size) = match self {
            Self::Train(t) => (t.channels, t.size),
            Self::Eval(t) => (t.channels, t.size),
        };
        [channels, size[0], size[1]]
    }

    /// Mean and standard deviation of each channel, on a scale where white is 1: what is left to do for [`Output::U8`].
    pub fn normalisation(&self) -> (&[f32], &[f32]) {
        match self {
            Self::Train(t) => (&t.mean, &t.std),
            Self::Eval(t) => (&t.mean, &t.std),
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`DataError::Config`] naming the setting.
    pub fn validate(&self) -> Result<(), DataError> {
        let [channels, height, width] = self.sample_shape();
        if channels != 1 && channels != 3 {
            return Err(DataError::config("channels", format!("{channels}, but images have 1 (grey) or 3 (RGB)")));
        }
        if height == 0 || width == 0 || height > MAX_SIDE || width > MAX_SIDE {
            return Err(DataError::config("size", format!("{height} × {width}, but each side must be 1 to {MAX_SIDE} pixels")));
        }
        let (mean, std) = self.normalisation();
        for (key, values) in [("mean", mean), ("std", std)] {
            if values.len() != channels {
                return Err(DataError::config(key, format!("{} values for {channels} channels", values.len())));
            }
            if let Some(value) = values.iter().find(|v| !v.is_finite()) {
                return Err(DataError::config(key, format!("{value} is not a finite number")));
            }
        }
        if let Some(value) = std.iter().find(|&&v| v <= 0.0) {
            return Err(DataError::config("std", format!("{value}, but a standard deviation is above 0")));
        }
        match self {
            Self::Train(t) => t.validate(),
            Self::Eval(t) => t.validate(),
        }
    }

    /// Most bytes of a sample as floats, or as bytes with its patches.
    pub fn sample_bytes(&self, format: PixelFormat) -> usize {
        let shape = self.sample_shape();
        let values: usize = shape.iter().product();
        match (format, self) {
            (PixelFormat::F32, _) => values * size_of::<f32>(),
            (PixelFormat::U8, Self::Train(TrainTransform { random_erasing: Some(erasing), .. })) => {
                values + erasing.most_values(shape) * size_of::<f32>()
            }
            (PixelFormat::U8, _) => values,
        }
    }

    /// Encoded bytes to a finished sample; a JPEG is decoded only where the result depends on it.
    ///
    /// The training transform draws as [`TrainTransform::draw`] says, and then the numbers that erased rectangles are filled
    /// with. The evaluation transform draws nothing.
    ///
    /// # Errors
    /// [`DataError::BadImage`] with an empty name, for the caller to fill in, if the bytes are no sound image;
    /// [`DataError::Config`] if `out` has another length than [`Transform::sample_shape`] asks for.
    pub fn load(&self, bytes: &[u8], rng: &mut ChaCha8Rng, scratch: &mut Scratch, out: Output<'_>) -> Result<(), DataError> {
        self.run(Image::Encoded(bytes), rng, scratch, out)
    }

    /// Transforms a decoded image into `out`, [C, H, W]; the values and draws are those of [`Transform::load`].
    ///
    /// # Errors
    /// [`DataError::Config`] if `out` has another length than [`Transform::sample_shape`] asks for.
    pub fn apply(&self, image: &Pixels, rng: &mut ChaCha8Rng, out: &mut [f32]) -> Result<(), DataError> {
        self.run(Image::Decoded(image), rng, &mut Scratch::default(), Output::F32(out))
    }

    fn run(&self, image: Image<'_>, rng: &mut ChaCha8Rng, scratch: &mut Scratch, out: Output<'_>) -> Result<(), DataError> {
        let [channels, height, width] = self.sample_shape();
        if out.len() != channels * height * width {
            let reason = format!("a buffer of {} values for [{channels}, {height}, {width}]", out.len());
            return Err(DataError::config("size", reason));
        }
        let (erased, mirror) = match self {
            Self::Train(t) => {
                let draw = t.pixels(image, rng, scratch)?;
                // Where nothing comes after a mirror image, it is made on the way out.
                let late = draw.mirror_is_last();
                (Some((t, draw.erased)), late)
            }
            Self::Eval(t) => {
                t.pixels(image, scratch)?;
                (None, false)
            }
        };
        let start = Instant::now();
        let pixels = Rgbx::new(&scratch.image, width, width, height);
        match out {
            Output::F32(out) => {
                let (mean, std) = self.normalisation();
                normalise::planar(pixels, mirror, mean, std, out);
                if let Some((TrainTransform { random_erasing: Some(erasing), .. }, erased)) = erased {
                    erasing.apply(&erased, [height, width], rng, out);
                }
            }
            Output::U8 { values, patches } => {
                normalise::planar_u8(pixels, mirror, channels, values);
                patches.clear();
                if let Some((TrainTransform { random_erasing: Some(erasing), .. }, erased)) = erased {
                    patches.extend(erasing.patches(&erased, channels, rng));
                }
            }
        }
        scratch.stages.finish += start.elapsed();
        scratch.stages.samples += 1;
        Ok(())
    }
}

/// ITU-R 601 luma in Pillow's 16-bit integers. The weights sum to 65536, so grey comes back as it was.
#[inline(always)]
pub(crate) fn luma(rgb: &[u8; 4]) -> u8 {
    ((u32::from(rgb[0]) * 19595 + u32::from(rgb[1]) * 38470 + u32::from(rgb[2]) * 7471 + 0x8000) >> 16) as u8
}

/// The image as a training or evaluation step sees it, before normalisation: for previews. Nothing is erased in it.
///
/// Draws as [`Transform::apply`] does.
pub fn preview(transform: &Transform, image: &Pixels, rng: &mut ChaCha8Rng) -> Pixels {
    let mut scratch = Scratch::default();
    let [channels, height, width] = transform.sample_shape();
    let image = Image::Decoded(image);
    let prepared = match transform {
        Transform::Train(t) => t.pixels(image, rng, &mut scratch).map(|draw| draw.mirror_is_last()),
        Transform::Eval(t) => t.pixels(image, &mut scratch).map(|()| false),
    };
    let mirror = prepared.expect("an image that is decoded has no faults");
    let mut canvas = Canvas::new(width, height, &mut scratch.image, &mut scratch.spare);
    if mirror {
        canvas.mirror();
    }
    let data = match channels {
        3 => rgb(canvas.pixels()),
        _ => canvas.pixels().iter().map(|p| p[0]).collect(),
    };
    Pixels { width, height, channels, data }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::augment::{Fill, RandomErasing};

    #[test]
    fn grey_comes_back_exactly() {
        for v in 0..=255 {
            assert_eq!(luma(&[v, v, v, 0]), v);
        }
    }

    #[test]
    fn settings_are_checked_by_name() {
        let plain = EvalTransform { size: [8, 8], crop_pct: 1.0, ..EvalTransform::default() };
        let key = |t: EvalTransform| match Transform::Eval(t).validate() {
            Err(DataError::Config { key, .. }) => key,
            other => panic!("{other:?}"),
        };
        assert_eq!(key(EvalTransform { channels: 2, ..plain.clone() }), "channels");
        assert_eq!(key(EvalTransform { mean: vec![0.0], ..plain.clone() }), "mean");
        assert_eq!(key(EvalTransform { std: vec![1.0, 0.0, 1.0], ..plain.clone() }), "std");
        assert_eq!(key(EvalTransform { size: [0, 8], ..plain.clone() }), "size");
        assert_eq!(key(EvalTransform { crop_pct: f64::NAN, ..plain.clone() }), "crop_pct");
        assert!(Transform::Eval(plain).validate().is_ok());
    }

    /// A third of the area may be erased with floats.
    #[test]
    fn the_bytes_of_patches_are_counted() {
        let bytes = |random_erasing| {
            let transform = Transform::Train(TrainTransform { size: [30, 20], random_erasing, ..TrainTransform::default() });
            [PixelFormat::F32, PixelFormat::U8].map(|format| transform.sample_bytes(format))
        };
        assert_eq!(bytes(None), [7200, 1800]);
        assert_eq!(bytes(Some(RandomErasing::default())), [7200, 1800 + 2400]);
        let plain = RandomErasing { fill: Fill::Rand, count: 5, ..RandomErasing::default() };
        assert_eq!(bytes(Some(plain)), [7200, 1800 + 60]);
    }
}
