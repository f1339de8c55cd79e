//! Ctrl-C: once to end early and still report, twice to end at once.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use oroshi_net::Shutdown;
use tokio::runtime::Builder;

/// The exit code after Ctrl-C: 128 plus SIGINT.
pub(crate) const EXIT_CODE: u8 = 130;

/// Counts INT and TERM from now on; the second one ends the process, without any [`Temporary`] folder.
///
/// # Errors
/// If the signal handlers cannot be installed.
pub(crate) fn shutdown() -> io::Result<Shutdown> {
    let shutdown = Shutdown::on_signals()?;
    let runtime = Builder::new_current_thread().build()?;
    let second = shutdown.clone();
    thread::Builder::new().name("second-signal".into()).spawn(move || {
        runtime.block_on(second.reached(2));
        end_at_once(EXIT_CODE)
    })?;
    Ok(shutdown)
}

fn end_at_once(code: u8) -> ! {
    // Holds the lock until the process is gone, so that nobody creates another folder.
    let mut folders = folders();
    folders.drain(..).for_each(|folder| remove(&folder));
    #[cfg(feature = "tui")]
    let is_told = crate::screen::restore_at_once();
    #[cfg(not(feature = "tui"))]
    let is_told = true;
    if is_told {
        // The live line ends here.
        crate::say("");
    }
    std::process::exit(code.into())
}

/// Makes HUP and QUIT end the process in order: a view gives the terminal back first.
///
/// Without it both signals end the process as well. If there are no descriptors left, that stays so.
#[cfg(feature = "tui")]
pub(crate) fn end_on_hangup() {
    use std::future::poll_fn;
    use std::task::Poll;

    use tokio::signal::unix::{SignalKind, signal};

    let Ok(runtime) = Builder::new_current_thread().enable_io().build() else { return };
    let context = runtime.enter();
    // If HUP is ignored (`nohup`), the run goes on when the terminal is gone.
    let is_ignored = oroshi_net::process::ignores(rustix::process::Signal::HUP);
    let hangup = if is_ignored { None } else { signal(SignalKind::hangup()).ok() };
    let quit = signal(SignalKind::quit());
    drop(context);
    let (mut hangup, Ok(mut quit)) = (hangup, quit) else { return };
    // Without the thread, the signals would do nothing; with so few descriptors and threads nothing else works either.
    let _ = thread::Builder::new().name("hangup".into()).spawn(move || {
        let signal = runtime.block_on(poll_fn(|cx| {
            if hangup.as_mut().is_some_and(|hangup| hangup.poll_recv(cx).is_ready()) {
                Poll::Ready(SignalKind::hangup())
            } else {
                quit.poll_recv(cx).map(|_| SignalKind::quit())
            }
        }));
        end_at_once(128 + signal.as_raw_value() as u8)
    });
}

/// A temporary folder or file, removed when this is dropped.
///
/// A second signal ends the process without dropping anything, and removes it too.
#[derive(Debug)]
pub(crate) struct Temporary(PathBuf);

static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

impl Temporary {
    /// Registers a folder or a file that was just created.
    pub(crate) fn new(path: PathBuf) -> Self {
        folders().push(path.clone());
        Self(path)
    }

    /// Makes a folder that only this user can read, in the system's folder for temporary files. `what` is a part of its
    /// name.
    ///
    /// # Errors
    /// The path that could not be made, and why.
    pub(crate) fn folder(what: &str) -> Result<Self, (PathBuf, io::Error)> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("oroshi-{what}-{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self::new(path)),
                // Another process with the same number left it behind.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err((path, error)),
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Keeps the folder or file.
    pub(crate) fn keep(self) {
        folders().retain(|folder| *folder != self.0);
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let mut folders = folders();
        if let Some(place) = folders.iter().position(|folder| *folder == self.0) {
            remove(&folders.swap_remove(place));
        }
    }
}

fn folders() -> MutexGuard<'static, Vec<PathBuf>> {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remove(folder: &Path) {
    // Errors are ignored: the user can remove what is left.
    let _ = if folder.is_dir() { fs::remove_dir_all(folder) } else { fs::remove_file(folder) };
}
