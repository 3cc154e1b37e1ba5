//! One buffer filled by several threads, each with a row of its own.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// The parts of a vector that was taken apart.
struct Memory<T> {
    start: NonNull<T>,
    len: usize,
    capacity: usize,
    owns: PhantomData<T>,
}

// SAFETY: the memory is a vector's, and is reached through rows that do not overlap, or as a whole once no row is left.
unsafe impl<T: Send> Send for Memory<T> {}
// SAFETY: nothing can be reached through a shared reference.
unsafe impl<T: Send> Sync for Memory<T> {}

impl<T> Memory<T> {
    fn into_vec(self) -> Vec<T> {
        let this = ManuallyDrop::new(self);
        // SAFETY: these are the parts of one vector, and `this` does not free them.
        unsafe { Vec::from_raw_parts(this.start.as_ptr(), this.len, this.capacity) }
    }
}

impl<T> Drop for Memory<T> {
    fn drop(&mut self) {
        // SAFETY: as in `into_vec`; after this nothing else frees them.
        drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, self.capacity) });
    }
}

/// The buffer while rows of it are about.
pub(super) struct Whole<T>(Arc<Memory<T>>);

/// One row: an exclusive part of the buffer that may go to another thread.
pub(super) struct Row<T> {
    start: NonNull<T>,
    len: usize,
    _memory: Arc<Memory<T>>,
}

// SAFETY: a row is the only way to its part of the memory, like a mutable slice.
unsafe impl<T: Send> Send for Row<T> {}

/// Cuts a buffer into rows of `len` values each; what is left at its end belongs to none.
pub(super) fn split<T: Send>(buffer: Vec<T>, len: usize) -> (Whole<T>, Vec<Row<T>>) {
    let mut buffer = ManuallyDrop::new(buffer);
    let count = buffer.len().checked_div(len).unwrap_or(0);
    let start = NonNull::new(buffer.as_mut_ptr()).unwrap_or(NonNull::dangling());
    let memory = Arc::new(Memory { start, len: buffer.len(), capacity: buffer.capacity(), owns: PhantomData });
    let row = |i: usize| {
        // SAFETY: row i lies within the `count * len` first values of the vector.
        let start = unsafe { start.add(i * len) };
        Row { start, len, _memory: Arc::clone(&memory) }
    };
    let rows = (0..count).map(row).collect();
    (Whole(memory), rows)
}

impl<T> Whole<T> {
    /// The buffer again; none while a row is left.
    pub(super) fn into_vec(self) -> Option<Vec<T>> {
        Arc::into_inner(self.0).map(Memory::into_vec)
    }
}

impl<T> Deref for Row<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the part is initialised, kept alive by `_memory`, and no other row overlaps it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Row<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fill_the_buffer_from_several_threads() {
        let (whole, rows) = split(vec![0u32; 107], 10);
        assert_eq!(rows.len(), 10);
        std::thread::scope(|scope| {
            for (i, mut row) in rows.into_iter().enumerate() {
                scope.spawn(move || row.fill(i as u32 + 1));
            }
        });
        let buffer = whole.into_vec().unwrap();
        assert!(buffer.iter().take(100).enumerate().all(|(i, &v)| v as usize == i / 10 + 1));
        assert_eq!(buffer[100..], [0; 7]);
    }

    #[test]
    fn the_buffer_waits_for_its_rows_and_is_freed_once() {
        let (whole, mut rows) = split(vec![String::from("a"), String::from("b")], 1);
        rows[1][0].push('c');
        let kept = rows.pop().unwrap();
        drop(rows);
        assert!(whole.into_vec().is_none());
        assert_eq!(kept[0], "bc");
        let (whole, rows) = split(Vec::<u8>::new(), 5);
        assert!(rows.is_empty());
        assert_eq!(whole.into_vec(), Some(vec![]));
    }
}
