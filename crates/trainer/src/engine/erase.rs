//! Random erasing on a device: what is erased in a batch of bytes is laid over its images once they are normalised.
//!
//! What travels are the fills, one after the other, and eight numbers for each image: where its rectangle lies, and which of the fills'
//! numbers a pixel of it takes. A mask of the batch or images of fills would be as much again as the images. Each pixel reads, and nothing is
//! scattered, so the order in which a device works changes no bit.

use burn::tensor::{Device, Int, Tensor, TensorData};
use manyheads_data::augment::Patch;

use super::upload::pinned;

/// Numbers that tell where a patch lies and where its fill is: first row and the one after the last, first column and the one after the
/// last, and four that lead to the fill. A pixel takes the number at start + channel × second + row × third + column × fourth.
const NUMBERS: usize = 8;

/// Normalised images, `[B, C, H, W]`, filled with `patches`: image and patch, in order of the images, later ones over earlier ones.
///
/// All first patches of the images are laid in one pass over the batch, all second ones in another.
pub(super) fn erased(images: Tensor<4>, patches: &[(usize, Patch)], device: &Device) -> Tensor<4> {
    if patches.is_empty() {
        return images;
    }
    let shape = images.dims();
    let [count, channels, height, width] = shape;
    let Layers { fills, numbers } = layers(patches, count, channels);
    let passes = numbers.len() / (NUMBERS * count);
    let length = fills.len();
    let fills = Tensor::<1>::from_data(pinned(TensorData::new(fills, [length]), device), device);
    let numbers = TensorData::new(numbers, [passes * NUMBERS, count]);
    let numbers = Tensor::<2, Int>::from_data(pinned(numbers, device), device);
    let places = |length: usize, shape: [usize; 4]| Tensor::<1, Int>::arange(0..length as i64, device).reshape(shape);
    let (channel, row, column) =
        (places(channels, [1, channels, 1, 1]), places(height, [1, 1, height, 1]), places(width, [1, 1, 1, width]));
    (0..passes).fold(images, |images, pass| {
        let number = |which| numbers.clone().narrow(0, pass * NUMBERS + which, 1).reshape([count, 1, 1, 1]);
        let [top, bottom, left, right, start, per_channel, per_row, per_column]: [Tensor<4, Int>; NUMBERS] =
            std::array::from_fn(number);
        let between = |place: &Tensor<4, Int>, first, end| {
            let from = place.clone().greater_equal(first);
            from.bool_and(place.clone().lower(end))
        };
        let inside = between(&row, top, bottom).bool_and(between(&column, left, right));
        let at = start + channel.clone() * per_channel + (row.clone() * per_row + column.clone() * per_column);
        // Outside of the rectangle the sum leads nowhere.
        let at = at * inside.clone().int();
        let picked = fills.clone().select(0, at.reshape([count * channels * height * width])).reshape(shape);
        images.mask_where(inside.expand(shape), picked)
    })
}

/// The patches of a batch as a device needs them.
struct Layers {
    /// All fills, one after the other.
    fills: Vec<f32>,
    /// `[passes, NUMBERS, B]`: for the n-th patch of each image; zero, an empty rectangle, where it has fewer.
    numbers: Vec<i32>,
}

fn layers(patches: &[(usize, Patch)], count: usize, channels: usize) -> Layers {
    let (mut fills, mut numbers) = (Vec::new(), Vec::new());
    let mut laid = vec![0; count];
    for (image, patch) in patches {
        let Patch { rect, values } = patch;
        let first = laid[*image] * NUMBERS * count;
        laid[*image] += 1;
        if numbers.len() <= first {
            numbers.resize(first + NUMBERS * count, 0);
        }
        let [per_channel, per_row, per_column] = match patch.is_plain(channels) {
            true => [1, 0, 0],
            false => [rect.width * rect.height, rect.width, 1],
        };
        let start = fills.len() as i32 - (rect.y * per_row + rect.x * per_column) as i32;
        let place = [rect.y, rect.y + rect.height, rect.x, rect.x + rect.width].map(|side| side as i32);
        let steps = [per_channel, per_row, per_column].map(|step| step as i32);
        for (which, number) in place.into_iter().chain([start]).chain(steps).enumerate() {
            numbers[first + which * count + image] = number;
        }
        fills.extend_from_slice(values);
    }
    Layers { fills, numbers }
}
