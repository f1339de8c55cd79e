//! The whole terminal as a screen, for the view of `bench --tui`: taken, drawn on, and given back, also when a script
//! calls `exit`. (A signal that ends the process without a handler, such as KILL, leaves it taken.)
//!
//! The screen is the controlling terminal (`/dev/tty`), opened anew without blocking: a slow or stopped terminal never
//! holds up the run. Ctrl-C stays a signal. What anybody writes to standard output or standard error meanwhile, if they
//! are terminals, is kept in memory and appears after the screen is gone.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color, Modifier};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::getpgrp;
use rustix::stdio::{dup2_stderr, dup2_stdout};
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
};

/// How long drawing may wait for the terminal. What it has not taken by then is sent with the next picture.
const DRAWING: Duration = Duration::from_millis(20);
/// How long giving the terminal back may wait for it.
const LEAVING: Duration = Duration::from_secs(1);
/// The most bytes of other output that are kept.
const MOST_KEPT: u64 = 16 << 20;

/// The key that asks for the whole picture again, in shells as well.
const CTRL_L: u8 = 0x0c;

/// The other screen, cleared, without a cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[2J";
/// Plain characters on an empty screen, for terminals that have only one; the cursor, and the screen from before.
const LEAVE: &[u8] = b"\x1b[0m\x1b[2J\x1b[H\x1b[?25h\x1b[?1049l";

/// The state of the terminal before the screen took it, to be given back. The lock also orders what is written.
static TAKEN: Mutex<Option<Taken>> = Mutex::new(None);

struct Taken {
    tty: File,
    before: Termios,
    /// What was written to standard output and standard error meanwhile.
    kept: File,
    stdout: Option<OwnedFd>,
    stderr: OwnedFd,
}

/// Why there can be no screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoScreen {
    /// Standard error is a file or a pipe.
    #[error("standard error is no terminal")]
    NoTerminal,
    /// `/dev/tty` cannot be opened, as after `setsid`.
    #[error("this process has no controlling terminal")]
    NoControlling,
    /// Another process group has the terminal.
    #[error("this process is in the background")]
    Background,
    /// The terminal has no second screen and no cursor that moves.
    #[error("this terminal shows lines alone (TERM)")]
    Dumb,
    /// The terminal's state cannot be read or set.
    #[error("the terminal cannot be taken")]
    Failed,
}

/// The terminal as a screen. Dropping it gives the terminal back.
#[derive(Debug)]
pub(crate) struct Screen {
    tty: File,
    /// What is to be drawn, and what the terminal has not taken yet.
    out: Vec<u8>,
    flushed: usize,
    keys: Keys,
    colours: bool,
}

