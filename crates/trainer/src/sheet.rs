//! A sheet of images as the network sees them, normalisation undone.

/// Images in rows and columns, as RGB.
#[derive(Debug)]
pub(crate) struct Sheet {
    pixels: Vec<u8>,
    grid: [usize; 2],
    image: [usize; 2],
    enlarged: usize,
}

impl Sheet {
    /// A black sheet of `grid` rows and columns for images of `image` height and width; each pixel becomes `enlarged` × `enlarged`.
    pub fn new(grid: [usize; 2], image: [usize; 2], enlarged: usize) -> Self {
        let pixels = vec![0; grid[0] * image[0] * grid[1] * image[1] * enlarged * enlarged * 3];
        Self { pixels, grid, image, enlarged }
    }

    /// Height and width in pixels.
    pub fn size(&self) -> [usize; 2] {
        [0, 1].map(|side| self.grid[side] * self.image[side] * self.enlarged)
    }

    /// The pixels, [height, width, 3].
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Puts a normalised image, [channels, height, width], into a cell (row, column). Grey ones have one channel.
    pub fn put(&mut self, cell: [usize; 2], sample: &[f32], mean: &[f32], std: &[f32]) {
        let ([height, width], enlarged) = (self.image, self.enlarged);
        let line = self.size()[1];
        for y in 0..height * enlarged {
            for x in 0..width * enlarged {
                let at = ((cell[0] * height * enlarged + y) * line + cell[1] * width * enlarged + x) * 3;
                for colour in 0..3 {
                    let channel = colour.min(std.len() - 1);
                    let value = sample[(channel * height + y / enlarged) * width + x / enlarged] * std[channel] + mean[channel];
                    self.pixels[at + colour] = (value * 255.0).round().clamp(0.0, 255.0) as u8;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_normalised_image_is_shown_as_it_was() {
        let mut sheet = Sheet::new([1, 2], [1, 2], 2);
        let shown = [[0u8, 255], [10, 20], [30, 40]];
        let (mean, std) = ([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]);
        let sample: Vec<f32> = (0..3).flat_map(|c| shown[c].map(|value| (f32::from(value) / 255.0 - mean[c]) / std[c])).collect();
        sheet.put([0, 1], &sample, &mean, &std);
        assert_eq!(sheet.size(), [2, 8]);
        let line = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 30, 0, 10, 30, 255, 20, 40, 255, 20, 40];
        assert_eq!(sheet.pixels(), [line, line].concat());
    }
}
