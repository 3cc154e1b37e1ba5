//! What the dashboard shows.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::series::Series;
use crate::log::jsonl::Record;
use crate::log::progress::Progress;

/// Lines kept for the screen.
const LINES: usize = 200;

/// The state of a run as the dashboard shows it.
#[derive(Debug)]
pub struct Board {
    pub(super) title: String,
    pub(super) started: Instant,
    pub(super) progress: Option<Progress>,
    /// Step of the newest record or tick, and what it is that counts beside steps: images of an evaluation.
    pub(super) step: u64,
    pub(super) activity: Option<String>,
    pub(super) loss: Series,
    pub(super) eval_loss: Series,
    pub(super) learning_rate: Series,
    pub(super) top1: Series,
    pub(super) ema_top1: Series,
    pub(super) best: Option<(u64, f64)>,
    pub(super) images_per_second: Series,
    pub(super) data_wait: Series,
    pub(super) memory: Series,
    pub(super) lines: VecDeque<(Duration, String)>,
    pub(super) prompt: Prompt,
    pub(super) stopping: bool,
}

/// What the bottom line is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prompt {
    /// Naming the keys.
    Keys,
    /// Asking whether to stop.
    Stop,
    /// Explaining, over the whole screen.
    Help,
}

impl Board {
    /// A board that has nothing to show yet. `title` says which run it is.
    pub fn new(title: &str) -> Self {
        Self {
            title: title.into(),
            started: Instant::now(),
            progress: None,
            step: 0,
            activity: None,
            loss: Series::default(),
            eval_loss: Series::default(),
            learning_rate: Series::default(),
            top1: Series::default(),
            ema_top1: Series::default(),
            best: None,
            images_per_second: Series::default(),
            data_wait: Series::default(),
            memory: Series::default(),
            lines: VecDeque::new(),
            prompt: Prompt::Keys,
            stopping: false,
        }
    }

    /// Takes a line of the metrics.
    pub fn record(&mut self, record: &Record) {
        match record {
            Record::Train { step, loss, learning_rate, rate_images_per_second, rate_data_wait, .. } => {
                self.step = *step;
                self.activity = None;
                self.loss.push(*step, *loss);
                self.learning_rate.push(*step, *learning_rate);
                self.images_per_second.push(*step, *rate_images_per_second);
                self.data_wait.push(*step, *rate_data_wait * 100.0);
            }
            Record::Eval { step, top1, loss, ema_top1, .. } => {
                self.step = *step;
                self.activity = None;
                self.eval_loss.push(*step, *loss);
                self.top1.push(*step, *top1);
                if let Some(top1) = ema_top1 {
                    self.ema_top1.push(*step, *top1);
                }
                if self.best.is_none_or(|(_, best)| *top1 > best) {
                    self.best = Some((*step, *top1));
                }
            }
            Record::Event { event, path, reason, .. } => self.line(format!("{event}: {path}: {reason}")),
            _ => {}
        }
    }

    /// Takes where training stands.
    pub fn progress(&mut self, progress: Progress) {
        self.step = progress.step;
        self.activity = None;
        self.progress = Some(progress);
    }

    /// Takes the number of a step that says nothing else of itself.
    pub fn tick(&mut self, step: u64) {
        self.step = step;
        self.activity = None;
    }

    /// Takes what is done between two steps, until the next step.
    pub fn activity(&mut self, text: String) {
        self.activity = Some(text);
    }

    /// Takes the memory of the process.
    pub fn memory(&mut self, bytes: u64) {
        self.memory.push(self.step, bytes as f64);
    }

    /// Takes something that is said.
    pub fn line(&mut self, line: impl Into<String>) {
        let since = self.started.elapsed();
        for line in line.into().lines() {
            self.lines.push_back((since, line.into()));
        }
        while self.lines.len() > LINES {
            self.lines.pop_front();
        }
    }
}
