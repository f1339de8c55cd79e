//! A terminal for a command: what it shows, and in which state it is.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::wait_for;

/// A command on a terminal of its own. Dropping it kills the command.
#[derive(Debug)]
pub struct OnTerminal {
    child: Child,
    keyboard: File,
    /// The command's side, for its state.
    terminal: Option<OwnedFd>,
    before: Termios,
    printed: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

/// Which of a command's outputs are the terminal; the others stay as the command has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    /// Standard output and standard error.
    Both,
    /// Standard error alone.
    Errors,
}

impl OnTerminal {
    /// Starts a command on a terminal of this size, which is its controlling one. `command` is to be
    /// `setsid --ctty COMMAND...`, of util-linux.
    #[track_caller]
    pub fn start(mut command: Command, outputs: Outputs, (columns, rows): (u16, u16)) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let keyboard = openpt(flags).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let terminal = ioctl_tiocgptpeer(&keyboard, flags).unwrap();
        let keyboard = File::from(keyboard);
        tcsetwinsize(&keyboard, size(columns, rows)).unwrap();
        let before = tcgetattr(&terminal).unwrap();
        command.stdin(terminal.try_clone().unwrap()).stderr(terminal.try_clone().unwrap());
        if outputs == Outputs::Both {
            command.stdout(terminal.try_clone().unwrap());
        }
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let printed = Arc::<Mutex<Vec<u8>>>::default();
        let reader = {
            let (mut from, to) = (keyboard.try_clone().unwrap(), Arc::clone(&printed));
            thread::spawn(move || {
                let mut bytes = [0; 1 << 16];
                // The error comes when nobody has the command's side any more.
                while let Ok(n @ 1..) = from.read(&mut bytes) {
                    to.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&bytes[..n]);
                }
            })
        };
        Self { child, keyboard, terminal: Some(terminal), before, printed, reader: Some(reader) }
    }

    /// Types these keys.
    pub fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Changes the size of the terminal, columns and rows.
    pub fn resize(&self, (columns, rows): (u16, u16)) {
        tcsetwinsize(&self.keyboard, size(columns, rows)).unwrap();
    }

    /// Sends the command a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// All that was printed so far, with its control sequences.
    #[must_use]
    pub fn printed(&self) -> String {
        text(&self.printed)
    }

    /// Waits until this text stands somewhere on the screen, and returns the screen.
    #[track_caller]
    pub fn shows(&self, text: &str) -> Vec<String> {
        let screen = || Screen::of(&self.printed()).lines();
        wait_for(
            || format!("`{text}` on\n{}", screen().join("\n")),
            || Some(screen()).filter(|lines| lines.iter().any(|line| line.contains(text))),
        )
    }

    /// The state of the terminal, and that from before the command.
    #[must_use]
    pub fn states(&self) -> (Termios, Termios) {
        (tcgetattr(self.terminal.as_ref().unwrap()).unwrap(), self.before.clone())
    }

    /// Waits for the end of the command, and for the rest of its output. Panics if the terminal is not as before.
    #[track_caller]
    pub fn ends(&mut self) -> ExitStatus {
        let printed = Arc::clone(&self.printed);
        let status = wait_for(|| format!("the end of\n{}", text(&printed)), || self.child.try_wait().unwrap());
        let (now, before) = self.states();
        assert_eq!(format!("{now:?}"), format!("{before:?}"), "the terminal is not as before");
        drop(self.terminal.take());
        self.reader.take().unwrap().join().unwrap();
        status
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(printed: &Mutex<Vec<u8>>) -> String {
    String::from_utf8_lossy(&printed.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// What a terminal shows after some text: characters, lines, moves, clearing and the other screen.
#[derive(Debug, Default)]
struct Screen {
    cells: Vec<Vec<char>>,
    x: usize,
    y: usize,
}

impl Screen {
    fn of(text: &str) -> Self {
        let mut screen = Self::default();
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            match c {
                '\x1b' => {
                    let mut sequence = String::new();
                    // The last one of a sequence is a letter.
                    for c in rest.by_ref() {
                        sequence.push(c);
                        if c.is_ascii_alphabetic() {
                            break;
                        }
                    }
                    screen.control(&sequence);
                }
                '\r' => screen.x = 0,
                '\n' => screen.y += 1,
                c => screen.put(c),
            }
        }
        screen
    }

    fn control(&mut self, sequence: &str) {
        let numbers = sequence.trim_start_matches('[').trim_end_matches(|c: char| c.is_ascii_alphabetic());
        match sequence.chars().last() {
            Some('H') => {
                let mut places = numbers.split(';').map(|number| number.parse().unwrap_or(1_usize) - 1);
                (self.y, self.x) = (places.next().unwrap_or(0), places.next().unwrap_or(0));
            }
            Some('J') => self.cells.clear(),
            Some('h' | 'l') if numbers == "?1049" => *self = Self::default(),
            _ => {}
        }
    }

    fn put(&mut self, c: char) {
        if self.cells.len() <= self.y {
            self.cells.resize(self.y + 1, Vec::new());
        }
        let line = &mut self.cells[self.y];
        if line.len() <= self.x {
            line.resize(self.x + 1, ' ');
        }
        line[self.x] = c;
        self.x += 1;
    }

    fn lines(&self) -> Vec<String> {
        self.cells.iter().map(|line| line.iter().collect()).collect()
    }
}
