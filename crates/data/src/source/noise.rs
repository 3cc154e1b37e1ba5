//! Images of random pixels, to try a training out where its dataset is not at hand.

use std::borrow::Cow;

use super::Source;
use crate::error::DataError;
use crate::png::encode_png;
use crate::random::{Purpose, below, stream};

/// A few PNG images in memory whose pixels and labels are random: a function of the numbers they are made with.
pub struct Noise {
    classes: Vec<String>,
    labels: Vec<usize>,
    images: Vec<Vec<u8>>,
}

impl Noise {
    /// `count` colour images of `size` [height, width] with labels among `classes` classes.
    ///
    /// # Errors
    /// [`DataError::Config`] where there would be no image, no class or no pixel.
    pub fn new(count: usize, classes: usize, size: [usize; 2]) -> Result<Self, DataError> {
        if count == 0 || classes == 0 || size.contains(&0) {
            let reason = format!("{count} images of {} × {} pixels in {classes} classes are none", size[0], size[1]);
            return Err(DataError::config("noise", reason));
        }
        let [height, width] = size;
        let mut labels = Vec::with_capacity(count);
        let mut images = Vec::with_capacity(count);
        for index in 0..count {
            let mut rng = stream(0, Purpose::Augment, 0, index as u64);
            labels.push(below(&mut rng, classes as u64) as usize);
            let pixels: Vec<u8> = (0..height * width * 3).map(|_| below(&mut rng, 256) as u8).collect();
            images.push(encode_png(&pixels, width, height).map_err(|e| DataError::config("noise", e.to_string()))?);
        }
        Ok(Self { classes: (0..classes).map(|class| format!("class {class}")).collect(), labels, images })
    }
}

impl Source for Noise {
    fn len(&self) -> usize {
        self.images.len()
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: usize) -> usize {
        self.labels[index]
    }

    fn name(&self, index: usize) -> String {
        assert!(index < self.len(), "item {index} of {}", self.len());
        format!("noise/{index:05}.png")
    }

    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, DataError> {
        Ok(Cow::Borrowed(&self.images[index]))
    }

    fn size(&self, index: usize) -> Option<u64> {
        Some(self.images[index].len() as u64)
    }

    fn notices(&self) -> &[String] {
        &[]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_of_the_size_asked_for_and_differ() {
        let noise = Noise::new(3, 7, [9, 14]).unwrap();
        let decoded: Vec<_> = (0..3).map(|index| crate::decode_rgb(&noise.read(index).unwrap(), "noise").unwrap()).collect();
        assert!(decoded.iter().all(|image| (image.height, image.width) == (9, 14)));
        assert_ne!(decoded[0].data, decoded[1].data);
        assert!((0..3).all(|index| noise.label(index) < 7));
        assert_eq!(noise.read(2).unwrap(), Noise::new(3, 7, [9, 14]).unwrap().read(2).unwrap());
        assert!(Noise::new(0, 7, [9, 14]).is_err() && Noise::new(1, 7, [0, 14]).is_err());
    }
}
