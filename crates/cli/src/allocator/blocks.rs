//! Large blocks of memory, kept for the next step.
//!
//! Every tensor operation allocates its result, so a training step takes and frees some thousand blocks of a few dozen sizes, the same in
//! each step. The usual allocators serve that badly: those that give a free block back to the system have its pages zeroed again one by
//! one, a third of a step's time; those that keep it cut and join it, and a run comes to hold two or three times what it uses and still
//! grows after twenty epochs.
//!
//! Here a block is mapped on its own, is never cut, and when it is freed it waits for the next request of its size. What is held, free
//! blocks included, is at most a quarter above the most that was ever in use at one time: before that would be exceeded, the blocks that
//! have been free for longest are given back to the system. So a process takes little more than it needs, and what its first epoch needed
//! is what all take. Where a step wants its sizes one after the other and never together, as inference does, and that bound has it give
//! back and map again all the time, the bound rises by what is missing.

use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The smallest block, in bytes.
pub(super) const LEAST: usize = 64 * 1024;

/// Every block begins at a multiple of this many bytes: the smallest page of any system.
pub(super) const ALIGNMENT: usize = 4096;

/// Sizes of blocks in each doubling: a block is at most an eighth larger than what was asked, of address space alone, as pages nobody
/// touches take no memory.
const STEPS: usize = 8;

/// What is held may be more than the most ever in use by its `SLACK`th part. A training step of DeiT asks for 7 % more than its peak, if
/// every class is to keep what it needs at its own; a small network with its average and evaluations for more.
const SLACK: usize = 4;

/// Of the bytes handed out, this part may be mapped again for want of room without the bound rising: what evaluations displace, say. In
/// inference it would be a fourth and more.
const TOLERATED: u64 = 8;

/// Logarithm of the size half of [`LEAST`], where the first class begins.
const FIRST: u32 = LEAST.ilog2() - 1;

/// Classes of size up to `isize::MAX`.
const CLASSES: usize = (isize::BITS - 1 - FIRST) as usize * STEPS;

/// A free block's first bytes.
struct Free {
    class: Class,
    /// Neighbours among the free blocks of this class.
    in_class: Links,
    /// Neighbours among all, by when they were freed.
    in_time: Links,
}

#[derive(Clone, Copy)]
struct Links {
    newer: Option<NonNull<Free>>,
    older: Option<NonNull<Free>>,
}

#[derive(Clone, Copy, PartialEq)]
struct Class {
    index: usize,
    /// Size of its blocks.
    bytes: usize,
}

impl Class {
    /// Of the blocks that hold `size` bytes, at least [`LEAST`].
    fn of(size: usize) -> Self {
        let last = size - 1;
        let doubling = last.ilog2();
        let step = doubling - STEPS.ilog2();
        let index = (doubling - FIRST) as usize * STEPS + (last >> step) % STEPS;
        Self { index, bytes: ((last >> step) + 1) << step }
    }
}

/// The free blocks, and how much there is.
struct State {
    /// Last freed block of each class.
    classes: [Option<NonNull<Free>>; CLASSES],
    newest: Option<NonNull<Free>>,
    oldest: Option<NonNull<Free>>,
    /// Bytes in use.
    used: usize,
    /// Most bytes ever in use.
    most: usize,
    /// Bytes of free blocks.
    free: usize,
    /// Blocks of each class that were given back to the system and not asked for since.
    given_back: [usize; CLASSES],
    /// Bytes handed out so far.
    handed_out: u64,
    /// Bytes mapped that had been given back, beyond what is tolerated, and `handed_out` when that was last reckoned.
    regret: (u64, u64),
    /// Bytes that may be held beyond the bound, at most as many as were ever in use.
    beyond: usize,
}

// SAFETY: a free block belongs to whoever holds the state, wherever that is.
unsafe impl Send for State {}

