//! Memory for the time of a task, kept by its thread for the next one.

use std::cell::Cell;

/// Values of f32 in a line of the cache.
const LINE: usize = 16;

thread_local! {
    static KEPT: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// A task's memory, which goes back to its thread at the end. Not a closure's argument: code inside a closure would not be compiled for
/// the processor's vector instructions.
pub(crate) struct Scratch {
    kept: Vec<f32>,
    length: usize,
}

impl Scratch {
    /// Memory for `length` values.
    pub(crate) fn new(length: usize) -> Self {
        let mut kept = KEPT.take();
        if kept.len() < length + LINE {
            kept = vec![0.0; length + LINE];
        }
        Self { kept, length }
    }

    /// The values, which hold whatever an earlier task left and begin a line of the cache.
    pub(crate) fn values(&mut self) -> &mut [f32] {
        let skip = self.kept.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        &mut self.kept[skip..skip + self.length]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        KEPT.set(std::mem::take(&mut self.kept));
    }
}

/// Cuts `length` values off the front.
pub(crate) fn take<'a>(values: &mut &'a mut [f32], length: usize) -> &'a mut [f32] {
    let (front, rest) = std::mem::take(values).split_at_mut(length);
    *values = rest;
    front
}
