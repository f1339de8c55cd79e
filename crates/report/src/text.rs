//! Results as texts for people: what a terminal shows. The caller says how wide it is, and whether it has colours.

mod against;
mod agents;
mod bench;
mod history;
mod lab;
mod scenario;
mod subscribe;

pub use against::against;
pub use bench::bench;
pub use history::{checked, history};
pub use lab::{asked, lab};
pub(crate) use lab::{cell_ratios, how, own_figure, reasons};
pub use subscribe::subscribe;
