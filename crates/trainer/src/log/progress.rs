//! Progress for people, on stderr: a bar or a dashboard in a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Sink;
use super::dashboard::{self, Dashboard, Feed, Shared};
use crate::engine::watch::Pulse;
use crate::signals::Stop;

/// What people see of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum View {
    /// A bar in a terminal, plain lines elsewhere.
    #[default]
    Lines,
    /// Curves over the whole terminal; elsewhere plain lines.
    Dashboard,
}

/// Says things on stderr, with a bar below them while there is one, or on the dashboard.
#[derive(Debug)]
pub struct Console {
    bar: Option<ProgressBar>,
    terminal: bool,
    dashboard: Board,
    /// Hears of every count.
    pulse: Option<Pulse>,
}

/// Says lines on behalf of a console, from another thread.
#[derive(Debug, Clone)]
pub struct Speaker {
    bar: Option<ProgressBar>,
    dashboard: Option<Weak<Shared>>,
}

impl Speaker {
    /// Says a line.
    pub fn say(&self, line: &str) {
        match (&self.bar, self.dashboard.as_ref().and_then(Weak::upgrade)) {
            (_, Some(dashboard)) => dashboard.say(line),
            (Some(bar), None) => bar.suspend(|| write_line(line)),
            (None, None) => write_line(line),
        }
    }
}

/// The dashboard of a console.
#[derive(Debug)]
enum Board {
    /// It is not wanted, or not possible.
    None,
    /// It takes the terminal when training starts; these lines have been said until then.
    Waiting(Mutex<Vec<String>>),
    /// It has the terminal.
    Shown(Dashboard),
    /// Another console has it.
    Aside(Weak<Shared>),
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
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { bar: None, terminal: std::io::stderr().is_terminal() && !dumb, dashboard: Board::None, pulse: None }
    }
}

impl Console {
    /// A console with what is wanted of it, as far as there is a terminal for it.
    pub fn new(view: View) -> Self {
        let console = Self::default();
        match (view, dashboard::obstacle()) {
            (View::Lines, _) => console,
            (View::Dashboard, None) => Self { dashboard: Board::Waiting(Mutex::default()), ..console },
            (View::Dashboard, Some(reason)) => {
                console.say(format!("note: no dashboard, since {reason}; plain lines follow"));
                console
            }
        }
    }

    /// Whether a dashboard has the terminal or will have it.
    fn hides_terminal(&self) -> bool {
        !matches!(self.dashboard, Board::None)
    }

    /// Says a line.
    pub fn say(&self, line: impl AsRef<str>) {
        let line = line.as_ref();
        match (&self.bar, &self.dashboard) {
            (_, Board::Shown(dashboard)) => dashboard.shared().say(line),
            (Some(bar), _) => bar.suspend(|| write_line(line)),
            (None, board) => {
                if let Board::Waiting(lines) = board {
                    lines.lock().unwrap_or_else(PoisonError::into_inner).push(line.into());
                }
                write_line(line);
            }
        }
    }

    /// Starts a bar of `length` units, in a terminal. `done` of them are there already.
    pub fn start(&mut self, length: u64, done: u64) {
        if !self.terminal || self.hides_terminal() {
            return;
        }
        let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr_with_hz(8));
        let style = ProgressStyle::with_template("{bar:8} {pos}/{len} {wide_msg}").expect("the template is well-formed");
        bar.set_style(style.progress_chars("━╸─"));
        bar.set_position(done);
        self.bar = Some(bar);
    }

    /// Where a dashboard is wanted, lets it take the terminal; returns what is to follow the metrics for it. Where the terminal cannot be
    /// set, plain lines follow.
    pub(crate) fn dashboard(&mut self, title: &str, stop: &Stop) -> Option<Box<dyn Sink>> {
        let Board::Waiting(lines) = &self.dashboard else { return None };
        let lines = lines.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let started = Dashboard::start(title, &lines, stop);
        match started {
            Ok(dashboard) => {
                let feed = Feed(Arc::clone(dashboard.shared()));
                self.dashboard = Board::Shown(dashboard);
                Some(Box::new(feed))
            }
            Err(error) => {
                self.dashboard = Board::None;
                self.say(format!("note: no dashboard, since the terminal cannot be set: {error}; plain lines follow"));
                None
            }
        }
    }

    /// What says lines here from other threads, as the console is now.
    pub fn speaker(&self) -> Speaker {
        let dashboard = match &self.dashboard {
            Board::Shown(dashboard) => Some(Arc::downgrade(dashboard.shared())),
            Board::Aside(shared) => Some(shared.clone()),
            Board::None | Board::Waiting(_) => None,
        };
        Speaker { bar: self.bar.clone(), dashboard }
    }

    /// Lets `pulse` hear of every count.
    pub(crate) fn set_pulse(&mut self, pulse: Pulse) {
        self.pulse = Some(pulse);
    }

    /// A console for work within training: without a bar of its own, on the same dashboard.
    pub fn aside(&self) -> Self {
        let dashboard = match &self.dashboard {
            Board::Shown(dashboard) => Board::Aside(Arc::downgrade(dashboard.shared())),
            _ => Board::None,
        };
        Self { bar: None, terminal: self.terminal, dashboard, pulse: self.pulse.clone() }
    }

    /// Whether somebody asked for a checkpoint since this was last called.
    pub fn checkpoint_wished(&self) -> bool {
        matches!(&self.dashboard, Board::Shown(dashboard) if dashboard.take_checkpoint())
    }

    /// Shows where training stands. Outside a terminal, a line appears only with `line`.
    pub fn show(&self, progress: &Progress, line: bool) {
        if let Board::Shown(dashboard) = &self.dashboard {
            dashboard.shared().change(|board| board.progress(*progress));
        } else if let Some(bar) = &self.bar {
            bar.set_message(progress.short());
            bar.set_position(progress.step);
        } else if line {
            write_line(&format!("step {}/{} | {}", progress.step, progress.steps, progress.text()));
        }
    }

    /// Shows a count and a text, in a terminal only.
    pub fn count(&self, position: u64, text: impl Into<std::borrow::Cow<'static, str>>) {
        if let Some(pulse) = &self.pulse {
            pulse.beat();
        }
        if let Board::Aside(shared) = &self.dashboard {
            if let Some(shared) = shared.upgrade() {
                let text = text.into();
                shared.change(|board| board.activity(format!("{text} | {position} images")));
            }
        } else if let Some(bar) = &self.bar {
            bar.set_position(position);
            bar.set_message(text);
        }
    }

    /// Moves the bar without other changes.
    pub fn tick(&self, position: u64) {
        if let Board::Shown(dashboard) = &self.dashboard {
            dashboard.shared().change(|board| board.tick(position));
        } else if let Some(bar) = &self.bar {
            bar.set_position(position);
        }
    }

    /// Takes the bar or the dashboard away.
    pub fn finish(&mut self) {
        self.dashboard = Board::None;
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// Writes a line to stderr; that nobody reads it any more must not end a run of three weeks.
pub(super) fn write_line(line: &str) {
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
