//! Reports an experiment's events and warnings to its follower.

use std::collections::BTreeSet;

use crate::doubts;
use crate::follow::{Event, ExperimentObserver};
use crate::plan::Experiment;

/// The follower, and the warnings that it has received.
pub(super) struct Reporter<'a> {
    experiment: &'a Experiment,
    follow: &'a mut dyn ExperimentObserver,
    /// Kinds of warnings that the follower has received.
    told: BTreeSet<String>,
    troubles: Vec<String>,
}

impl<'a> Reporter<'a> {
    pub(super) fn new(experiment: &'a Experiment, follow: &'a mut dyn ExperimentObserver) -> Self {
        Self { experiment, follow, told: BTreeSet::new(), troubles: Vec::new() }
    }

    pub(super) fn event(&mut self, event: Event<'_>) {
        self.follow.event(self.experiment, event);
    }

    pub(super) fn cancelled(&mut self) -> bool {
        self.follow.cancelled()
    }

    pub(super) fn follow(&mut self) -> &mut dyn ExperimentObserver {
        self.follow
    }

    /// Reports a run's warnings, each kind once in an experiment.
    pub(super) fn warn(&mut self, warnings: &[String]) {
        for warning in warnings {
            if self.told.insert(doubts::shape(warning)) {
                self.event(Event::Warning(warning));
            }
        }
    }

    /// Reports a problem that ends nothing, such as a server that did not stop in order. The result lists it.
    pub(super) fn trouble(&mut self, text: String) {
        if !self.troubles.contains(&text) {
            self.event(Event::Warning(&text));
            self.troubles.push(text);
        }
    }

    pub(super) fn into_troubles(self) -> Vec<String> {
        self.troubles
    }
}