impl State {
    /// Takes a free block out of both lists.
    ///
    /// # Safety
    /// It is in them.
    unsafe fn remove(&mut self, block: NonNull<Free>) {
        // SAFETY: blocks in the lists are ours and begin with a `Free`.
        unsafe {
            let Free { class, in_class, in_time } = block.read();
            match in_class.newer {
                Some(newer) => (*newer.as_ptr()).in_class.older = in_class.older,
                None => self.classes[class.index] = in_class.older,
            }
            if let Some(older) = in_class.older {
                (*older.as_ptr()).in_class.newer = in_class.newer;
            }
            match in_time.newer {
                Some(newer) => (*newer.as_ptr()).in_time.older = in_time.older,
                None => self.newest = in_time.older,
            }
            match in_time.older {
                Some(older) => (*older.as_ptr()).in_time.newer = in_time.newer,
                None => self.oldest = in_time.newer,
            }
            self.free -= class.bytes;
        }
    }

    /// Puts a free block in front of both lists.
    ///
    /// # Safety
    /// The block is of this class and nobody's.
    unsafe fn insert(&mut self, block: NonNull<Free>, class: Class) {
        let in_class = Links { newer: None, older: self.classes[class.index].replace(block) };
        let in_time = Links { newer: None, older: self.newest.replace(block) };
        // SAFETY: as above; a block is larger than a `Free` and aligned to a page.
        unsafe {
            block.write(Free { class, in_class, in_time });
            if let Some(older) = in_class.older {
                (*older.as_ptr()).in_class.newer = Some(block);
            }
            match in_time.older {
                Some(older) => (*older.as_ptr()).in_time.newer = Some(block),
                None => self.oldest = Some(block),
            }
        }
        self.free += class.bytes;
    }

    /// Gives the oldest free blocks back to the system until at most `bytes` are left.
    fn shrink(&mut self, bytes: usize) {
        while self.free > bytes {
            let Some(oldest) = self.oldest else { return };
            // SAFETY: it is in the lists, so it is ours; after this it is in none.
            unsafe {
                let class = oldest.read().class;
                self.remove(oldest);
                unmap(oldest.cast(), class.bytes);
                self.given_back[class.index] += 1;
            }
        }
    }

    /// Makes room for a block that is to be mapped.
    fn make_room(&mut self, class: Class) {
        if self.given_back[class.index] > 0 {
            self.given_back[class.index] -= 1;
            let (regret, then) = self.regret;
            let regret = regret.saturating_sub((self.handed_out - then) / TOLERATED) + class.bytes as u64;
            self.regret = (regret, self.handed_out);
            if regret > self.most as u64 {
                self.beyond = (self.beyond + class.bytes).min(self.most);
            }
        }
        self.shrink((self.most + self.most / SLACK + self.beyond).saturating_sub(self.used));
    }
}

/// Hands out blocks of memory of at least [`LEAST`] bytes.
pub(super) struct Blocks {
    state: Mutex<State>,
}

