//! `--dashboard`: the run in a terminal, with keys to save and to stop.
//!
//! A thread of its own draws and reads keys; the loop only leaves numbers and lines behind. Whatever happens, the terminal is given back
//! as it was, and what was said meanwhile is printed again, so that no error is lost with the screen.

mod board;
#[cfg(unix)]
mod capture;
mod draw;
#[cfg(unix)]
mod screen;
#[cfg(not(unix))]
#[path = "nowhere.rs"]
mod screen;
mod series;
#[cfg(unix)]
mod terminal;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use self::board::Board;
use self::board::Prompt;
pub use self::draw::draw;
use self::screen::Screen;
pub(crate) use self::screen::obstacle;
use super::Sink;
use super::jsonl::Record;
use crate::error::Result;
use crate::memory::resident_bytes;
use crate::signals::Stop;

/// Time between two pictures.
const PICTURE: Duration = Duration::from_millis(250);
/// Time between two looks at the memory.
const WEIGH: Duration = Duration::from_secs(1);

/// A key that means something here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    /// A letter or sign.
    Character(char),
    Escape,
    /// Ctrl-C, which is no signal while the terminal hands on every key.
    Interrupt,
}

/// What the loop and the drawing thread share.
pub(crate) struct Shared {
    state: Mutex<State>,
    closing: AtomicBool,
    checkpoint: AtomicBool,
}

pub(super) struct State {
    pub(super) board: Board,
    /// Lines to be printed when the terminal is given back.
    pub(super) said: Vec<String>,
    /// Whether the dashboard has the terminal.
    pub(super) shown: bool,
}

impl Shared {
    /// The state. A panic elsewhere does not make it unusable: it must still be shown.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says a line on the dashboard; on stderr where it is gone.
    pub fn say(&self, line: &str) {
        let mut state = self.state();
        if state.shown {
            state.board.line(line);
            state.said.push(line.into());
        } else {
            drop(state);
            super::progress::write_line(line);
        }
    }

    /// Changes what is shown.
    pub fn change(&self, change: impl FnOnce(&mut Board)) {
        change(&mut self.state().board);
    }
}

/// A dashboard on the terminal, until it is dropped.
pub(crate) struct Dashboard {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Dashboard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dashboard")
    }
}

