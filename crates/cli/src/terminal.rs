//! Properties of a terminal: colours, and how many characters in a line.

use std::io::IsTerminal;
use std::os::fd::AsFd;

use oroshi_report::paint::Paint;
use oroshi_report::table::WIDTH;
use rustix::termios::tcgetwinsize;

/// In less there is no room for anything.
const NARROWEST: usize = 40;

/// Colour if this output is a terminal that shows it, unless NO_COLOR is set (<https://no-color.org>).
pub(crate) fn paint(output: &impl IsTerminal) -> Paint {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if output.is_terminal() && !unwanted && !dumb { Paint::COLOURED } else { Paint::PLAIN }
}

/// Returns the number of characters in a line of this terminal, for lines that come and go. [`WIDTH`] elsewhere.
pub(crate) fn live_width(output: &impl AsFd) -> usize {
    let columns = tcgetwinsize(output).ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
    // The last column stays free: some terminals wrap a line that fills it.
    columns.unwrap_or(WIDTH).saturating_sub(1).max(1)
}

/// How many characters a line of a report may have: as many as the terminal shows, where it is one, and as `COLUMNS`
/// says elsewhere, but no more than [`WIDTH`].
pub(crate) fn width(output: &(impl IsTerminal + AsFd)) -> usize {
    let terminal =
        if output.is_terminal() { tcgetwinsize(output).ok().map(|size| usize::from(size.ws_col)) } else { None };
    let told = || std::env::var("COLUMNS").ok()?.parse().ok();
    let width = terminal.filter(|columns| *columns > 0).or_else(told);
    width.unwrap_or(WIDTH).clamp(NARROWEST, WIDTH)
}
