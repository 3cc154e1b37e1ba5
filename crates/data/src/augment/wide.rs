//! Plain loops over long rows, compiled once more for AVX2, which gives the compiler lanes enough to be worth it.
#![expect(unsafe_code, reason = "code compiled for AVX2 is called where AVX2 was found; clamped floats are cut")]

/// Defines a function that runs its body compiled for AVX2 where the machine has it.
macro_rules! wide {
    ($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        pub(super) fn $name($($argument: $type),*) {
            #[inline(always)]
            fn plain($($argument: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn avx2($($argument: $type),*) {
                plain($($argument),*);
            }

            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                // SAFETY: AVX2 was found.
                return unsafe { avx2($($argument),*) };
            }
            plain($($argument),*);
        }
    };
}

/// A float cut to a byte.
#[inline(always)]
pub(super) fn cut(value: f32) -> u8 {
    #[allow(clippy::manual_clamp, reason = "a clamp leaves a NaN")]
    let value = value.max(0.0).min(255.0);
    // SAFETY: a number from 0 to 255, also where it was a NaN.
    unsafe { value.to_int_unchecked::<i32>() as u8 }
}

/// One value of a blend, in single precision and truncated as Pillow's `Image.blend` does.
#[inline(always)]
pub(super) fn blend(degenerate: u8, value: u8, factor: f32) -> u8 {
    let (from, to) = (i32::from(degenerate), i32::from(value));
    cut(from as f32 + factor * (to - from) as f32)
}

wide! {
    /// Blends pixels towards their grey.
    fn towards_grey(pixels: &mut [[u8; 4]], factor: f32) {
        for pixel in pixels {
            let value = u32::from_le_bytes(*pixel);
            let (r, g, b) = (value & 0xff, (value >> 8) & 0xff, (value >> 16) & 0xff);
            let grey = (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16;
            let part = |v: u32| {
                u32::from(cut(grey as i32 as f32 + factor * (v as i32 - grey as i32) as f32))
            };
            *pixel = (part(r) | part(g) << 8 | part(b) << 16).to_le_bytes();
        }
    }
}

wide! {
    /// Blends the inner values of a row, given with those above and below, towards their mean under Pillow's smoothing
    /// kernel: ones with five in the middle, over 13. Neighbours are four values apart; `out` is eight values shorter.
    fn towards_smooth(above: &[u8], here: &[u8], below: &[u8], out: &mut [u8], factor: f32) {
        let len = out.len();
        let (edge, middle) = (1.0f32 / 13.0, 5.0f32 / 13.0);
        let (above, here, below) = (&above[..len + 8], &here[..len + 8], &below[..len + 8]);
        for (i, value) in out.iter_mut().enumerate() {
            // In Pillow's order of additions: the row below first, one row after the other.
            let lower = f32::from(below[i]) * edge + f32::from(below[i + 4]) * edge + f32::from(below[i + 8]) * edge;
            let inner = f32::from(here[i]) * edge + f32::from(here[i + 4]) * middle + f32::from(here[i + 8]) * edge;
            let upper = f32::from(above[i]) * edge + f32::from(above[i + 4]) * edge + f32::from(above[i + 8]) * edge;
            *value = blend(cut(0.5 + lower + inner + upper), here[i + 4], factor);
        }
    }
}

/// Weights of a box: of a whole pixel and of the two at the ends, in fixed point of 24 bits.
pub(super) type BoxWeights = [u32; 2];

#[inline(always)]
fn mixed(sum: u32, left: u8, right: u8, [whole, part]: BoxWeights) -> u8 {
    let ends = u32::from(left) + u32::from(right);
    (sum.wrapping_mul(whole).wrapping_add(ends.wrapping_mul(part)).wrapping_add(1 << 23) >> 24) as u8
}

wide! {
    /// One row of a box blur along columns: the sums move down by a row, and give the row's values.
    fn blur_row(sums: &mut [u32], left: &[u8], near: &[u8], far: &[u8], out: &mut [u8], weights: BoxWeights) {
        let len = out.len();
        let (sums, left, near, far) = (&mut sums[..len], &left[..len], &near[..len], &far[..len]);
        for i in 0..len {
            sums[i] = sums[i].wrapping_add(u32::from(near[i])).wrapping_sub(u32::from(left[i]));
            out[i] = mixed(sums[i], left[i], far[i], weights);
        }
    }
}