/// The keys that mean something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pressed {
    /// `q`.
    pub(crate) quit: bool,
    /// Ctrl-L.
    pub(crate) redraw: bool,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// There is none, or it cannot be a screen.
    pub(crate) fn open() -> Result<Self, NoScreen> {
        if !io::stderr().is_terminal() {
            return Err(NoScreen::NoTerminal);
        }
        if std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb") {
            return Err(NoScreen::Dumb);
        }
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let tty = OpenOptions::new().read(true).write(true).custom_flags(flags.bits() as i32).open("/dev/tty");
        let tty = tty.map_err(|_| NoScreen::NoControlling)?;
        // The kernel stops a process that changes a terminal from the background.
        if tcgetpgrp(&tty).is_ok_and(|group| group != getpgrp()) {
            return Err(NoScreen::Background);
        }
        let own = tty.try_clone().map_err(|_| NoScreen::Failed)?;
        oroshi_net::process::at_exit(restore);
        let sent = take(tty).map_err(|_| {
            restore();
            NoScreen::Failed
        })?;
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        // A slow terminal gets the rest before the first picture.
        Ok(Self { tty: own, out: ENTER[sent..].to_vec(), flushed: 0, keys: Keys::default(), colours: !unwanted })
    }

    /// Returns the keys pressed since the last call that mean something.
    pub(crate) fn pressed(&mut self) -> Pressed {
        let mut pressed = Pressed::default();
        if taken().is_none() {
            // The keys are for the next process.
            return pressed;
        }
        let mut bytes = [0; 256];
        while let Ok(n @ 1..) = (&self.tty).read(&mut bytes) {
            for &byte in &bytes[..n] {
                self.keys.read(byte, &mut pressed);
            }
        }
        pressed
    }

    /// Sends what is to be drawn, as far as the terminal takes it.
    fn send(&mut self) {
        let taken = taken();
        if taken.is_none() {
            self.out.clear();
            self.flushed = 0;
            return;
        }
        self.flushed += send(&self.tty, &self.out[self.flushed..], DRAWING);
        if self.flushed == self.out.len() {
            self.out.clear();
            self.flushed = 0;
        }
        if let Some(Taken { kept, .. }) = &*taken
            && kept.metadata().is_ok_and(|kept| kept.len() > MOST_KEPT)
        {
            let _ = kept.set_len(0);
            let _ = (&*kept).write_all(b"(output before this line was too much to keep)\n");
        }
    }

    /// Whether the terminal has not taken the last picture yet.
    pub(crate) fn is_behind(&mut self) -> bool {
        if !self.out.is_empty() {
            self.send();
        }
        !self.out.is_empty()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// What the next byte from the keyboard is a part of. A function key may come in several reads, and contain a `q`.
#[derive(Clone, Copy, Debug, Default)]
enum Keys {
    #[default]
    Plain,
    /// Behind an escape.
    Escape,
    /// In a control sequence: parameters, and a final byte (ECMA-48, section 5.4).
    Sequence,
    /// Behind `ESC O`: one more byte.
    Single,
}

impl Keys {
    fn read(&mut self, byte: u8, pressed: &mut Pressed) {
        *self = match (*self, byte) {
            (_, 0x1b) => Keys::Escape,
            (Keys::Escape, b'[') => Keys::Sequence,
            (Keys::Escape, b'O') => Keys::Single,
            (Keys::Sequence, byte) if !(0x40..=0x7e).contains(&byte) => Keys::Sequence,
            (Keys::Sequence | Keys::Single, _) => Keys::Plain,
            (Keys::Plain | Keys::Escape, byte) => {
                pressed.quit |= matches!(byte, b'q' | b'Q');
                pressed.redraw |= byte == CTRL_L;
                Keys::Plain
            }
        }
    }
}

fn taken() -> MutexGuard<'static, Option<Taken>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the terminal, and returns how many bytes of [`ENTER`] it took at once.
fn take(tty: File) -> io::Result<usize> {
    let before = tcgetattr(&tty)?;
    let kept = memfd_create("oroshi-output", MemfdFlags::CLOEXEC)?;
    fcntl_setfl(&kept, OFlags::APPEND)?;
    let mut during = before.clone();
    during.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
    during.input_modes.remove(InputModes::IXON);
    // A run that is stopped by Ctrl-Z would leave the screen behind, and measure nothing.
    during.special_codes[SpecialCodeIndex::VSUSP] = 0;
    (during.special_codes[SpecialCodeIndex::VMIN], during.special_codes[SpecialCodeIndex::VTIME]) = (0, 0);
    let stderr = fcntl_dupfd_cloexec(io::stderr(), 3)?;
    let stdout = if io::stdout().is_terminal() { Some(fcntl_dupfd_cloexec(io::stdout(), 3)?) } else { None };
    let mut slot = taken();
    // What was typed before is not for the view.
    tcsetattr(&tty, OptionalActions::Flush, &during)?;
    let sent = send(&tty, ENTER, LEAVING);
    // From here on the terminal is given back whatever happens.
    let taken = slot.insert(Taken { tty, before, kept: kept.into(), stdout, stderr });
    dup2_stderr(&taken.kept)?;
    if taken.stdout.is_some() {
        dup2_stdout(&taken.kept)?;
    }
    Ok(sent)
}

/// Gives the terminal back, if a screen has it, and prints what was kept. Any thread may call it, at any time.
pub(crate) fn restore() {
    give_back(true);
}

/// Does the same for a process that ends at once, and does not wait for a terminal that takes nothing for a second.
///
/// Returns whether the terminal takes what is printed now.
pub(crate) fn restore_at_once() -> bool {
    give_back(false)
}

fn give_back(waits: bool) -> bool {
    // The lock is free again before anything waits for the terminal.
    let Some(Taken { tty, before, kept, stdout, stderr }) = taken().take() else { return true };
    let sent = send(&tty, LEAVE, LEAVING);
    // Nothing can be done about errors: the terminal may be gone.
    let _ = tcsetattr(&tty, OptionalActions::Now, &before);
    let _ = dup2_stderr(&stderr);
    if let Some(stdout) = stdout {
        let _ = dup2_stdout(&stdout);
    }
    if sent < LEAVE.len() && !waits {
        return false;
    }
    // What is printed after this waits for the terminal as well.
    let _ = io::stderr().write_all(&LEAVE[sent..]);
    let mut bytes = vec![0; 1 << 16];
    let mut at = 0;
    while let Ok(n @ 1..) = kept.read_at(&mut bytes, at) {
        if io::stderr().write_all(&bytes[..n]).is_err() {
            break;
        }
        at += n as u64;
    }
    true
}

/// Writes to a terminal that does not block; returns how many bytes it took. A terminal that is gone takes all.
fn send(mut tty: &File, bytes: &[u8], within: Duration) -> usize {
    let until = Instant::now() + within;
    let mut sent = 0;
    while sent < bytes.len() {
        match tty.write(&bytes[sent..]) {
            Ok(n @ 1..) => sent += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() || !is_writable(tty, left) {
                    return sent;
                }
            }
            _ => return bytes.len(),
        }
    }
    sent
}

