//! The threads of one epoch.
//!
//! Positions are claimed one by one in the epoch's order, from batches less than `prefetch` ahead of the next one to hand out.
//! Each worker makes a sample in the batch's own memory, in the row of that position. After a sample that ends the epoch no position is
//! claimed any more; since all positions before it were claimed earlier, waiting for those in hand finds the first error in
//! order.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use super::Batch;
use super::images::ImageRow;
use super::sample::{Epoch, Filling, Kept, Made};
use crate::error::DataError;

pub(super) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    work: Epoch,
    prefetch: usize,
    queue: Mutex<Queue>,
    /// A position may be claimed, or there is nothing left to do.
    claimable: Condvar,
    /// A batch is ready.
    ready: Condvar,
}

struct Queue {
    /// Next position to claim.
    next: usize,
    /// First batch in `slots`, the next to hand out.
    front: usize,
    /// Batches begun, in order.
    slots: VecDeque<Slot>,
    /// Whether a sample ended the epoch.
    failed: bool,
    /// Whether the caller has left.
    stop: bool,
}

struct Slot {
    filling: Filling,
    claimed: usize,
    done: usize,
}

/// A position, the batch it belongs to, and its row there.
struct Claim {
    position: usize,
    batch: usize,
    row: ImageRow,
}

/// A panic cannot happen while a lock is held, but for memory running out: the data behind a poisoned lock are whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a>(condition: &Condvar, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
    condition.wait(queue).unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    pub(super) fn start(work: Epoch, first_batch: usize, workers: usize, prefetch: usize) -> Result<Self, DataError> {
        let queue =
            Queue { next: first_batch * work.batch_size, front: first_batch, slots: VecDeque::new(), failed: false, stop: false };
        let shared = Shared { work, prefetch, queue: Mutex::new(queue), claimable: Condvar::new(), ready: Condvar::new() };
        let mut pool = Self { shared: Arc::new(shared), workers: Vec::with_capacity(workers) };
        for index in 0..workers {
            let shared = Arc::clone(&pool.shared);
            let worker = Builder::new().name(format!("loader-{index}")).spawn(move || shared.run());
            // Dropping the pool stops those already started.
            pool.workers.push(worker.map_err(|source| DataError::Thread { index, workers, source })?);
        }
        Ok(pool)
    }

    /// Waits for the next batch, which must be `batch`.
    pub(super) fn take(&mut self, batch: usize) -> Result<Batch, DataError> {
        let mut queue = lock(&self.shared.queue);
        debug_assert_eq!(queue.front, batch);
        loop {
            let failed = queue.failed;
            if let Some(slot) = queue.slots.front()
                && (slot.done == slot.filling.len() || (failed && slot.done == slot.claimed))
            {
                break;
            }
            queue = wait(&self.shared.ready, queue);
        }
        let slot = queue.slots.pop_front().expect("seen above");
        queue.front += 1;
        drop(queue);
        self.shared.claimable.notify_all();
        // All workers have let go of their rows before they count a sample as done.
        slot.filling.finish(&self.shared.work, batch)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.queue).stop = true;
        self.shared.claimable.notify_all();
        for worker in self.workers.drain(..) {
            // A worker that panicked outside of a sample has nothing to tell that is not told already.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut kept = Kept::default();
        while let Some(Claim { position, batch, mut row }) = self.claim() {
            let outcome = self.work.make(position, &mut kept, &mut row);
            drop(row);
            self.count(position, batch, outcome);
        }
    }

    /// Takes the next position; waits while enough batches are begun. None: there is nothing left to do.
    fn claim(&self) -> Option<Claim> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.stop || queue.failed || queue.next >= self.work.len() {
                return None;
            }
            let position = queue.next;
            let batch = position / self.work.batch_size;
            let ahead = batch - queue.front;
            if ahead >= self.prefetch {
                queue = wait(&self.claimable, queue);
                continue;
            }
            if ahead == queue.slots.len() {
                let filling = Filling::new(&self.work, batch);
                queue.slots.push_back(Slot { filling, claimed: 0, done: 0 });
            }
            queue.next += 1;
            let slot = &mut queue.slots[ahead];
            slot.claimed += 1;
            let row = slot.filling.take_row().expect("a batch has a row for each of its positions");
            return Some(Claim { position, batch, row });
        }
    }

    /// Counts a sample as done.
    fn count(&self, position: usize, batch: usize, outcome: Result<Made, DataError>) {
        let fatal = outcome.as_ref().is_err_and(|error| self.work.is_fatal(error));
        let mut queue = lock(&self.queue);
        if fatal {
            queue.failed = true;
            self.claimable.notify_all();
        }
        let ahead = batch - queue.front;
        let slot = &mut queue.slots[ahead];
        slot.filling.put(position - batch * self.work.batch_size, outcome);
        slot.done += 1;
        if ahead == 0 && (slot.done == slot.filling.len() || queue.failed) {
            self.ready.notify_all();
        }
        // A batch behind may be complete already when the one before is handed out: the caller looks before it waits.
    }
}
