//! The progress of an experiment, for a follower.

use std::time::Duration;

use oroshi_bench::Observer;

use crate::plan::{Cell, Experiment};

/// A step of an experiment. Reported before it happens, except [`Event::Ran`].
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A cell begins.
    Cell {
        /// Its index, from 0.
        index: usize,
        /// The cell.
        cell: &'a Cell,
    },
    /// A server starts or stops, which may take a moment.
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
        /// The block, from 0; `None` while rate or lengths are being determined.
        block: Option<usize>,
    },
    /// A run ended.
    Ran {
        /// Its cell, from 0.
        cell: usize,
        /// Its variant, from 0.
        variant: usize,
        /// Half-width of the widest primary interval so far, as a share; `None` before there is one.
        precision: Option<f64>,
        /// Time since the experiment began.
        elapsed: Duration,
        /// The minimum and maximum time for the rest, as estimated so far.
        left: (Duration, Duration),
    },
    /// Something makes the figures doubtful. The result lists it too.
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

/// Follows an experiment.
pub trait ExperimentObserver {
    /// Receives a step.
    fn event(&mut self, experiment: &Experiment, event: Event<'_>) {
        let _ = (experiment, event);
    }
    /// Asked some ten times per second and between steps: whether to end now.
    fn cancelled(&mut self) -> bool {
        false
    }
    /// Returns the observer of bench runs. Its `cancelled` must agree with this one's.
    fn bench(&mut self) -> &mut dyn Observer;
}
