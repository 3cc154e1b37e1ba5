//! From the pixels of a batch to a tensor.
//!
//! The CPU backend takes what the loader normalised. A GPU gets bytes, a quarter of the transfer, and normalises, erases and mixes there.

use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use manyheads_data::{Images, PixelFormat};
use manyheads_model::Pixels;
use manyheads_model::ops::{ByteImages, byte_patches};

use super::erase::erased;

/// How a loader should hand over its pixels to a device. `eager`: the device is the CPU itself.
pub(crate) fn format(eager: bool) -> PixelFormat {
    match eager {
        true => PixelFormat::F32,
        false => PixelFormat::U8,
    }
}

/// The images of a batch, `shape` = `[B, C, H, W]`, on `device`: `(value / 255 - mean) / std`, with `mean` and `std` of each channel,
/// erased where they are to be.
pub(crate) fn normalised(images: Images, shape: [usize; 4], [mean, std]: [&[f32]; 2], device: &Device) -> Tensor<4> {
    match images {
        Images::F32(values) => Tensor::from_data(pinned(TensorData::new(values, shape), device), device),
        Images::U8 { values, patches } => erased(bytes(values, shape, [mean, std], device).normalised(), &patches, device),
    }
}

/// The same for a network that is shown the images as they are, in the float type `float`. `patch` is what its
/// [`byte_patch`](manyheads_model::VisionTransformer::byte_patch) says: such a network gets bytes in one piece, where nothing is erased.
pub(crate) fn shown(
    images: Images,
    shape: [usize; 4],
    statistics: [&[f32]; 2],
    device: &Device,
    (patch, float): (Option<usize>, FloatDType),
) -> Pixels {
    match (images, patch) {
        (Images::U8 { values, patches }, Some(patch)) if patches.is_empty() => {
            Pixels::Patches(byte_patches(bytes(values, shape, statistics, device), patch, float))
        }
        (images, _) => Pixels::Images(normalised(images, shape, statistics, device).cast(float)),
    }
}

/// The data in memory that the device can fetch by itself while the host goes on, where the backend has such memory: CUDA.
pub(super) fn pinned(mut data: TensorData, device: &Device) -> TensorData {
    device.staging(std::iter::once(&mut data));
    data
}

fn bytes(mut values: Vec<u8>, shape: [usize; 4], [mean, std]: [&[f32]; 2], device: &Device) -> ByteImages {
    values.resize(values.len().next_multiple_of(4), 0);
    let words: Vec<i32> = values.as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word)).collect();
    let count = words.len();
    let words = Tensor::from_data(pinned(TensorData::new(words, [count]), device), device);
    let normalisation = Tensor::from_data(TensorData::new([mean, std].concat(), [2, mean.len()]), device);
    ByteImages { words, shape, normalisation }
}

