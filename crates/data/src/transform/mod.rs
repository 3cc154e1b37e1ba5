//! Pixels to the floats a network takes: crop, resize, flip, normalise.
//!
//! The values are those of timm and torchvision on Pillow images, see each part. Every draw comes from the generator given to
//! [`Transform::apply`], in a fixed order, so that a sample is a function of the image and the generator's key.

pub mod crop;
pub mod normalise;
pub mod resize;

use rand_chacha::ChaCha8Rng;

pub use crop::RandomResizedCrop;
pub use resize::Interpolation;
use resize::{Rect, View, resize};

use crate::decode::Pixels;
use crate::error::DataError;
use crate::random::chance;

/// Longest side of a transformed image, in pixels.
pub const MAX_SIDE: usize = 16_384;

/// The training transform: random resized crop, horizontal flip, normalisation.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainTransform {
    /// Height and width of the result, in pixels.
    pub size: [usize; 2],
    /// 3 for RGB, 1 for grey; grey is Pillow's `convert("L")`.
    pub channels: usize,
    /// The random crop; without it the whole image is resized to `size`, its aspect ratio not kept.
    pub random_resized_crop: Option<RandomResizedCrop>,
    /// Probability of a mirror image, 0 to 1.
    pub horizontal_flip: f64,
    /// Filter of the resize.
    pub interpolation: Interpolation,
    /// Mean of each channel, on a scale where white is 1.
    pub mean: Vec<f32>,
    /// Standard deviation of each channel, on the same scale.
    pub std: Vec<f32>,
}

/// The evaluation transform: resize, centre crop, normalisation, as timm's with `crop_mode = "center"`.
#[derive(Clone, Debug, PartialEq)]
pub struct EvalTransform {
    /// Height and width of the result, in pixels.
    pub size: [usize; 2],
    /// 3 for RGB, 1 for grey; grey is Pillow's `convert("L")`.
    pub channels: usize,
    /// Part of the resized short side that the crop keeps: the short side becomes `floor(size / crop_pct)` pixels.
    pub crop_pct: f64,
    /// Filter of the resize.
    pub interpolation: Interpolation,
    /// Mean of each channel, on a scale where white is 1.
    pub mean: Vec<f32>,
    /// Standard deviation of each channel, on the same scale.
    pub std: Vec<f32>,
}

/// What is done with a decoded image.
#[derive(Clone, Debug, PartialEq)]
pub enum Transform {
    /// Random, for training.
    Train(TrainTransform),
    /// The same each time, for evaluation.
    Eval(EvalTransform),
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
        let (mean, std) = match self {
            Self::Train(t) => (&t.mean, &t.std),
            Self::Eval(t) => (&t.mean, &t.std),
        };
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
            Self::Train(t) => {
                if !(0.0..=1.0).contains(&t.horizontal_flip) {
                    let reason = format!("{}, but a probability is 0 to 1", t.horizontal_flip);
                    return Err(DataError::config("horizontal_flip", reason));
                }
                t.random_resized_crop.as_ref().map_or(Ok(()), RandomResizedCrop::validate)
            }
            Self::Eval(t) if !(t.crop_pct.is_finite() && t.crop_pct > 0.0 && t.crop_pct <= 4.0) => {
                Err(DataError::config("crop_pct", format!("{}, but it is above 0, and usually 0.8 to 1", t.crop_pct)))
            }
            Self::Eval(_) => Ok(()),
        }
    }

    /// Transforms an image of any size into `out`, [C, H, W].
    ///
    /// Draws, in this order: the crop (see [`RandomResizedCrop::draw`]), then one word for the flip. The evaluation transform
    /// draws nothing.
    ///
    /// # Errors
    /// [`DataError::Config`] if `out` has another length than [`Transform::sample_shape`] asks for.
    pub fn apply(&self, image: &Pixels, rng: &mut ChaCha8Rng, out: &mut [f32]) -> Result<(), DataError> {
        let [channels, height, width] = self.sample_shape();
        if out.len() != channels * height * width {
            let reason = format!("a buffer of {} values for [{channels}, {height}, {width}]", out.len());
            return Err(DataError::config("size", reason));
        }
        match self {
            Self::Train(t) => {
                let (pixels, mirror) = t.draw(image, rng);
                normalise::planar(View::new(&pixels), mirror, &t.mean, &t.std, out);
            }
            Self::Eval(t) => {
                let pixels = t.pixels(image);
                normalise::planar(View::new(&pixels), false, &t.mean, &t.std, out);
            }
        }
        Ok(())
    }
}

