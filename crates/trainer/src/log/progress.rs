//! Progress for people, on stderr: a bar in a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Says things on stderr, with a bar below them while there is one.
#[derive(Debug)]
pub struct Console {
    bar: Option<ProgressBar>,
    terminal: bool,
}

/// What the bar shows of training.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Updates done.
    pub step: u64,
    /// Updates of the whole run.
    pub steps: u64,
    /// Epoch, from 0.
    pub epoch: u64,
    /// Epochs of the whole run.
    pub epochs: u64,
    /// Mean loss lately.
    pub loss: f64,
    /// Learning rate.
    pub learning_rate: f64,
    /// Images a second lately.
    pub images_per_second: f64,
    /// Share of time waiting for data lately, 0 to 1.
    pub data_wait: f64,
    /// Time to the end of training at this speed.
    pub left: Option<Duration>,
}

impl Progress {
    fn text(&self) -> String {
        let Progress { epoch, epochs, loss, learning_rate, images_per_second, data_wait, left, .. } = self;
        let left = left.map_or(String::new(), |left| format!(" | {} left", HumanDuration(left)));
        format!(
            "epoch {}/{epochs} | loss {loss:.4} | lr {learning_rate:.2e} | {} images/s | waiting for data {:.0} %{left}",
            epoch + 1,
            rate(*images_per_second),
            data_wait * 100.0,
        )
    }

    /// The same in at most 57 columns for a run of sane length, so that with bar and count it fits a terminal of 80.
    fn short(&self) -> String {
        let Progress { epoch, epochs, loss, learning_rate, images_per_second, data_wait, left, .. } = self;
        let left = left.map_or(String::new(), |left| format!(" {:#} left", HumanDuration(left)));
        format!(
            "ep {}/{epochs} loss {loss:.3} lr {learning_rate:.1e} {} img/s wait {:.0}%{left}",
            epoch + 1,
            rate(*images_per_second),
            data_wait * 100.0,
        )
    }
}

/// Images a second: slow ones with a decimal.
fn rate(images_per_second: f64) -> String {
    if images_per_second < 10.0 { format!("{images_per_second:.2}") } else { format!("{images_per_second:.0}") }
}

impl Default for Console {
    fn default() -> Self {
        Self { bar: None, terminal: std::io::stderr().is_terminal() }
    }
}

impl Console {
    /// Says a line.
    pub fn say(&self, line: impl AsRef<str>) {
        match &self.bar {
            Some(bar) => bar.suspend(|| write_line(line.as_ref())),
            None => write_line(line.as_ref()),
        }
    }

    /// Starts a bar of `length` units, in a terminal. `done` of them are there already.
    pub fn start(&mut self, length: u64, done: u64) {
        if !self.terminal {
            return;
        }
        let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr_with_hz(8));
        let style = ProgressStyle::with_template("{bar:8} {pos}/{len} {wide_msg}").expect("the template is well-formed");
        bar.set_style(style.progress_chars("━╸─"));
        bar.set_position(done);
        self.bar = Some(bar);
    }

    /// Shows where training stands. Outside a terminal, a line appears only with `line`.
    pub fn show(&self, progress: &Progress, line: bool) {
        if let Some(bar) = &self.bar {
            bar.set_message(progress.short());
            bar.set_position(progress.step);
        } else if line {
            write_line(&format!("step {}/{} | {}", progress.step, progress.steps, progress.text()));
        }
    }

    /// Shows a count and a text, in a terminal only.
    pub fn count(&self, position: u64, text: impl Into<std::borrow::Cow<'static, str>>) {
        if let Some(bar) = &self.bar {
            bar.set_position(position);
            bar.set_message(text);
        }
    }

    /// Moves the bar without other changes.
    pub fn tick(&self, position: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(position);
        }
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// Writes a line to stderr; that nobody reads it any more must not end a run of three weeks.
fn write_line(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Time spent working and waiting since the last look.
#[derive(Debug)]
pub struct Meter {
    since: Instant,
    waited: Duration,
    images: u64,
}

impl Default for Meter {
    fn default() -> Self {
        Self { since: Instant::now(), waited: Duration::ZERO, images: 0 }
    }
}

impl Meter {
    /// Counts time spent waiting for the loader.
    pub fn wait(&mut self, waited: Duration) {
        self.waited += waited;
    }

    /// Counts images done.
    pub fn count(&mut self, images: u64) {
        self.images += images;
    }

    /// Images a second and share of waiting since the last call.
    pub fn take(&mut self) -> (f64, f64) {
        let elapsed = self.since.elapsed().as_secs_f64().max(1e-9);
        let rates = (self.images as f64 / elapsed, (self.waited.as_secs_f64() / elapsed).min(1.0));
        *self = Self::default();
        rates
    }

    /// The same without starting anew.
    pub fn peek(&self) -> (f64, f64) {
        let elapsed = self.since.elapsed().as_secs_f64().max(1e-9);
        (self.images as f64 / elapsed, (self.waited.as_secs_f64() / elapsed).min(1.0))
    }
}