fn is_writable(tty: impl AsFd, within: Duration) -> bool {
    let mut fds = [PollFd::new(&tty, PollFlags::OUT)];
    let within = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    match poll(&mut fds, Some(&within)) {
        Ok(ready) => ready > 0,
        Err(error) => error == rustix::io::Errno::INTR,
    }
}

impl Backend for Screen {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        write_cells(&mut self.out, content, self.colours)
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.out.extend_from_slice(b"\x1b[?25l");
        Ok(())
    }

    /// Does nothing: the cursor comes back with the terminal.
    fn show_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    /// Does nothing: the cursor is hidden.
    fn set_cursor_position<P: Into<Position>>(&mut self, _: P) -> io::Result<()> {
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.out.extend_from_slice(b"\x1b[0m\x1b[2J");
        Ok(())
    }

    fn clear_region(&mut self, _: ClearType) -> io::Result<()> {
        self.clear()
    }

    fn size(&self) -> io::Result<Size> {
        let size = tcgetwinsize(&self.tty)?;
        // A serial line does not know.
        let known = |given, usual| if given == 0 { usual } else { given };
        Ok(Size::new(known(size.ws_col, 80), known(size.ws_row, 24)))
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send();
        Ok(())
    }
}

/// Writes cells as a terminal reads them. Each picture begins and ends with plain characters.
fn write_cells<'a>(
    out: &mut Vec<u8>,
    cells: impl Iterator<Item = (u16, u16, &'a Cell)>,
    colours: bool,
) -> io::Result<()> {
    let mut next = None;
    let mut style = (Color::Reset, Modifier::empty());
    for (x, y, cell) in cells {
        if next != Some((x, y)) {
            write!(out, "\x1b[{};{}H", y + 1, x + 1)?;
        }
        let wanted = (if colours { cell.fg } else { Color::Reset }, cell.modifier);
        if wanted != style {
            style = wanted;
            out.extend_from_slice(b"\x1b[0");
            for (modifier, code) in [(Modifier::BOLD, "1"), (Modifier::DIM, "2"), (Modifier::REVERSED, "7")] {
                if style.1.contains(modifier) {
                    write!(out, ";{code}")?;
                }
            }
            if let Some(code) = colour(style.0) {
                write!(out, ";{code}")?;
            }
            out.push(b'm');
        }
        out.extend_from_slice(cell.symbol().as_bytes());
        next = Some((x + 1, y));
    }
    if style != (Color::Reset, Modifier::empty()) {
        out.extend_from_slice(b"\x1b[0m");
    }
    Ok(())
}

