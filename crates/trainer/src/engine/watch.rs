//! Says what a run is waiting for where nothing has happened for long.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// Nothing that can stall.
    None,
    /// Waiting for the loader.
    Batch {
        /// Epoch, from 0.
        epoch: u64,
        /// Batch of the epoch, from 0.
        batch: usize,
    },
    /// Computing an update.
    Step(u64),
    /// Measuring top-1.
    Evaluation,
    /// Waiting until the checkpoint of a step is written.
    Checkpoint(u64),
}

/// Tells the watch what a run is doing, from any thread.
#[derive(Debug, Clone)]
pub struct Pulse(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug)]
struct State {
    activity: Activity,
    since: Instant,
    /// How often this has been reported.
    told: u32,
    ended: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pulse {
    /// The run begins to do something; returns what it has been doing.
    pub fn enter(&self, activity: Activity) -> Activity {
        let mut state = self.0.state();
        (state.since, state.told) = (Instant::now(), 0);
        std::mem::replace(&mut state.activity, activity)
    }

    /// What is being done goes on.
    pub fn beat(&self) {
        let mut state = self.0.state();
        (state.since, state.told) = (Instant::now(), 0);
    }
}

/// A thread that looks at the pulse.
#[derive(Debug)]
pub struct Watch {
    pulse: Pulse,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches from now on: where nothing has happened for `limit`, `report` hears what is being done and for how long, and again each time
    /// the limit passes. Without a limit nothing is watched.
    ///
    /// # Errors
    /// Where there is no thread to be had.
    pub fn start(limit: Option<Duration>, report: impl Fn(Activity, Duration) + Send + 'static) -> std::io::Result<Self> {
        let state = State { activity: Activity::None, since: Instant::now(), told: 0, ended: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), ended: Condvar::new() });
        let pulse = Pulse(shared.clone());
        let Some(limit) = limit else { return Ok(Self { pulse, thread: None }) };
        // Often enough that a report is late by a tenth at most.
        let interval = (limit / 10).clamp(Duration::from_millis(1), Duration::from_secs(1));
        let watch = move || {
            let mut state = shared.state();
            while !state.ended {
                state = shared.ended.wait_timeout(state, interval).unwrap_or_else(PoisonError::into_inner).0;
                let elapsed = state.since.elapsed();
                if !state.ended && state.activity != Activity::None && elapsed >= limit * (state.told + 1) {
                    state.told += 1;
                    let activity = state.activity;
                    // Without the lock: what is reported may take its time, and the run must not wait for it.
                    drop(state);
                    report(activity, elapsed);
                    state = shared.state();
                }
            }
        };
        let thread = std::thread::Builder::new().name("watch".into()).spawn(watch)?;
        Ok(Self { pulse, thread: Some(thread) })
    }

    /// What tells it that the run goes on.
    pub fn pulse(&self) -> &Pulse {
        &self.pulse
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.pulse.0.state().ended = true;
        self.pulse.0.ended.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_stall_is_reported_again_and_again_and_progress_is_not() {
        let (sender, receiver) = mpsc::channel();
        let limit = Duration::from_millis(100);
        let watch = Watch::start(Some(limit), move |activity, elapsed| sender.send((activity, elapsed)).unwrap()).unwrap();
        let pulse = watch.pulse().clone();
        pulse.enter(Activity::Step(3));
        for count in 1..=3 {
            let (activity, elapsed) = receiver.recv_timeout(Duration::from_secs(20)).unwrap();
            assert_eq!(activity, Activity::Step(3));
            assert!(elapsed >= limit * count);
        }
        assert_eq!(pulse.enter(Activity::None), Activity::Step(3));
        while receiver.try_recv().is_ok() {}
        assert!(receiver.recv_timeout(5 * limit).is_err(), "there is nothing to wait for");
        drop(watch);
        assert!(receiver.recv().is_err(), "the thread has ended");
    }

    #[test]
    fn without_a_limit_nothing_is_watched() {
        let watch = Watch::start(None, |_, _| panic!("there is nothing to report")).unwrap();
        watch.pulse().enter(Activity::Evaluation);
        watch.pulse().beat();
    }
}
