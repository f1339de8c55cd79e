//! Ctrl-C: once to end early and still report, twice to end at once.

use std::io;
use std::thread;

use oroshi_net::Shutdown;
use tokio::runtime::Builder;

/// The exit code of what Ctrl-C has ended: 128 and SIGINT.
pub(crate) const EXIT_CODE: u8 = 130;

/// Counts INT and TERM from now on; the second one ends the process.
///
/// # Errors
/// When the signals cannot be taken.
pub(crate) fn shutdown() -> io::Result<Shutdown> {
    let shutdown = Shutdown::on_signals()?;
    let runtime = Builder::new_current_thread().build()?;
    let second = shutdown.clone();
    thread::Builder::new().name("second-signal".into()).spawn(move || {
        runtime.block_on(second.reached(2));
        // The live line ends here.
        crate::say("");
        std::process::exit(EXIT_CODE.into())
    })?;
    Ok(shutdown)
}
