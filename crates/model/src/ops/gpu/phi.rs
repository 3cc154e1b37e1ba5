//! The feature map phi of linear and Hydra attention, in kernels.

use super::rows::{LANES, max_of_lanes, max_of_vector, sum_of_lanes, sum_of_vector};
use crate::attention::kernel::{Kernel, NORM_EPSILON};
use cubecl::prelude::*;

/// What phi needs to know of a whole token.
#[derive(CubeType, Clone, Copy)]
pub struct Statistics {
    /// What values, or their exponentials, are multiplied by.
    pub scale: f32,
    /// What is taken off before the exponential.
    pub shift: f32,
}

/// Whether the gradient of a feature depends on that of the others.
pub fn along(kernel: Kernel) -> bool {
    matches!(kernel, Kernel::Cosine | Kernel::Softmax)
}

fn mean_scale(width: usize) -> f32 {
    (width as f64).sqrt().recip() as f32
}

/// The statistics of the token of `vectors` vectors that begins at `first`, for each of the lanes that share it. All units of a workgroup
/// have to come here together.
#[cube]
pub fn statistics<F: Float, N: Size>(
    x: &[Vector<F, N>],
    first: usize,
    #[comptime] vectors: usize,
    #[comptime] kernel: Kernel,
    scratch: &mut Shared<[f32]>,
) -> Statistics {
    let lane = UNIT_POS_X as usize;
    let mut scale = 1.0f32;
    let mut shift = 0.0f32;
    if comptime!(kernel == Kernel::Cosine) {
        let mut square = Vector::<f32, N>::new(0.0);
        let mut i = lane;
        while i < vectors {
            let value = Vector::<f32, N>::cast_from(x[first + i]);
            square += value * value;
            i += LANES;
        }
        let square = sum_of_lanes(sum_of_vector::<N>(square), scratch);
        scale = 1.0 / (square + comptime!(NORM_EPSILON as f32)).sqrt();
    } else if comptime!(kernel == Kernel::Mean) {
        let n = N::value();
        scale = comptime!(mean_scale(vectors * n));
    } else if comptime!(kernel == Kernel::Softmax) {
        // Lanes without a vector take the first: a maximum may count it twice.
        let mut i = lane;
        if i >= vectors {
            i = 0;
        }
        let mut greatest = max_of_vector::<N>(Vector::cast_from(x[first + i]));
        i += LANES;
        while i < vectors {
            greatest = max(greatest, max_of_vector::<N>(Vector::cast_from(x[first + i])));
            i += LANES;
        }
        shift = max_of_lanes(greatest, scratch);
        let mut sum = Vector::<f32, N>::new(0.0);
        let mut i = lane;
        while i < vectors {
            sum += (Vector::<f32, N>::cast_from(x[first + i]) - Vector::new(shift)).exp();
            i += LANES;
        }
        scale = 1.0 / sum_of_lanes(sum_of_vector::<N>(sum), scratch);
    }
    Statistics { scale, shift }
}

/// phi of a part of a token.
#[cube]
pub fn phi<N: Size>(x: Vector<f32, N>, of_token: &Statistics, #[comptime] kernel: Kernel) -> Vector<f32, N> {
    let zero = Vector::<f32, N>::new(0.0);
    let one = Vector::<f32, N>::new(1.0);
    match comptime!(kernel) {
        Kernel::Cosine | Kernel::Mean => x * Vector::new(of_token.scale),
        Kernel::Tanh => x.tanh(),
        Kernel::Sigmoid => one / (one + (zero - x).exp()),
        Kernel::Relu => max(x, zero),
        Kernel::Softmax => (x - Vector::new(of_token.shift)).exp() * Vector::new(of_token.scale),
        Kernel::Elu1 => max(x, zero) + min(x, zero).exp(),
        Kernel::Identity => x,
    }
}

/// The gradient of a part of a token from that of phi, `slope`; `along` is the sum of the products of phi and `slope` over the token.
#[cube]
pub fn phi_backward<N: Size>(
    x: Vector<f32, N>,
    slope: Vector<f32, N>,
    of_token: &Statistics,
    along: f32,
    #[comptime] kernel: Kernel,
) -> Vector<f32, N> {
    let zero = Vector::<f32, N>::new(0.0);
    let one = Vector::<f32, N>::new(1.0);
    let y = phi::<N>(x, of_token, kernel);
    match comptime!(kernel) {
        Kernel::Cosine => (slope - y * Vector::new(along)) * Vector::new(of_token.scale),
        Kernel::Mean => slope * Vector::new(of_token.scale),
        Kernel::Tanh => slope * (one - y * y),
        Kernel::Sigmoid => slope * y * (one - y),
        Kernel::Relu => select_many(x.greater_than(&zero), slope, zero),
        Kernel::Softmax => y * (slope - Vector::new(along)),
        Kernel::Elu1 => select_many(x.greater_than(&zero), slope, slope * y),
        Kernel::Identity => slope,
    }
}