/// Returns the code of a foreground colour; `None` is the terminal's own.
fn colour(colour: Color) -> Option<&'static str> {
    match colour {
        Color::Red => Some("31"),
        Color::Green => Some("32"),
        Color::Yellow => Some("33"),
        Color::Blue => Some("34"),
        Color::Magenta => Some("35"),
        Color::Cyan => Some("36"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use oroshi_testkit::pty::{OnTerminal, Outputs};
    use oroshi_testkit::{in_a_process, need};
    use ratatui_core::style::Style;

    use super::*;

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_is_told() {
        let Some(setsid) = need("a panic beneath a view", "setsid") else { return };
        let mut command = in_a_process(&[setsid.to_str().unwrap(), "--ctty"], "screen::tests::panics_beneath_a_screen");
        command.env("TERM", "xterm");
        let mut terminal = OnTerminal::start(command, Outputs::Both, (80, 24));
        assert!(!terminal.ends().success());
        let printed = terminal.printed();
        let (before, after) = printed.split_once("\x1b[?1049l").expect("the screen is left");
        assert!(before.contains("\x1b[?1049h") && after.contains("it went wrong"), "{printed:?}");
        assert!(after.contains("said meanwhile") && !before.contains("said meanwhile"), "{printed:?}");
    }

    #[test]
    #[ignore = "run by a_panic_gives_the_terminal_back_before_it_is_told"]
    fn panics_beneath_a_screen() {
        crate::end_with_a_panic();
        let _screen = Screen::open().unwrap();
        io::stderr().write_all(b"said meanwhile\n").unwrap();
        panic!("it went wrong");
    }

    #[test]
    fn neighbours_need_no_move_and_equal_styles_no_change() {
        let cell = |symbol: &'static str, style: Style| {
            let mut cell = Cell::new(symbol);
            cell.set_style(style);
            cell
        };
        let red = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
        let cells = [cell("a", Style::new()), cell("█", red), cell("b", red), cell("c", Style::new())];
        let placed = || [(0, 0), (1, 0), (2, 0), (0, 4)].into_iter().zip(&cells).map(|((x, y), cell)| (x, y, cell));
        let mut out = Vec::new();
        write_cells(&mut out, placed(), true).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "\x1b[1;1Ha\x1b[0;1;31m█b\x1b[5;1H\x1b[0mc");
        let mut out = Vec::new();
        write_cells(&mut out, placed(), false).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "\x1b[1;1Ha\x1b[0;1m█b\x1b[5;1H\x1b[0mc", "NO_COLOR");
    }

    #[test]
    fn q_is_told_from_function_keys() {
        let pressed = |bytes: &[u8]| {
            let (mut keys, mut pressed) = (Keys::default(), Pressed::default());
            bytes.iter().for_each(|&byte| keys.read(byte, &mut pressed));
            pressed
        };
        for keys in ["q", "xQ", "\x1bOPq", "\x1b[1;2Qq", "\x1b[Aq", "\x1bxq", "\x1bq"] {
            assert_eq!(pressed(keys.as_bytes()), Pressed { quit: true, redraw: false }, "{keys:?}");
        }
        for keys in ["", "x", "\x1bOQ", "\x1bOq", "\x1b[1;2Q", "\x1b", "\x1b[", "\x1b[1;", "\x1b\x1bOQ"] {
            assert_eq!(pressed(keys.as_bytes()), Pressed::default(), "{keys:?}");
        }
        assert_eq!(pressed(b"\x0c"), Pressed { quit: false, redraw: true });
    }

    #[test]
    fn giving_back_what_was_not_taken_does_nothing() {
        restore();
    }
}
