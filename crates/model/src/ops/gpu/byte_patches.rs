//! Normalised patches of bytes on GPUs.

use super::rows::{LANES, ROWS, workgroup};
use super::tensor::{address, element, empty, grid, in_order, vector};
use crate::ops::{BytePatchOps, Cut};
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Bytes of a word.
const BYTES: usize = 4;

impl BytePatchOps for CubeBackend {
    fn byte_patches(words: CubeTensor, normalisation: CubeTensor, cut: Cut) -> CubeTensor {
        assert!(matches!(words.dtype, DType::I32 | DType::U32), "bytes travel in words of 32 bits, not of {:?}", words.dtype);
        let (words, normalisation) = (in_order(words), in_order(normalisation));
        let Cut { shape: [_, channels, height, width], patch, float } = cut;
        let out = empty(&normalisation, cut.result(), float.into());
        // Four pixels side by side are a word where a line of the image and one of a patch are whole words.
        let n = if vector(width) == BYTES { vector(patch) } else { 1 };
        let all = cut.result().iter().product::<usize>() / n;
        if all > 0 {
            byte_patches_kernel::launch(
                &out.client.clone(),
                grid(all.div_ceil(LANES * ROWS)),
                workgroup(ROWS),
                address([&out, &words]),
                n,
                words.into_buffer_arg(),
                normalisation.into_buffer_arg(),
                out.clone().into_buffer_arg(),
                all,
                [channels, height, width, patch],
                element(&out),
            );
        }
        out
    }
}

/// A vector of the result for each unit: pixels side by side in a line of a patch.
#[cube(launch, address_type = "dynamic")]
fn byte_patches_kernel<F: Float, N: Size>(
    words: &[u32],
    normalisation: &[f32],
    out: &mut [Vector<F, N>],
    all: usize,
    #[comptime] sides: [usize; 4],
    #[define(F)] _element: ElemType,
) {
    let channels = comptime!(sides[0]);
    let height = comptime!(sides[1]);
    let width = comptime!(sides[2]);
    let patch = comptime!(sides[3]);
    let rows = comptime!(sides[1] / sides[3]);
    let columns = comptime!(sides[2] / sides[3]);
    let n = N::value();
    let place = CUBE_POS * (LANES * ROWS) + UNIT_POS as usize;
    if place < all {
        let pixels = comptime!(patch / n);
        let x = place % pixels * n;
        let line = place / pixels;
        let y = line % patch;
        let plane = line / patch;
        let channel = plane % channels;
        let token = plane / channels;
        let column = token % columns;
        let row = token / columns % rows;
        let image = token / (columns * rows);
        let byte = ((image * channels + channel) * height + row * patch + y) * width + column * patch + x;
        let word = words[byte / BYTES];
        let mut values = Vector::<f32, N>::new(0.0);
        #[unroll]
        for i in 0..n {
            let shift = ((byte + i) % BYTES) as u32 * 8u32;
            values.insert(i, f32::cast_from((word >> shift) & 255u32));
        }
        let mean = Vector::<f32, N>::new(normalisation[channel]);
        let deviation = Vector::<f32, N>::new(normalisation[channels + channel]);
        out[place] = Vector::cast_from((values / Vector::new(255.0) - mean) / deviation);
    }
}
