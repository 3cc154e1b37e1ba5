//! Work on several threads whose results come in order.

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use crate::error::DataError;

struct State<T> {
    next: usize,
    /// First result wanted.
    front: usize,
    done: VecDeque<Option<std::thread::Result<T>>>,
    stop: bool,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    /// Work may be taken, or there is none left.
    claimable: Condvar,
    /// A result came.
    ready: Condvar,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Most threads that may be asked for.
const MAX_THREADS: usize = 1024;

/// How many threads a setting stands for; 0: all cores.
///
/// # Errors
/// [`DataError::Config`] for more than any machine has a use for.
pub(crate) fn threads(asked: usize) -> Result<usize, DataError> {
    if asked > MAX_THREADS {
        let reason = format!("{asked}, but at most {MAX_THREADS} can be used. Give a number up to that, or 0 for all cores");
        return Err(DataError::config("threads", reason));
    }
    Ok(if asked > 0 { asked } else { std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS) })
}

/// Computes `work` of each number on `threads` threads, at most `window` ahead of what `consume`, in the caller's thread and in
/// order, has taken. `consume` may break off. `init` makes what a thread keeps between its calls. A panic of `work` goes on in
/// the caller.
///
/// # Errors
/// [`DataError::Thread`] if a thread cannot be started.
pub(crate) fn in_order<S, T: Send, B>(
    range: Range<usize>,
    threads: usize,
    window: usize,
    init: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize) -> T + Sync,
    mut consume: impl FnMut(usize, T) -> ControlFlow<B>,
) -> Result<ControlFlow<B>, DataError> {
    let state = State { next: range.start, front: range.start, done: VecDeque::new(), stop: false };
    let shared = Shared { state: Mutex::new(state), claimable: Condvar::new(), ready: Condvar::new() };
    let (end, window) = (range.end, window.max(1));
    let run = || {
        let mut kept = init();
        loop {
            let mut state = shared.lock();
            while !state.stop && state.next < end && state.next - state.front >= window {
                state = shared.claimable.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.stop || state.next >= end {
                return;
            }
            let number = state.next;
            state.next += 1;
            state.done.push_back(None);
            drop(state);
            let result = catch_unwind(AssertUnwindSafe(|| work(&mut kept, number)));
            let mut state = shared.lock();
            let place = number - state.front;
            state.done[place] = Some(result);
            drop(state);
            if place == 0 {
                shared.ready.notify_one();
            }
        }
    };
    /// Lets the threads end, also when the caller's part panics.
    struct Stop<'a, T>(&'a Shared<T>);
    impl<T> Drop for Stop<'_, T> {
        fn drop(&mut self) {
            self.0.lock().stop = true;
            self.0.claimable.notify_all();
        }
    }
    std::thread::scope(|scope| {
        let _stop = Stop(&shared);
        let workers = threads.max(1).min(range.len());
        for index in 0..workers {
            let started = Builder::new().spawn_scoped(scope, run);
            started.map_err(|source| DataError::Thread { index, workers, source })?;
        }
        for number in range {
            let mut state = shared.lock();
            let result = loop {
                if let Some(result) = state.done.front_mut().and_then(Option::take) {
                    break result;
                }
                state = shared.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            state.done.pop_front();
            state.front += 1;
            drop(state);
            shared.claimable.notify_one();
            match result {
                Ok(result) => match consume(number, result) {
                    ControlFlow::Continue(()) => {}
                    broken => return Ok(broken),
                },
                Err(panic) => resume_unwind(panic),
            }
        }
        Ok(ControlFlow::Continue(()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn results_come_in_order_and_work_is_bounded() {
        for threads in [1, 2, 7] {
            let (begun, taken) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let mut seen = Vec::new();
            let work = |_: &mut (), i: usize| {
                let ahead = begun.fetch_add(1, Ordering::SeqCst) - taken.load(Ordering::SeqCst);
                assert!(ahead <= 5 + threads, "{ahead}");
                i * i
            };
            let _: ControlFlow<()> = in_order(
                3..200,
                threads,
                5,
                || (),
                work,
                |i, square| {
                    taken.fetch_add(1, Ordering::SeqCst);
                    seen.push((i, square));
                    ControlFlow::Continue(())
                },
            )
            .unwrap();
            assert!(seen.iter().copied().eq((3..200).map(|i| (i, i * i))));
        }
    }

    #[test]
    fn breaking_off_and_panics_end_all_threads() {
        let stopped = in_order(
            0..1000,
            3,
            4,
            || (),
            |_: &mut (), i| i,
            |i, _| if i == 10 { ControlFlow::Break(i) } else { ControlFlow::Continue(()) },
        )
        .unwrap();
        assert_eq!(stopped, ControlFlow::Break(10));
        let panicked = catch_unwind(|| {
            let work = |_: &mut (), i: usize| assert!(i < 20, "number {i}");
            let _: ControlFlow<()> = in_order(0..1000, 3, 4, || (), work, |_, ()| ControlFlow::Continue(())).unwrap();
        });
        assert!(panicked.is_err());
        let none = in_order(5..5, 2, 1, || (), |_: &mut (), _| (), |_, ()| ControlFlow::Break(())).unwrap();
        assert_eq!(none, ControlFlow::Continue(()));
    }
}
