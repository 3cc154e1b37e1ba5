//! From the pixels of a batch to a tensor.
//!
//! The CPU backend takes what the loader normalised. A GPU gets bytes, a quarter of the transfer, and normalises and mixes there; but where
//! random erasing fills with normalised noise, which bytes cannot hold, it gets what the CPU gets.

use burn::tensor::{Device, Int, Tensor, TensorData};
use manyheads_data::{Images, PixelFormat, Transform};

/// How a loader should hand over its pixels to a device. `eager`: the device is the CPU itself.
pub(crate) fn format(eager: bool, transform: &Transform) -> PixelFormat {
    match eager || transform.validate_u8().is_err() {
        true => PixelFormat::F32,
        false => PixelFormat::U8,
    }
}

/// The images of a batch, `shape` = `[B, C, H, W]`, on `device`: `(value / 255 - mean) / std`, with `mean` and `std` of each channel.
pub(crate) fn normalised(images: Images, shape: [usize; 4], [mean, std]: [&[f32]; 2], device: &Device) -> Tensor<4> {
    match images {
        Images::F32(values) => Tensor::from_data(pinned(TensorData::new(values, shape), device), device),
        Images::U8(values) => {
            let channels = |values: &[f32]| Tensor::<1>::from_data(values, device).reshape([1, values.len(), 1, 1]);
            (bytes(values, device).reshape(shape).float() / 255.0 - channels(mean)) / channels(std)
        }
    }
}

/// The data in memory that the device can fetch by itself while the host goes on, where the backend has such memory: CUDA.
fn pinned(mut data: TensorData, device: &Device) -> TensorData {
    device.staging(std::iter::once(&mut data));
    data
}

/// Numbers from 0 to 255. They travel four to a word, since WGSL knows no bytes.
fn bytes(mut values: Vec<u8>, device: &Device) -> Tensor<1, Int> {
    let count = values.len();
    values.resize(count.next_multiple_of(4), 0);
    let words: Vec<i32> = values.as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word)).collect();
    let rows = words.len();
    let words = Tensor::<2, Int>::from_data(pinned(TensorData::new(words, [rows, 1]), device), device).expand([rows, 4]);
    let shifts = Tensor::<1, Int>::from_data([0, 8, 16, 24], device).reshape([1, 4]).expand([rows, 4]);
    words.bitwise_right_shift(shifts).bitwise_and_scalar(255).reshape([rows * 4]).narrow(0, 0, count)
}

/// The same on the host, for what looks at a batch.
pub(crate) fn normalised_on_the_host(images: Images, shape: [usize; 4], [mean, std]: [&[f32]; 2]) -> Vec<f32> {
    match images {
        Images::F32(values) => values,
        Images::U8(values) => {
            let [_, channels, height, width] = shape;
            let planes = values.chunks_exact((height * width).max(1)).enumerate();
            let plane = |(number, plane): (usize, &[u8])| {
                let (mean, std) = (mean[number % channels], std[number % channels]);
                plane.iter().map(|value| (f32::from(*value) / 255.0 - mean) / std).collect::<Vec<f32>>()
            };
            planes.flat_map(plane).collect()
        }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_as_what_the_loader_would_have_made_of_them() {
        let device = Device::flex();
        // No multiple of four, every byte, two images of three channels.
        let shape = [2, 3, 5, 9];
        let values: Vec<u8> = (0..270).map(|value| (value * 7 % 256) as u8).collect();
        let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
        let host = normalised_on_the_host(Images::U8(values.clone()), shape, [&mean, &std]);
        let expected = |index: usize| (f32::from(values[index]) / 255.0 - mean[index / 45 % 3]) / std[index / 45 % 3];
        assert!(host.iter().enumerate().all(|(index, value)| *value == expected(index)));
        let images = normalised(Images::U8(values.clone()), shape, [&mean, &std], &device);
        assert_eq!(images.dims(), shape);
        let there: Vec<f32> = images.into_data().try_into_vec().unwrap();
        assert!(there.iter().zip(&host).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs().max(1.0)), "{there:?}");
        let floats = normalised(Images::F32(host.clone()), shape, [&mean, &std], &device);
        assert_eq!(floats.into_data().try_into_vec::<f32>().unwrap(), host);
    }
}
