//! Results as texts for people: what a terminal shows. The caller says how wide it is, and whether it has colours.

mod against;
mod agents;
mod bench;
mod lab;
mod scenario;
mod subscribe;

pub use against::against;
pub use bench::bench;
pub use lab::{asked, lab};
pub(crate) use lab::{cell_ratios, how, own_figure, reasons};
pub use subscribe::subscribe;
