//! Memory for results.
#![expect(
    unsafe_code,
    reason = "a result that is written whole need not be zeroed first, which would be a pass over it on one thread"
)]

/// A vector of `length` numbers of any value, each of which the caller overwrites before it is read.
#[expect(clippy::uninit_vec, reason = "that is what it is for")]
pub fn overwritten(length: usize) -> Vec<f32> {
    let mut values = Vec::with_capacity(length);
    // SAFETY: the capacity is `length`, every bit pattern is an f32, and the callers in this module write every element before they read
    // one; a debug build fills it with NaN, so that an element left out shows.
    unsafe {
        values.set_len(length);
    }
    #[cfg(debug_assertions)]
    values.fill(f32::NAN);
    values
}