impl TrainTransform {
    /// The cropped and resized pixels, and whether they are to be mirrored.
    fn draw(&self, image: &Pixels, rng: &mut ChaCha8Rng) -> (Pixels, bool) {
        let crop = match &self.random_resized_crop {
            Some(crop) => crop.draw(image.width, image.height, rng),
            None => Rect { x: 0, y: 0, width: image.width, height: image.height },
        };
        let mirror = chance(rng, self.horizontal_flip);
        let source = with_channels(View::new(image).crop(crop), self.channels);
        let [height, width] = self.size;
        let whole = Rect { x: 0, y: 0, width, height };
        (resize(source.view(), [height, width], self.interpolation, None, whole), mirror)
    }
}

impl EvalTransform {
    /// Height and width of the image after the resize, before the centre crop.
    ///
    /// For a square crop the short side becomes `floor(size / crop_pct)` and the long one `int(short * long / short before)`,
    /// as torchvision's `Resize`. For another crop both sides are scaled alike so that the crop just fits, and rounded, as
    /// timm's `ResizeKeepRatio`.
    fn resized(&self, height: usize, width: usize) -> [usize; 2] {
        let target = self.size.map(|side| ((side as f64 / self.crop_pct).floor() as usize).max(1));
        if target[0] == target[1] {
            let (short, long) = (height.min(width), height.max(width));
            let new_long = ((target[0] * long) as f64 / short as f64) as usize;
            if height <= width { [target[0], new_long] } else { [new_long, target[0]] }
        } else {
            let ratio = (height as f64 / target[0] as f64).min(width as f64 / target[1] as f64);
            [height, width].map(|side| ((side as f64 / ratio).round_ties_even() as usize).max(1))
        }
    }

    /// The pixels of the centre crop, black where the resized image is smaller. Only they are computed.
    fn pixels(&self, image: &Pixels) -> Pixels {
        let resized = self.resized(image.height, image.width);
        let [y, x] = [0, 1].map(|axis| centre(resized[axis], self.size[axis]));
        let source = with_channels(View::new(image), self.channels);
        let window = Rect { x: x.from, y: y.from, width: x.len, height: y.len };
        let cut = resize(source.view(), resized, self.interpolation, None, window);
        let [height, width] = self.size;
        if [cut.height, cut.width] == self.size {
            return cut;
        }
        let mut padded = Pixels { width, height, channels: cut.channels, data: vec![0; width * height * cut.channels] };
        let row = cut.width * cut.channels;
        for (i, values) in cut.data.chunks_exact(row).enumerate() {
            let start = ((y.pad + i) * width + x.pad) * cut.channels;
            padded.data[start..start + row].copy_from_slice(values);
        }
        padded
    }
}

/// A centre crop along one side.
struct Centre {
    /// First pixel kept.
    from: usize,
    /// Pixels kept.
    len: usize,
    /// Black pixels before them.
    pad: usize,
}

/// torchvision's `CenterCrop`: the offset is rounded half to even; what is missing is padded, the smaller half before.
fn centre(side: usize, crop: usize) -> Centre {
    if side >= crop {
        Centre { from: ((side - crop) as f64 / 2.0).round_ties_even() as usize, len: crop, pad: 0 }
    } else {
        Centre { from: 0, len: side, pad: (crop - side) / 2 }
    }
}

/// An image or a part of one with the wanted number of channels.
enum Channels<'a> {
    Same(View<'a>),
    Other(Pixels),
}

impl Channels<'_> {
    fn view(&self) -> View<'_> {
        match self {
            Self::Same(view) => *view,
            Self::Other(pixels) => View::new(pixels),
        }
    }
}