impl Dashboard {
    /// Takes the terminal. `lines` have been said before.
    ///
    /// # Errors
    /// Where the terminal cannot be set.
    pub fn start(title: &str, lines: &[String], stop: &Stop) -> io::Result<Self> {
        let mut board = Board::new(title);
        lines.iter().for_each(|line| board.line(line.as_str()));
        let state = Mutex::new(State { board, said: Vec::new(), shown: true });
        let shared = Arc::new(Shared { state, closing: AtomicBool::new(false), checkpoint: AtomicBool::new(false) });
        let screen = Screen::take(Arc::clone(&shared))?;
        stop.take_over();
        let keys = Keys { shared: Arc::clone(&shared), stop: stop.clone(), interrupts: 0 };
        let thread = std::thread::Builder::new().name("dashboard".into()).spawn(move || keys.work(screen))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What is shared with the drawing thread.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Whether a checkpoint was asked for since this was last called.
    pub fn take_checkpoint(&self) -> bool {
        self.shared.checkpoint.swap(false, Ordering::Relaxed)
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The metrics on their way to the dashboard.
pub(crate) struct Feed(pub Arc<Shared>);

impl Sink for Feed {
    fn record(&mut self, record: &Record) -> Result<()> {
        self.0.change(|board| board.record(record));
        Ok(())
    }
}

/// The thread that draws, and listens to keys and to SIGINT.
struct Keys {
    shared: Arc<Shared>,
    stop: Stop,
    interrupts: usize,
}

impl Keys {
    /// Draws until the dashboard closes. Where the terminal goes before, the run goes on without it.
    fn work(mut self, screen: Screen) {
        let mut screen = Some(screen);
        let mut weighed: Option<Instant> = None;
        while !self.closing() {
            if weighed.is_none_or(|weighed| weighed.elapsed() >= WEIGH)
                && let Some(bytes) = resident_bytes()
            {
                weighed = Some(Instant::now());
                self.shared.change(|board| board.memory(bytes));
            }
            if screen.as_mut().is_some_and(|screen| screen.draw().is_err()) {
                screen = None;
            }
            let drawn = Instant::now();
            let mut changed = false;
            while !changed && drawn.elapsed() < PICTURE && !self.closing() {
                let keys = match &mut screen {
                    Some(screen) => screen.keys(),
                    None => {
                        std::thread::sleep(PICTURE);
                        Vec::new()
                    }
                };
                for key in keys {
                    self.press(key);
                    changed = true;
                }
                if self.stop.take_interrupt() {
                    self.interrupt();
                    changed = true;
                }
                if self.interrupts >= 2 {
                    drop(screen);
                    signal_hook::low_level::exit(130);
                }
            }
            let stopping = self.stop.asked();
            self.shared.change(|board| board.stopping = stopping);
        }
    }

    fn closing(&self) -> bool {
        self.shared.closing.load(Ordering::Relaxed)
    }

    fn interrupt(&mut self) {
        self.interrupts += 1;
        self.stop.ask();
    }

    fn press(&mut self, key: Key) {
        let prompt = self.shared.state().board.prompt;
        let next = match (prompt, key) {
            (_, Key::Interrupt) => return self.interrupt(),
            (Prompt::Stop, Key::Character('y' | 'Y')) => {
                self.stop.ask();
                Prompt::Keys
            }
            (Prompt::Stop, _) => Prompt::Keys,
            (Prompt::Help, Key::Character('h' | '?' | 'q') | Key::Escape) => Prompt::Keys,
            (_, Key::Character('q')) => Prompt::Stop,
            (_, Key::Character('h' | '?')) => Prompt::Help,
            (_, Key::Character('c')) => {
                self.shared.checkpoint.store(true, Ordering::Relaxed);
                self.shared.change(|board| board.line("a checkpoint follows this step"));
                prompt
            }
            _ => prompt,
        };
        self.shared.change(|board| board.prompt = next);
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;

    use super::*;

    /// In a terminal that `script` makes, this test starts itself again, with a dashboard and a panic.
    const INSIDE: &str = "MANYHEADS_TEST_INSIDE_A_TERMINAL";

    #[test]
    fn a_panic_gives_the_terminal_back_and_is_told() {
        if std::env::var_os(INSIDE).is_some() {
            let stop = Stop::default();
            let dashboard = Dashboard::start("a run", &["said before".into()], &stop).unwrap();
            dashboard.shared().say("said meanwhile");
            // A thread of a library, which nobody waits for, and its message.
            let _ = std::thread::spawn(|| panic!("a library's panic")).join();
            eprintln!("printed by a driver");
            std::thread::sleep(2 * PICTURE);
            panic!("the loop's panic");
        }
        let itself = std::env::current_exe().unwrap();
        let name = "log::dashboard::tests::a_panic_gives_the_terminal_back_and_is_told";
        let line = format!("stty rows 24 cols 80; exec {} --exact {name} --nocapture", itself.display());
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).env(INSIDE, "1").env("SHELL", "/bin/sh");
        let output = command.env("TERM", "xterm").output().expect("script (bsdutils) runs");
        assert!(!output.status.success());
        let left = b"\x1b[?1049l";
        let end = output.stdout.windows(left.len()).rposition(|bytes| bytes == left).expect("the alternate screen is left");
        let mut terminal = vt100::Parser::new(24.try_into().unwrap(), 80.try_into().unwrap(), 0);
        terminal.process(&output.stdout[..end]);
        let screen = terminal.screen().contents();
        assert!(screen.contains("printed by a driver") && screen.contains("checkpoint now"), "{screen}");
        terminal.process(&output.stdout[end..]);
        assert!(!terminal.screen().alternate_screen() && !terminal.screen().hide_cursor());
        let after = String::from_utf8_lossy(&output.stdout[end..]);
        for told in ["said meanwhile", "a library's panic", "printed by a driver", "the loop's panic"] {
            assert!(after.contains(told), "`{told}` is lost: {after}");
        }
    }
}