impl Blocks {
    pub(super) const fn new() -> Self {
        let state = State {
            classes: [None; CLASSES],
            newest: None,
            oldest: None,
            used: 0,
            most: 0,
            free: 0,
            given_back: [0; CLASSES],
            handed_out: 0,
            regret: (0, 0),
            beyond: 0,
        };
        Self { state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of at least `size` bytes, `zeroed` or whatever they are; null where the system has none.
    pub(super) fn take(&self, size: usize, zeroed: bool) -> *mut u8 {
        let class = Class::of(size);
        let mut state = self.state();
        state.used += class.bytes;
        state.most = state.most.max(state.used);
        state.handed_out += class.bytes as u64;
        if let Some(block) = state.classes[class.index] {
            // SAFETY: a block at the head of a list is in it. Out of it, it is the caller's.
            unsafe {
                state.remove(block);
                drop(state);
                let block = block.cast::<u8>().as_ptr();
                if zeroed {
                    block.write_bytes(0, size);
                }
                return block;
            }
        }
        state.make_room(class);
        drop(state);
        // Fresh memory is zero.
        if let Some(block) = map(class.bytes) {
            return block.as_ptr();
        }
        let mut state = self.state();
        state.shrink(0);
        if let Some(block) = map(class.bytes) {
            return block.as_ptr();
        }
        state.used -= class.bytes;
        ptr::null_mut()
    }

    /// Takes a block back.
    ///
    /// # Safety
    /// The block comes from [`Blocks::take`] with a `size` of the same class, and nobody uses it any more.
    pub(super) unsafe fn put(&self, block: *mut u8, size: usize) {
        let Some(block) = NonNull::new(block) else { return };
        let class = Class::of(size);
        let mut state = self.state();
        state.used -= class.bytes;
        // SAFETY: the caller's promise.
        unsafe { state.insert(block.cast(), class) };
    }

    /// Whether a block serves one size as well as the other.
    pub(super) fn is_same(size: usize, other: usize) -> bool {
        Class::of(size) == Class::of(other)
    }
}

/// Fresh memory of the system's, all zero.
fn map(bytes: usize) -> Option<NonNull<u8>> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
    // SAFETY: a new mapping at an address of the system's choice touches nothing that is there.
    let block = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
    if block == libc::MAP_FAILED { None } else { NonNull::new(block.cast()) }
}

/// Gives memory back to the system.
///
/// # Safety
/// It is from [`map`] with as many `bytes`, and nobody uses it any more.
unsafe fn unmap(block: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller's promise. It cannot fail for a whole mapping but where the kernel is out of memory; then the pages stay.
    unsafe { libc::munmap(block.as_ptr().cast(), bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look like chance.
    fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
        let mut state = seed;
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        }
    }

    #[test]
    fn a_class_holds_its_sizes_with_an_eighth_to_spare() {
        let mut seen = None;
        for size in (LEAST..1 << 20).step_by(512).chain((20..47).flat_map(|log| [(1 << log) - 1, 1 << log, (1 << log) + 1])) {
            let class = Class::of(size);
            assert!(class.bytes >= size && class.bytes - size <= size / 8 + 1, "{size}: {}", class.bytes);
            assert_eq!(class.bytes % ALIGNMENT, 0);
            assert!(class.index < CLASSES);
            assert!(Class::of(class.bytes) == class, "{size}");
            assert!(Class::of(class.bytes + 1) != class, "{size}");
            if size < 1 << 20 {
                assert!(seen.is_none_or(|last| last <= class.index), "{size}");
                seen = Some(class.index);
            }
        }
        assert!(Class::of(isize::MAX as usize).index < CLASSES);
    }

    #[test]
    fn blocks_keep_their_contents_and_are_held_within_bounds() {
        let blocks = Blocks::new();
        let mut number = numbers(1);
        let mut held: Vec<(*mut u8, usize, u8)> = Vec::new();
        let (mut most, mut reused) = (0, 0);
        for round in 0..20_000 {
            if held.len() < 30 && number(2) == 0 {
                let size = LEAST + number(20) * 9_999;
                let zeroed = number(4) == 0;
                let before = blocks.state().free;
                let block = blocks.take(size, zeroed);
                reused += usize::from(blocks.state().free < before);
                assert!(!block.is_null() && (block as usize).is_multiple_of(ALIGNMENT));
                let bytes = unsafe { std::slice::from_raw_parts_mut(block, size) };
                assert!(!zeroed || bytes.iter().all(|byte| *byte == 0));
                let value = (round % 251) as u8 + 1;
                bytes.fill(value);
                held.push((block, size, value));
            } else if !held.is_empty() {
                let (block, size, value) = held.swap_remove(number(held.len()));
                let bytes = unsafe { std::slice::from_raw_parts(block, size) };
                assert!(bytes.iter().all(|byte| *byte == value));
                unsafe { blocks.put(block, size) };
            }
            let used: usize = held.iter().map(|(_, size, _)| Class::of(*size).bytes).sum();
            most = most.max(used);
            let state = blocks.state();
            assert_eq!(state.used, used);
            assert!(
                state.used + state.free <= most + most / SLACK + state.beyond && state.beyond <= most,
                "{} + {} of {most}",
                state.used,
                state.free
            );
        }
        assert!(reused > 8_000, "{reused}");
    }

    #[test]
    fn the_same_step_again_maps_nothing() {
        let blocks = Blocks::new();
        let sizes: Vec<usize> = (1..40).map(|factor| LEAST + factor % 7 * 50_000).collect();
        let step = || {
            let taken: Vec<_> = sizes.iter().map(|size| (blocks.take(*size, false), *size)).collect();
            let addresses: Vec<usize> = taken.iter().map(|(block, _)| *block as usize).collect();
            for (block, size) in taken.into_iter().rev() {
                unsafe { blocks.put(block, size) };
            }
            addresses
        };
        let first = step();
        for _ in 0..5 {
            assert_eq!(step(), first);
        }
    }

    /// Tensors of three sizes in turn, of which at most two live at a time, as in inference: the first steps teach what to hold.
    #[test]
    fn a_step_that_never_uses_all_its_sizes_at_once_maps_nothing_in_the_end() {
        let blocks = Blocks::new();
        let sizes = [3 * LEAST, 4 * LEAST, LEAST, 7 * LEAST];
        let step = || {
            let mut before: Option<(*mut u8, usize)> = None;
            for size in sizes {
                let block = blocks.take(size, false);
                if let Some((before, size)) = before.replace((block, size)) {
                    unsafe { blocks.put(before, size) };
                }
            }
            let (last, size) = before.unwrap();
            unsafe { blocks.put(last, size) };
            blocks.state().given_back.iter().sum::<usize>()
        };
        let given_back: Vec<usize> = (0..40).map(|_| step()).collect();
        assert!(given_back[0] > 0, "the first step has more sizes than room: {given_back:?}");
        assert_eq!(given_back[20..], [given_back[20]; 20]);
        let state = blocks.state();
        assert!(state.free <= sizes.iter().sum(), "{} free", state.free);
    }

    /// What an evaluation needs once an epoch is not kept beside what training needs.
    #[test]
    fn another_kind_of_work_takes_the_place_of_the_first() {
        let blocks = Blocks::new();
        let work = |sizes: [usize; 3], times: usize| {
            for _ in 0..times {
                let taken = sizes.map(|size| blocks.take(size, false));
                for (block, size) in taken.into_iter().zip(sizes) {
                    unsafe { blocks.put(block, size) };
                }
            }
        };
        for _ in 0..5 {
            work([8 * LEAST, 8 * LEAST, 10 * LEAST], 50);
            work([5 * LEAST, 11 * LEAST, 7 * LEAST], 50);
            let state = blocks.state();
            assert_eq!((state.most, state.beyond), (26 * LEAST, 0));
        }
    }

    #[test]
    fn what_the_system_does_not_have_is_null_and_costs_nothing() {
        let blocks = Blocks::new();
        let block = blocks.take(LEAST, false);
        unsafe { blocks.put(block, LEAST) };
        assert!(blocks.take(isize::MAX as usize - 4096, false).is_null());
        assert_eq!(blocks.state().used, 0);
        assert!(blocks.state().oldest.is_none() && blocks.state().newest.is_none());
        assert_eq!(blocks.state().free, 0);
    }

    #[test]
    fn several_threads_take_and_give_each_others_blocks() {
        let blocks = &Blocks::new();
        let (send, receive) = std::sync::mpsc::channel::<(usize, usize, u8)>();
        let receive = &Mutex::new(receive);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let send = send.clone();
                scope.spawn(move || {
                    let mut number = numbers(thread);
                    for round in 0..2_000 {
                        let (size, value) = (LEAST + number(10) * 10_000, round as u8);
                        let block = blocks.take(size, false);
                        unsafe { block.write_bytes(value, size) };
                        send.send((block as usize, size, value)).unwrap();
                        let (block, size, value) = receive.lock().unwrap().recv().unwrap();
                        let block = block as *mut u8;
                        assert!(unsafe { std::slice::from_raw_parts(block, size) }.iter().all(|byte| *byte == value));
                        unsafe { blocks.put(block, size) };
                    }
                });
            }
        });
        let state = blocks.state();
        assert_eq!(state.used, 0);
        assert!(state.free <= state.most + state.most / SLACK + state.beyond);
    }
}