fn with_channels(view: View<'_>, channels: usize) -> Channels<'_> {
    if view.channels() == channels {
        return Channels::Same(view);
    }
    let rows = (0..view.height()).map(|y| view.row(y));
    let data = match channels {
        1 => rows.flat_map(|row| row.chunks_exact(3).map(luma)).collect(),
        _ => rows.flat_map(|row| row.iter().flat_map(|&v| [v; 3])).collect(),
    };
    Channels::Other(Pixels { width: view.width(), height: view.height(), channels, data })
}

/// ITU-R 601 luma in Pillow's 16-bit integers. The weights sum to 65536, so grey comes back as it was.
fn luma(rgb: &[u8]) -> u8 {
    ((u32::from(rgb[0]) * 19595 + u32::from(rgb[1]) * 38470 + u32::from(rgb[2]) * 7471 + 0x8000) >> 16) as u8
}

/// The image as a training or evaluation step sees it, before normalisation: for previews.
///
/// Draws as [`Transform::apply`] does.
pub fn preview(transform: &Transform, image: &Pixels, rng: &mut ChaCha8Rng) -> Pixels {
    match transform {
        Transform::Train(t) => {
            let (mut pixels, mirror) = t.draw(image, rng);
            if mirror {
                pixels = normalise::mirrored(&pixels);
            }
            pixels
        }
        Transform::Eval(t) => t.pixels(image),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grey_comes_back_exactly() {
        for v in 0..=255 {
            assert_eq!(luma(&[v, v, v]), v);
        }
    }

    #[test]
    fn centre_offsets_round_half_to_even() {
        for (side, crop, from) in [(5, 4, 0), (7, 4, 2), (9, 4, 2), (11, 4, 4), (256, 224, 16), (4, 4, 0)] {
            assert_eq!(centre(side, crop).from, from, "{side} {crop}");
        }
        let padded = centre(3, 8);
        assert_eq!((padded.from, padded.len, padded.pad), (0, 3, 2));
    }

    fn eval(size: [usize; 2], crop_pct: f64) -> EvalTransform {
        EvalTransform {
            size,
            channels: 3,
            crop_pct,
            interpolation: Interpolation::Bicubic,
            mean: vec![0.5; 3],
            std: vec![0.5; 3],
        }
    }

    #[test]
    fn resized_sides_are_timms() {
        assert_eq!(eval([224, 224], 0.875).resized(375, 500), [256, 341]);
        assert_eq!(eval([224, 224], 0.9).resized(500, 375), [330, 248]);
        assert_eq!(eval([384, 384], 1.0).resized(333, 333), [384, 384]);
        assert_eq!(eval([384, 384], 0.875).resized(500, 400), [547, 438]);
    }

    #[test]
    fn a_sliver_needs_no_more_memory_than_the_crop() {
        let image = Pixels { width: 1, height: 60_000, channels: 3, data: vec![200; 180_000] };
        let pixels = eval([224, 224], 0.875).pixels(&image);
        assert_eq!((pixels.width, pixels.height), (224, 224));
        assert!(pixels.data.iter().all(|&v| v == 200));
    }

    #[test]
    fn settings_are_checked_by_name() {
        let key = |t: EvalTransform| match Transform::Eval(t).validate() {
            Err(DataError::Config { key, .. }) => key,
            other => panic!("{other:?}"),
        };
        assert_eq!(key(EvalTransform { channels: 2, ..eval([8, 8], 1.0) }), "channels");
        assert_eq!(key(EvalTransform { mean: vec![0.0], ..eval([8, 8], 1.0) }), "mean");
        assert_eq!(key(EvalTransform { std: vec![1.0, 0.0, 1.0], ..eval([8, 8], 1.0) }), "std");
        assert_eq!(key(eval([0, 8], 1.0)), "size");
        assert_eq!(key(eval([8, 8], f64::NAN)), "crop_pct");
        assert!(Transform::Eval(eval([8, 8], 1.0)).validate().is_ok());
    }
}
