//! Following an experiment while it lasts.

use std::time::Duration;

use oroshi_bench::Observer;

use crate::plan::{Cell, Experiment};

/// What an experiment is at. Told before it happens, but for [`Event::Ran`].
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A cell begins.
    Cell {
        /// Which, from 0.
        index: usize,
        /// The cell.
        cell: &'a Cell,
    },
    /// A server is started, or stopped, and it may take a moment.
    Starting {
        /// Its name.
        server: &'a str,
    },
    /// A run begins.
    Run {
        /// Its cell, from 0.
        cell: usize,
        /// Its variant, from 0.
        variant: usize,
        /// The block, from 0; `None` while rate or length of the runs are being found.
        block: Option<usize>,
    },
    /// A run is over.
    Ran {
        /// Its cell, from 0.
        cell: usize,
        /// Its variant, from 0.
        variant: usize,
        /// Half-width of the widest primary interval so far, as a share; `None` before there is one.
        precision: Option<f64>,
        /// Time since the experiment began.
        elapsed: Duration,
        /// The least time that the rest will take, and the most, as far as can be told by now.
        left: (Duration, Duration),
    },
    /// Something makes the figures doubtful; it is in the result too.
    Warning(&'a str),
    /// A variant was given up.
    Failed {
        /// Its cell, from 0.
        cell: usize,
        /// Its name.
        variant: &'a str,
        /// Why.
        why: &'a str,
    },
}

/// Somebody who follows an experiment.
pub trait Follow {
    /// Told what it is at.
    fn event(&mut self, experiment: &Experiment, event: Event<'_>) {
        let _ = (experiment, event);
    }
    /// Asked some ten times per second, and between any two steps: whether it should end now.
    fn cancelled(&mut self) -> bool {
        false
    }
    /// Who follows the bench run under way. Its `cancelled` must say the same as ours.
    fn bench(&mut self) -> &mut dyn Observer;
}
