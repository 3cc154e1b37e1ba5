//! The image that operations work on, in buffers that are kept from image to image.

use crate::transform::resize::front;

/// An image of four bytes a pixel: red, green, blue and one without meaning, or grey thrice.
pub(crate) struct Canvas<'a> {
    pub(crate) width: usize,
    pub(crate) height: usize,
    image: &'a mut Vec<[u8; 4]>,
    spare: &'a mut Vec<[u8; 4]>,
}

impl<'a> Canvas<'a> {
    /// The image is the first `width * height` places of `image`.
    pub(crate) fn new(width: usize, height: usize, image: &'a mut Vec<[u8; 4]>, spare: &'a mut Vec<[u8; 4]>) -> Self {
        let len = width * height;
        front(image, len);
        front(spare, len);
        Self { width, height, image, spare }
    }

    pub(crate) fn pixels(&self) -> &[[u8; 4]] {
        &self.image[..self.width * self.height]
    }

    pub(crate) fn pixels_mut(&mut self) -> &mut [[u8; 4]] {
        &mut self.image[..self.width * self.height]
    }

    /// Makes a new image from the present one: `make(present, new)`.
    pub(crate) fn replace(&mut self, make: impl FnOnce(&[[u8; 4]], &mut [[u8; 4]])) {
        let len = self.width * self.height;
        make(&self.image[..len], &mut self.spare[..len]);
        std::mem::swap(self.image, self.spare);
    }

    /// The mirror image, left for right.
    pub(crate) fn mirror(&mut self) {
        let width = self.width.max(1);
        self.pixels_mut().chunks_exact_mut(width).for_each(<[_]>::reverse);
    }

    /// Upside down.
    pub(crate) fn flip(&mut self) {
        let (width, height) = (self.width, self.height);
        let (upper, lower) = self.pixels_mut().split_at_mut(height.div_ceil(2) * width);
        let upper = upper.chunks_exact_mut(width.max(1));
        upper.zip(lower.chunks_exact_mut(width.max(1)).rev()).for_each(|(a, b)| a.swap_with_slice(b));
    }
}
