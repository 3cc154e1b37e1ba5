//! A terminal by its escape sequences (ECMA-48): what the dashboard needs of one is little, and the same everywhere.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::time::{Duration, Instant};

use super::Key;
use ratatui::backend::{Backend, ClearType, WindowSize};
use ratatui::buffer::Cell;
use ratatui::layout::{Position, Size};
use ratatui::style::{Color, Modifier};
use rustix::termios::{self, OptionalActions, SpecialCodeIndex, Termios};

/// How long reading a key waits, in the tenths of a second that terminals count in.
const WAIT: u8 = 1;
const WAIT_TIME: Duration = Duration::from_millis(100);

/// A terminal that hands on every key at once and is drawn on by position.
pub(super) struct Ansi {
    out: BufWriter<File>,
    /// Where keys come from, where there is such a place.
    keys: Option<File>,
    before: Termios,
}

impl Ansi {
    /// Takes the terminal `tty`.
    ///
    /// # Errors
    /// Where it is none, or cannot be set.
    pub fn take(tty: File) -> io::Result<Self> {
        let before = termios::tcgetattr(&tty)?;
        let mut raw = before.clone();
        raw.make_raw();
        raw.special_codes[SpecialCodeIndex::VMIN] = 0;
        raw.special_codes[SpecialCodeIndex::VTIME] = WAIT;
        termios::tcsetattr(&tty, OptionalActions::Now, &raw)?;
        let mut taken = Self { out: BufWriter::new(tty), keys: File::open("/dev/tty").ok(), before };
        // The alternate screen, wiped. From here on dropping gives the terminal back.
        taken.out.write_all(b"\x1b[?1049h\x1b[2J\x1b[?25l")?;
        taken.out.flush()?;
        Ok(taken)
    }

    /// The keys pressed since the last call; waits a tenth of a second where there are none.
    pub fn keys(&mut self) -> Vec<Key> {
        let began = Instant::now();
        let mut bytes = [0; 256];
        let read = self.keys.as_mut().map_or(Ok(0), |keys| keys.read(&mut bytes));
        if let Ok(count @ 1..) = read {
            return parse(&bytes[..count]);
        }
        // A terminal that has gone answers at once.
        std::thread::sleep(WAIT_TIME.saturating_sub(began.elapsed()));
        Vec::new()
    }

    fn style(&mut self, cell: &Cell) -> io::Result<()> {
        write!(self.out, "\x1b[0")?;
        let modifiers = [
            (Modifier::BOLD, 1),
            (Modifier::DIM, 2),
            (Modifier::ITALIC, 3),
            (Modifier::UNDERLINED, 4),
            (Modifier::SLOW_BLINK, 5),
            (Modifier::RAPID_BLINK, 6),
            (Modifier::REVERSED, 7),
            (Modifier::HIDDEN, 8),
            (Modifier::CROSSED_OUT, 9),
        ];
        for (_, code) in modifiers.iter().filter(|(modifier, _)| cell.modifier.contains(*modifier)) {
            write!(self.out, ";{code}")?;
        }
        for (color, base) in [(cell.fg, 30), (cell.bg, 40)] {
            match color {
                Color::Reset => {}
                Color::Indexed(index) => write!(self.out, ";{};5;{index}", base + 8)?,
                Color::Rgb(red, green, blue) => write!(self.out, ";{};2;{red};{green};{blue}", base + 8)?,
                named => write!(self.out, ";{}", base + offset(named))?,
            }
        }
        write!(self.out, "m")
    }
}

/// A colour's place among the sixteen.
fn offset(color: Color) -> u8 {
    match color {
        Color::Black => 0,
        Color::Red => 1,
        Color::Green => 2,
        Color::Yellow => 3,
        Color::Blue => 4,
        Color::Magenta => 5,
        Color::Cyan => 6,
        Color::Gray => 7,
        Color::DarkGray => 60,
        Color::LightRed => 61,
        Color::LightGreen => 62,
        Color::LightYellow => 63,
        Color::LightBlue => 64,
        Color::LightMagenta => 65,
        Color::LightCyan => 66,
        Color::White => 67,
        // The others are written in their own way.
        Color::Reset | Color::Indexed(_) | Color::Rgb(..) => 9,
    }
}

/// The keys in what a terminal sent; sequences of arrows and the like mean nothing here.
fn parse(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let Some((first, rest)) = bytes.split_first() {
        bytes = rest;
        match (first, rest.first()) {
            (0x1b, Some(b'[' | b'O')) => {
                let end = rest.iter().skip(1).position(|byte| (0x40..0x7f).contains(byte));
                bytes = end.map_or(&[], |end| &rest[end + 2..]);
            }
            (0x1b, _) => keys.push(Key::Escape),
            (0x03, _) => keys.push(Key::Interrupt),
            (0x21..0x7f, _) => keys.push(Key::Character(char::from(*first))),
            _ => {}
        }
    }
    keys
}

impl Drop for Ansi {
    fn drop(&mut self) {
        let _ = self.out.write_all(b"\x1b[0m\x1b[?1049l\x1b[?25h");
        let _ = self.out.flush();
        let _ = termios::tcsetattr(self.out.get_ref(), OptionalActions::Now, &self.before);
    }
}

impl Backend for Ansi {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let mut next: Option<(u16, u16)> = None;
        let mut styled: Option<(Color, Color, Modifier)> = None;
        for (x, y, cell) in content {
            if next != Some((x, y)) {
                write!(self.out, "\x1b[{};{}H", y + 1, x + 1)?;
            }
            let style = (cell.fg, cell.bg, cell.modifier);
            if styled != Some(style) {
                self.style(cell)?;
                styled = Some(style);
            }
            self.out.write_all(cell.symbol().as_bytes())?;
            next = Some((x + 1, y));
        }
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.out.write_all(b"\x1b[?25l")
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.out.write_all(b"\x1b[?25h")
    }

    /// It is hidden.
    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        write!(self.out, "\x1b[{};{}H", y + 1, x + 1)
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
        self.out.write_all(match region {
            ClearType::All => b"\x1b[0m\x1b[2J",
            ClearType::AfterCursor => b"\x1b[0m\x1b[0J",
            ClearType::BeforeCursor => b"\x1b[0m\x1b[1J",
            ClearType::CurrentLine => b"\x1b[0m\x1b[2K",
            ClearType::UntilNewLine => b"\x1b[0m\x1b[0K",
        })
    }

    fn size(&self) -> io::Result<Size> {
        let size = termios::tcgetwinsize(self.out.get_ref())?;
        // A terminal that does not know its size is taken for one of the usual.
        Ok(match (size.ws_col, size.ws_row) {
            (0, _) | (_, 0) => Size::new(80, 24),
            (columns, rows) => Size::new(columns, rows),
        })
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        let size = termios::tcgetwinsize(self.out.get_ref())?;
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::new(size.ws_xpixel, size.ws_ypixel) })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_and_sequences_passed_over() {
        use Key::*;
        assert_eq!(parse(b"cq"), [Character('c'), Character('q')]);
        assert_eq!(parse(b"\x1b[A\x1bOPh\x1b[1;5C\x03"), [Character('h'), Interrupt]);
        assert_eq!(parse(b"\x1b"), [Escape]);
        assert_eq!(parse(b"\x1b["), []);
        assert_eq!(parse("é\r\n ?".as_bytes()), [Character('?')]);
    }
}
