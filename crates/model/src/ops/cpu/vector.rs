//! Loops compiled for the vectors of the processor at hand.

use pulp::{Arch, Simd, WithSimd};

/// A function and its argument. A closure of its own would be called through a shim that is not inlined, and what is not inlined is
/// compiled for the least of processors.
struct Call<'a, F, A>(&'a F, A);

impl<A, R, F: Fn(A) -> R> WithSimd for Call<'_, F, A> {
    type Output = R;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> R {
        (self.0)(self.1)
    }
}

/// `work(argument)`, with everything in `work` that is marked to be inlined compiled for AVX-512, AVX2 or NEON where there is that.
#[inline(always)]
pub fn run<A, R>(work: &impl Fn(A) -> R, argument: A) -> R {
    Arch::new().dispatch(Call(work, argument))
}

/// `work` as it is: where a closure is handed over, and there alone, it may be marked to be inlined.
pub fn inlined<A, R, F: Fn(A) -> R>(work: F) -> F {
    work
}

// Slices that are parameters are known not to overlap, without which a loop over several does not become vectors.

/// `to += from`, place by place.
#[inline(always)]
pub fn add(to: &mut [f32], from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += *from;
    }
}

/// `to *= from`, place by place.
#[inline(always)]
pub fn multiply(to: &mut [f32], from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to *= *from;
    }
}

/// `to = a * b`, place by place.
#[inline(always)]
pub fn product(to: &mut [f32], a: &[f32], b: &[f32]) {
    for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
        *to = *a * *b;
    }
}

/// `to += a * b`, place by place.
#[inline(always)]
pub fn add_product(to: &mut [f32], a: &[f32], b: &[f32]) {
    for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
        *to = a.mul_add(*b, *to);
    }
}
