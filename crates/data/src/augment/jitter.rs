//! Random changes of brightness, contrast, saturation and hue, as torchvision's `ColorJitter`.

use rand_chacha::rand_core::Rng;

use super::Operation;
use crate::error::DataError;
use crate::random::{below, uniform_in};

/// Ranges of the factors; at 0 strength a change is left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColorJitter {
    /// The factor is uniform in max(0, 1 - this) to 1 + this.
    pub brightness: f64,
    /// As `brightness`.
    pub contrast: f64,
    /// As `brightness`.
    pub saturation: f64,
    /// The shift is uniform in -this to this, in shares of the colour circle; at most 0.5.
    pub hue: f64,
}

impl ColorJitter {
    /// The same strength for brightness, contrast and saturation, and no change of hue: what timm and DeiT make of a single
    /// number.
    pub fn uniform(strength: f64) -> Self {
        Self { brightness: strength, contrast: strength, saturation: strength, hue: 0.0 }
    }

    /// Checks the strengths.
    ///
    /// # Errors
    /// [`DataError::Config`] naming the setting.
    pub fn validate(&self) -> Result<(), DataError> {
        for (key, value) in [
            ("color_jitter.brightness", self.brightness),
            ("color_jitter.contrast", self.contrast),
            ("color_jitter.saturation", self.saturation),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(DataError::config(key, format!("{value}, but a strength is 0 or above, and usually 0.3 or 0.4")));
            }
        }
        if !(0.0..=0.5).contains(&self.hue) {
            return Err(DataError::config("color_jitter.hue", format!("{}, but it is 0 to 0.5", self.hue)));
        }
        Ok(())
    }

    /// Draws the changes in their random order and appends them to `out`.
    ///
    /// Words drawn: three for the order, then one for each change that is not left out: brightness, contrast, saturation, hue.
    pub fn draw(&self, rng: &mut impl Rng, out: &mut Vec<Operation>) {
        let mut order = [0, 1, 2, 3];
        for last in (1..4).rev() {
            order.swap(last, below(rng, last as u64 + 1) as usize);
        }
        let mut factor = |strength: f64| (strength > 0.0).then(|| uniform_in(rng, (1.0 - strength).max(0.0), 1.0 + strength));
        let brightness = factor(self.brightness).map(Operation::Brightness);
        let contrast = factor(self.contrast).map(Operation::Contrast);
        let saturation = factor(self.saturation).map(Operation::Color);
        let hue = (self.hue > 0.0).then(|| Operation::Hue(uniform_in(rng, -self.hue, self.hue)));
        let changes = [brightness, contrast, saturation, hue];
        out.extend(order.into_iter().filter_map(|i| changes[i]));
    }
}
