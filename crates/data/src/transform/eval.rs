//! The evaluation transform, as timm's.

use serde::{Deserialize, Serialize};

use super::resize::{Interpolation, Rect, Resizer};
use super::{Image, Scratch};
use crate::error::DataError;

/// How an image of another shape comes into the crop: timm's `crop_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CropMode {
    /// The aspect ratio is kept, and what is too long is cut off on both sides.
    #[default]
    Center,
    /// Each side is scaled to the crop's by itself.
    Squash,
    /// The aspect ratio is kept, the whole image fits, and the mean colour fills up what is too short.
    Border,
}

/// The evaluation transform: resize, centre crop, normalisation.
#[derive(Clone, Debug, PartialEq)]
pub struct EvalTransform {
    /// Height and width of the result, in pixels.
    pub size: [usize; 2],
    /// 3 for RGB, 1 for grey; grey is Pillow's `convert("L")`.
    pub channels: usize,
    /// Part of the resized image that the crop keeps: a side becomes `floor(size / crop_pct)` pixels before it.
    pub crop_pct: f64,
    /// Which side that is.
    pub crop_mode: CropMode,
    /// Filter of the resize.
    pub interpolation: Interpolation,
    /// Mean of each channel, on a scale where white is 1.
    pub mean: Vec<f32>,
    /// Standard deviation of each channel, on the same scale.
    pub std: Vec<f32>,
}

impl Default for EvalTransform {
    /// ImageNet's usual: 224 of 256 pixels, RGB, bicubic.
    fn default() -> Self {
        Self {
            size: [224; 2],
            channels: 3,
            crop_pct: 0.875,
            crop_mode: CropMode::Center,
            interpolation: Interpolation::Bicubic,
            mean: super::IMAGENET_MEAN.to_vec(),
            std: super::IMAGENET_STD.to_vec(),
        }
    }
}

impl EvalTransform {
    pub(super) fn validate(&self) -> Result<(), DataError> {
        if !(self.crop_pct.is_finite() && self.crop_pct > 0.0 && self.crop_pct <= 4.0) {
            let reason = format!("{}, but it is above 0, and usually 0.8 to 1", self.crop_pct);
            return Err(DataError::config("crop_pct", reason));
        }
        Ok(())
    }

    /// Height and width of the image after the resize, before the centre crop.
    ///
    /// Mode `center`: for a square crop the short side becomes `floor(size / crop_pct)` and the long one `int(short * long /
    /// short before)`, as torchvision's `Resize`. For another crop both sides are scaled alike so that the crop just fits, and
    /// rounded half to even, as timm's `ResizeKeepRatio`; mode `border` does so for every crop, such that the image just fits.
    fn resized(&self, height: usize, width: usize) -> [usize; 2] {
        let target = self.size.map(|side| ((side as f64 / self.crop_pct).floor() as usize).max(1));
        let ratios = [height as f64 / target[0] as f64, width as f64 / target[1] as f64];
        let scaled = |ratio: f64| [height, width].map(|side| ((side as f64 / ratio).round_ties_even() as usize).max(1));
        match self.crop_mode {
            CropMode::Squash => target,
            CropMode::Border => scaled(ratios[0].max(ratios[1])),
            CropMode::Center if target[0] == target[1] => {
                let (short, long) = (height.min(width), height.max(width));
                let new_long = ((target[0] * long) as f64 / short as f64) as usize;
                if height <= width { [target[0], new_long] } else { [new_long, target[0]] }
            }
            CropMode::Center => scaled(ratios[0].min(ratios[1])),
        }
    }

    /// Puts the pixels of the crop into `scratch.image`. Where the resized image is smaller it is black around, or of the mean
    /// colour in mode `border`.
    pub(super) fn pixels(&self, image: Image<'_>, scratch: &mut Scratch) -> Result<(), DataError> {
        let mut prepared = None;
        let mut choose = |width: usize, height: usize, resizer: &mut Resizer| {
            let resized = self.resized(height, width);
            let [y, x] = [0, 1].map(|axis| centre(resized[axis], self.size[axis]));
            let window = Rect { x: x.from, y: y.from, width: x.len, height: y.len };
            let needed = resizer.prepare([height, width], resized, self.interpolation, None, window);
            prepared = Some((needed, window, [y.pad, x.pad]));
            needed
        };
        let part = scratch.decode(image, &mut choose)?;
        let (needed, window, pad) = prepared.expect("every decoder asks for the part");
        scratch.resize(part, needed, self.channels);
        let [height, width] = self.size;
        if [window.height, window.width] == self.size {
            return Ok(());
        }
        let padded = super::resize::front(&mut scratch.spare, width * height);
        padded.fill(match self.crop_mode {
            CropMode::Border => super::mean_colour(&self.mean),
            _ => [0; 4],
        });
        for (row, line) in padded.chunks_exact_mut(width).skip(pad[0]).take(window.height).enumerate() {
            line[pad[1]..pad[1] + window.width].copy_from_slice(&scratch.image[row * window.width..][..window.width]);
        }
        std::mem::swap(&mut scratch.image, &mut scratch.spare);
        Ok(())
    }
}

/// A centre crop along one side.
struct Centre {
    /// First pixel kept.
    from: usize,
    /// Pixels kept.
    len: usize,
    /// Pixels filled up before them.
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

#[cfg(test)]
mod tests {
    use super::super::{Transform, preview};
    use super::*;
    use crate::decode::Pixels;
    use crate::random::{Purpose, stream};

    fn eval(size: [usize; 2], crop_pct: f64) -> EvalTransform {
        EvalTransform { size, crop_pct, ..EvalTransform::default() }
    }

    #[test]
    fn centre_offsets_round_half_to_even() {
        for (side, crop, from) in [(5, 4, 0), (7, 4, 2), (9, 4, 2), (11, 4, 4), (256, 224, 16), (4, 4, 0)] {
            assert_eq!(centre(side, crop).from, from, "{side} {crop}");
        }
        let padded = centre(3, 8);
        assert_eq!((padded.from, padded.len, padded.pad), (0, 3, 2));
    }

    #[test]
    fn resized_sides_are_timms() {
        assert_eq!(eval([224, 224], 0.875).resized(375, 500), [256, 341]);
        assert_eq!(eval([224, 224], 0.9).resized(500, 375), [330, 248]);
        assert_eq!(eval([384, 384], 1.0).resized(333, 333), [384, 384]);
        assert_eq!(eval([384, 384], 0.875).resized(500, 400), [547, 438]);
        let mode = |crop_mode| EvalTransform { crop_mode, ..eval([224, 224], 0.875) };
        assert_eq!(mode(CropMode::Squash).resized(375, 500), [256, 256]);
        assert_eq!(mode(CropMode::Border).resized(375, 500), [192, 256]);
    }

    #[test]
    fn a_sliver_needs_no_more_memory_than_the_crop() {
        let image = Pixels { width: 1, height: 60_000, channels: 3, data: vec![200; 180_000] };
        let mut rng = stream(0, Purpose::Augment, 0, 0);
        let pixels = preview(&Transform::Eval(eval([224, 224], 0.875)), &image, &mut rng);
        assert_eq!((pixels.width, pixels.height), (224, 224));
        assert!(pixels.data.iter().all(|&v| v == 200));
    }
}
