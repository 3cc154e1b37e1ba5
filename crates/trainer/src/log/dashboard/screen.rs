//! The terminal while the dashboard has it, and its way back.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::Arc;

use ratatui::Terminal;

use super::capture::Capture;
use super::draw::draw;
use super::terminal::Ansi;
use super::{Key, Shared};

/// Why a dashboard cannot be shown here.
pub(crate) fn obstacle() -> Option<&'static str> {
    if !io::stderr().is_terminal() {
        return Some("stderr is no terminal");
    }
    match std::env::var_os("TERM") {
        None => return Some("TERM is not set"),
        Some(term) if term == "dumb" => return Some("TERM is dumb"),
        Some(_) => {}
    }
    // Whoever changes the terminal's mode from the background is stopped by the system.
    let foreground = rustix::termios::tcgetpgrp(io::stderr());
    if foreground.is_ok_and(|foreground| foreground != rustix::process::getpgrp()) {
        return Some("the program runs in the background");
    }
    None
}

/// The terminal, taken until this is dropped. Dropping it, on whatever way, gives the terminal back as it was and then prints what was
/// said meanwhile.
pub(super) struct Screen {
    /// Empty only while it is being dropped.
    terminal: Option<Terminal<Ansi>>,
    capture: Option<Capture>,
    shared: Arc<Shared>,
}

impl Screen {
    /// Takes the terminal that stderr is.
    ///
    /// # Errors
    /// Where it is none, or cannot be set.
    pub fn take(shared: Arc<Shared>) -> io::Result<Self> {
        let terminal = Terminal::new(Ansi::take(File::from(io::stderr().as_fd().try_clone_to_owned()?))?)?;
        let capture = Capture::begin({
            let shared = Arc::clone(&shared);
            move |line| shared.say(&line)
        });
        Ok(Self { terminal: Some(terminal), capture: capture.ok(), shared })
    }

    /// Draws the board.
    ///
    /// # Errors
    /// Where the terminal has gone.
    pub fn draw(&mut self) -> io::Result<()> {
        let Some(terminal) = &mut self.terminal else { return Ok(()) };
        // A terminal that takes no more characters must not keep the loop waiting: the board is held only while it is looked at.
        terminal.draw(|frame| draw(frame, &self.shared.state().board)).map(|_| ())
    }

    /// As [`Ansi::keys`].
    pub fn keys(&mut self) -> Vec<Key> {
        self.terminal.as_mut().map(|terminal| terminal.backend_mut().keys()).unwrap_or_default()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        drop(self.terminal.take());
        // Its last lines are among those to be said.
        drop(self.capture.take());
        let mut state = self.shared.state();
        state.shown = false;
        let mut err = io::stderr().lock();
        for line in std::mem::take(&mut state.said) {
            let _ = writeln!(err, "{line}");
        }
    }
}
