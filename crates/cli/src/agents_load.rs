//! Loads of experiments that agents carry out: flags of `compare`, keys of `lab`.

use std::sync::Arc;

use clap::ArgMatches;
use oroshi_lab::plan::AgentsLoad;

use crate::bench::AgentsArgs;
use crate::problems::Problems;

/// Agents, how many they are, and what reports call them: `, on 4 agents`.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) load: Arc<dyn AgentsLoad>,
    pub(crate) count: usize,
    pub(crate) words: String,
}

/// Reads the agents of a load. `matches` are all flags of the load, which travel to the agents. `None` after a mistake,
/// or if no agents are named.
#[cfg(feature = "agents")]
pub(crate) fn read(args: &AgentsArgs, matches: &ArgMatches, problems: &mut Problems) -> Option<Found> {
    real::read(args, matches, problems)
}

/// Refuses agents, as this build has none.
#[cfg(not(feature = "agents"))]
pub(crate) fn read(args: &AgentsArgs, _: &ArgMatches, problems: &mut Problems) -> Option<Found> {
    use crate::absent::{Absent, NEXT};

    if *args != AgentsArgs::default() {
        let absent = Absent { what: "`--agents`".to_owned(), feature: "agents" };
        problems.add("--agents", format!("{absent}: {NEXT}"));
    }
    None
}

#[cfg(feature = "agents")]
mod real {
    use std::sync::Arc;
    use std::time::Duration;

    use clap::ArgMatches;
    use oroshi_agents::lead::{LeadError, LeadObserver};
    use oroshi_agents::wire::{Job, random};
    use oroshi_bench::part::{PartProgress, Parts};
    use oroshi_bench::{Draft, Observer, Part, Progress, Record, Whole, push};
    use oroshi_lab::plan::{AgentsError, AgentsLoad};
    use oroshi_words::{units, with_causes};

    use super::Found;
    use crate::bench::{
        Agents, AgentsArgs, opening, pack_flags, pack_journeys, pack_stamps, with_journeys, with_run,
        with_subscriptions,
    };
    use crate::problems::Problems;

    /// A load whose runs differ in their URLs, rate and lengths.
    #[derive(Debug)]
    struct OnAgents {
        agents: Agents,
        job: Job,
    }

    pub(super) fn read(args: &AgentsArgs, matches: &ArgMatches, problems: &mut Problems) -> Option<Found> {
        if *args == AgentsArgs::default() {
            return None;
        }
        let agents = Agents::read(args, problems)?;
        let job = pack_flags(matches).map_err(|mistakes| {
            mistakes.into_iter().for_each(|mistake| problems.add("--agents", mistake));
        });
        let count = agents.wanted.count();
        let words = format!(", on {}", units::plural(count as u64, "agent"));
        Some(Found { load: Arc::new(OnAgents { agents, job: job.ok()? }), count, words })
    }

    impl AgentsLoad for OnAgents {
        fn run(&self, draft: Draft, observer: &mut dyn Observer) -> Result<Record, AgentsError> {
            let draft = self.shared(draft);
            let mut job = match &draft.journeys {
                Some(_) => with_journeys(&self.job, &draft),
                None => with_run(&self.job, &draft),
            };
            let plan = draft.plan().map_err(|problems| AgentsError::Failed(with_causes(&problems)))?;
            job.threads = plan.threads;
            if let Some(journeys) = &plan.journeys {
                pack_journeys(&mut job, &**journeys).map_err(|error| AgentsError::Failed(with_causes(&error)))?;
            }
            let opening = plan.timeout;
            self.lead(random(), job, Whole::new(plan), opening, observer)
        }

        fn subscribe(&self, draft: push::Draft, observer: &mut dyn Observer) -> Result<push::Record, AgentsError> {
            let draft = push::Draft { base: self.shared(draft.base), ..draft };
            let mut job = with_subscriptions(&self.job, &draft);
            let plan = draft.plan().map_err(|problems| {
                let each: Vec<String> = problems.iter().map(ToString::to_string).collect();
                AgentsError::Failed(each.join("; "))
            })?;
            let (run, opening) = (random(), opening(&plan));
            job.threads = plan.connect.threads;
            pack_stamps(&mut job, run);
            self.lead(run, job, push::Whole::new(plan), opening, observer)
        }
    }

    impl OnAgents {
        /// The load as that of all agents.
        fn shared(&self, draft: Draft) -> Draft {
            let part = Some(Part { index: 0, of: self.agents.wanted.count() });
            // The CPUs of an experiment are those of this machine. Agents get them by the load's own flag only.
            Draft { part, cpus: None, ..draft }
        }

        fn lead<W: Parts>(
            &self,
            run: u64,
            job: Job,
            whole: W,
            opening: Duration,
            observer: &mut dyn Observer,
        ) -> Result<W::Record, AgentsError> {
            let bus = self.agents.connect().map_err(|error| AgentsError::Failed(with_causes(&error)))?;
            let record = self.agents.lead(&bus, run, job, whole, opening, &mut Followed(observer));
            record.map_err(|error| match error {
                LeadError::Cancelled => AgentsError::Cancelled,
                error => AgentsError::Failed(with_causes(&error)),
            })
        }
    }

    /// Shows the whole. Of each agent the record tells.
    struct Followed<'o>(&'o mut dyn Observer);

    impl Observer for Followed<'_> {
        fn progress(&mut self, progress: &Progress) {
            self.0.progress(progress);
        }

        fn cancelled(&mut self) -> bool {
            self.0.cancelled()
        }
    }

    impl LeadObserver for Followed<'_> {
        fn agents(&mut self, _: &[(String, PartProgress, bool)]) {}

        fn note(&mut self, text: &str) {
            self.0.warning(text);
        }
    }
}