/// The same on the host, for what looks at a batch.
pub(crate) fn normalised_on_the_host(images: Images, shape: [usize; 4], [mean, std]: [&[f32]; 2]) -> Vec<f32> {
    match images {
        Images::F32(values) => values,
        Images::U8 { values, patches } => {
            let [_, channels, height, width] = shape;
            let planes = values.chunks_exact((height * width).max(1)).enumerate();
            let plane = |(number, plane): (usize, &[u8])| {
                let (mean, std) = (mean[number % channels], std[number % channels]);
                plane.iter().map(|value| (f32::from(*value) / 255.0 - mean) / std).collect::<Vec<f32>>()
            };
            let mut images: Vec<f32> = planes.flat_map(plane).collect();
            for (image, patch) in &patches {
                let length = channels * height * width;
                patch.write([height, width], &mut images[image * length..(image + 1) * length]);
            }
            images
        }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use manyheads_data::augment::Patch;
    use manyheads_data::transform::resize::Rect;

    #[test]
    fn bytes_arrive_as_what_the_loader_would_have_made_of_them() {
        let device = Device::flex();
        // No multiple of four, every byte, two images of three channels.
        let shape = [2, 3, 5, 9];
        let values: Vec<u8> = (0..270).map(|value| (value * 7 % 256) as u8).collect();
        let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
        let images = Images::U8 { values: values.clone(), patches: Vec::new() };
        let host = normalised_on_the_host(images.clone(), shape, [&mean, &std]);
        let expected = |index: usize| (f32::from(values[index]) / 255.0 - mean[index / 45 % 3]) / std[index / 45 % 3];
        assert!(host.iter().enumerate().all(|(index, value)| *value == expected(index)));
        let images = normalised(images, shape, [&mean, &std], &device);
        assert_eq!(images.dims(), shape);
        let there: Vec<f32> = images.into_data().try_into_vec().unwrap();
        assert!(there.iter().zip(&host).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs().max(1.0)), "{there:?}");
        let floats = normalised(Images::F32(host.clone()), shape, [&mean, &std], &device);
        assert_eq!(floats.into_data().try_into_vec::<f32>().unwrap(), host);
    }

    /// Fills of one number a channel and of one a pixel, an image with none, one with three that lie over each other, a rectangle of one
    /// pixel, and one at each edge.
    #[track_caller]
    fn patches_are_laid_over_the_images(device: &Device) {
        let shape = [4, 3, 6, 7];
        let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
        let values: Vec<u8> = (0..504).map(|value| (value * 5 % 256) as u8).collect();
        let patch = |image: usize, [y, x, height, width]: [usize; 4], plain: bool| {
            let length = if plain { 3 } else { 3 * height * width };
            let values = (0..length).map(|value| 100.0 + (image * 31 + y * 7 + x + value) as f32 * 0.37).collect();
            (image, Patch { rect: Rect { x, y, width, height }, values })
        };
        let patches = vec![
            patch(0, [0, 0, 2, 3], false),
            patch(0, [1, 1, 4, 4], true),
            patch(0, [1, 2, 1, 1], false),
            patch(1, [5, 2, 1, 5], false),
            patch(3, [0, 6, 6, 1], true),
        ];
        let mut expected = normalised_on_the_host(Images::U8 { values: values.clone(), patches: vec![] }, shape, [&mean, &std]);
        for (image, patch) in &patches {
            let Rect { x, y, width, height } = patch.rect;
            for (channel, row, column) in
                (0..3).flat_map(|c| (y..y + height).flat_map(move |r| (x..x + width).map(move |q| (c, r, q))))
            {
                let place = if patch.values.len() == 3 { channel } else { (channel * height + row - y) * width + column - x };
                expected[((image * 3 + channel) * 6 + row) * 7 + column] = patch.values[place];
            }
        }
        let images = Images::U8 { values, patches };
        assert_eq!(normalised_on_the_host(images.clone(), shape, [&mean, &std]), expected);
        let there: Vec<f32> = normalised(images, shape, [&mean, &std], device).into_data().try_into_vec().unwrap();
        let mut filled = 0;
        for (place, (there, expected)) in there.iter().zip(&expected).enumerate() {
            // Fills are above anything that pixels become.
            if *expected >= 100.0 {
                filled += 1;
                assert_eq!(there, expected, "{place}");
            } else {
                assert!((there - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{place}: {there} {expected}");
            }
        }
        assert_eq!(filled, 3 * (6 + 16 - 2 + 5 + 6));
    }

    /// A network that is shown patches gives the logits of one that is shown images; what is erased makes images of them again.
    #[test]
    #[cfg(feature = "wgpu")]
    fn a_network_on_wgpu_takes_bytes_in_one_piece() {
        let device = crate::engine::device::DeviceName::Wgpu(0).open().unwrap().device;
        let text = "image_size = 12\npatch_size = 4\nwidth = 8\nheads = 2\ndepth = 1\nclasses = 3";
        let model = |ops| {
            let mut architecture = toml::from_str::<manyheads_model::ModelConfig>(text).unwrap().resolve().unwrap();
            architecture.ops = ops;
            architecture.init(&mut manyheads_data::random::stream(1, manyheads_data::random::Purpose::Init, 0, 0), &device)
        };
        let values: Vec<u8> = (0..864).map(|value| (value * 7 % 256) as u8).collect();
        let (shape, statistics) = ([2, 3, 12, 12], [&[0.5, 0.4, 0.3][..], &[0.2, 0.3, 0.4]]);
        let bytes = |patches| Images::U8 { values: values.clone(), patches };
        let fused = model(manyheads_model::Ops::Fused);
        let to = (fused.byte_patch(), FloatDType::F32);
        assert_eq!(to.0, Some(4));
        assert_eq!(model(manyheads_model::Ops::Plain).byte_patch(), None);
        let pixels = shown(bytes(vec![]), shape, statistics, &device, to);
        assert!(matches!(pixels, Pixels::Patches(_)));
        let seen: Vec<f32> = fused.forward(pixels, None).into_data().try_into_vec().unwrap();
        let expected = fused.forward(normalised(bytes(vec![]), shape, statistics, &device), None);
        let expected: Vec<f32> = expected.into_data().try_into_vec().unwrap();
        assert!(seen.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs().max(1.0)), "{seen:?} {expected:?}");
        let patch = (1, Patch { rect: Rect { x: 1, y: 1, width: 2, height: 2 }, values: vec![1.0; 3] });
        assert!(matches!(shown(bytes(vec![patch]), shape, statistics, &device, to), Pixels::Images(_)));
    }

    #[test]
    fn patches_are_laid_over_the_images_on_the_cpu() {
        patches_are_laid_over_the_images(&Device::flex());
    }

    #[test]
    #[cfg(feature = "wgpu")]
    fn patches_are_laid_over_the_images_on_wgpu() {
        let open = crate::engine::device::DeviceName::Wgpu(0).open().unwrap();
        patches_are_laid_over_the_images(&open.device);
    }
}
