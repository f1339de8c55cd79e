//! One comparison: starts its servers, runs its variants in turn, and draws the conclusions.

use std::collections::BTreeSet;
use std::time::Duration;

use oroshi_net::CpuList;

use super::launcher::{Launcher, Writer};
use super::lengths::ResponseTimes;
use super::measure::{Measured, RunSpec, measure};
use super::reporter::Reporter;
use super::servers::{Servers, Stopped};
use super::stop::{self, Progress};
use super::{Pace, lengths};
use crate::analysis::{self, Facts, no_figure};
use crate::doubts::{Machine, ProcessWatch};
use crate::follow::Event;
use crate::metric::Metric;
use crate::order::order;
use crate::plan::{Cell, Experiment, LEAST_BLOCKS, Load, Rules, Variant};
use crate::result::{CellResult, Ended, Failure, Lengthened, Program, Run, VariantResult};
use crate::{decide, disturbed};

/// The name of an agent's process.
const AGENT: &str = "oroshi";

/// A cell while it is carried out.
pub(super) struct CellRun<'a, 'e> {
    experiment: &'e Experiment,
    index: usize,
    cell: &'e Cell,
    launcher: &'a Launcher<'e>,
    reporter: &'a mut Reporter<'e>,
    machine: &'a mut Machine,
    pace: &'a mut Pace,
    servers: Servers<'e>,
    failed: Vec<Option<Failure>>,
    /// A cell that is being carried out.
    load_programs: Vec<Option<Program>>,
    runs: Vec<Run>,
    rate: Option<f64>,
    lengthened: Option<Lengthened>,
    /// Blocks in which every variant that had not failed was measured.
    blocks: usize,
    /// Blocks that measured every variant that had not failed.
    repeated: usize,
}

impl<'a, 'e> CellRun<'a, 'e> {
    pub(super) fn new(
        experiment: &'e Experiment,
        index: usize,
        launcher: &'a Launcher<'e>,
        reporter: &'a mut Reporter<'e>,
        machine: &'a mut Machine,
        pace: &'a mut Pace,
    ) -> Self {
        let cell = &experiment.cells[index];
        Self {
            experiment,
            index,
            cell,
            launcher,
            reporter,
            machine,
            pace,
            servers: Servers::new(index, cell),
            failed: vec![None; cell.variants.len()],
            load_programs: vec![None; cell.variants.len()],
            runs: Vec::new(),
            rate: None,
            lengthened: None,
            blocks: 0,
            repeated: 0,
        }
    }

    /// Blocks that were repeated.
    pub(super) fn carry_out(mut self) -> CellResult {
        self.reporter.event(Event::Cell { index: self.index, cell: self.cell });
        let ended = self.run_blocks().unwrap_or_else(|ended| ended);
        self.servers.stop_all(self.reporter);
        self.conclude(ended)
    }

    /// Runs block after block. Early ends are errors, so that `?` leaves every helper.
    fn run_blocks(&mut self) -> Result<Ended, Ended> {
        let experiment = self.experiment;
        let rules = &experiment.rules;
        let deadline = stop::deadline(rules, self.index, experiment.cells.len());
        let (mut session, mut block, mut again) = (0, 0, false);
        loop {
            let now = match rules.blocks_per_start {
                Some(blocks) if !self.cell.servers.is_empty() => block / blocks.max(1),
                _ => 0,
            };
            if (block == 0 || now != session) && !again {
                session = now;
                self.start(block)?;
            }
            if block == 0 && !again {
                self.find_lengths()?;
                self.find_rate()?;
            }
            let turns = order(self.cell.variants.len(), self.index, block, rules.seed);
            let mut place = 0;
            for variant in turns {
                if self.failed[variant].is_some() {
                    continue;
                }
                let at_s = self.pace.begun.elapsed().as_secs_f64();
                if let Some(mut measured) = self.measure(variant, Some(block), false)? {
                    self.load_programs[variant] = measured.program.take();
                    self.runs.push(as_run(measured, variant, block, session, place, at_s));
                    self.report_run(variant);
                    place += 1;
                }
            }
            self.enough()?;
            if self.index == 0 && block == 0 {
                leave_out_score(&mut self.pace.metrics, experiment.score_if_any, &self.runs);
            }
            let over = deadline.is_some_and(|deadline| self.pace.begun.elapsed() >= deadline);
            again = !over && is_to_be_repeated(&self.runs, rules, self.pace.metrics[0], block, self.repeated);
            if again {
                // The machine's state decides, not the figures.
                self.runs.retain(|run| run.block != block);
                self.repeated += 1;
                continue;
            }
            self.blocks += 1;
            self.give_up_without_figure(block)?;
            let alive: Vec<bool> = self.failed.iter().map(Option::is_none).collect();
            let primary = self.pace.metrics[0];
            if let Some(ended) = decide::ended(rules, primary, &self.runs, &alive, self.blocks, over) {
                return Ok(ended);
            }
            block += 1;
        }
    }

    /// Starts all servers, anew if they are up.
    fn start(&mut self, block: usize) -> Result<(), Ended> {
        self.servers.stop_all(self.reporter);
        for server in 0..self.cell.servers.len() {
            if !self.is_wanted(server) {
                continue;
            }
            if self.reporter.cancelled() {
                return Err(Ended::Interrupted);
            }
            if let Err(stopped) = self.servers.start(server, self.launcher, self.reporter) {
                self.give_up_server(server, block, stopped)?;
            }
        }
        self.enough()
    }

    /// Starts all servers; restarts those that run.
    fn find_lengths(&mut self) -> Result<(), Ended> {
        let cell = self.cell;
        if cell.rate_share.is_some() {
            return Ok(());
        }
        let (mut slowest, mut drafts) = (ResponseTimes::default(), Vec::new());
        for variant in 0..cell.variants.len() {
            let Load::Bench(draft) = &cell.variants[variant].load else { continue };
            if self.failed[variant].is_some() || !lengths::are_free(draft) {
                continue;
            }
            if let Some(measured) = self.measure(variant, None, true)?
                && let Some(record) = measured.record
            {
                let summary = &record.latency.response.summary;
                slowest.mean = slowest.mean.max(Duration::from_nanos(summary.mean_ns as u64));
                slowest.longest = slowest.longest.max(Duration::from_nanos(summary.max_ns));
                drafts.push(&**draft);
            }
        }
        let experiment = self.experiment;
        let (variants, cells) = (cell.variants.len(), experiment.cells.len());
        self.lengthened = lengths::lengthened(&drafts, slowest, &experiment.rules, variants, cells);
        // Sends each variant some requests, if the user set no length, and makes runs long enough for the slowest.
        self.pace.runs = self.pace.runs.saturating_sub(drafts.len());
        self.enough()
    }

    /// Their length says nothing about the time left.
    fn find_rate(&mut self) -> Result<(), Ended> {
        let Some(share) = self.cell.rate_share else { return Ok(()) };
        let mut least: Option<f64> = None;
        for variant in 0..self.cell.variants.len() {
            if self.failed[variant].is_some() || !matches!(self.cell.variants[variant].load, Load::Bench(_)) {
                continue;
            }
            if let Some(measured) = self.measure(variant, None, false)? {
                let rate = measured.figures.get(&Metric::Rps).copied();
                least = rate.map(|rate| least.map_or(rate, |least| least.min(rate))).or(least);
            }
        }
        self.rate = least.map(|least| three_digits(share * least));
        self.enough()
    }

    /// Runs each load once, and takes the configured share of the least rate.
    fn measure(&mut self, variant: usize, block: Option<usize>, probe: bool) -> Result<Option<Measured>, Ended> {
        // Makes one run; `None` if the variant failed in it and was given up.
        for (server, stopped) in self.servers.ended() {
            self.give_up_server(server, block.unwrap_or(0), stopped)?;
        }
        if self.failed[variant].is_some() {
            return Ok(None);
        }
        if self.reporter.cancelled() {
            return Err(Ended::Interrupted);
        }
        self.reporter.event(Event::Run { cell: self.index, variant, block });
        let asked = &self.cell.variants[variant];
        let spec = RunSpec {
            variant: asked,
            output: self.launcher.output_file(self.index, self.cell, Writer::Load(variant)),
            server: asked.server.and_then(|server| self.servers.get(server)),
            rate: self.rate,
            lengths: self.lengthened.as_ref(),
            probe,
        };
        let look = ProcessWatch::begin();
        let measured = measure(spec, self.launcher, self.reporter.follow());
        self.pace.runs += 1;
        match measured {
            Ok(mut measured) => {
                // Servers that ended while others were measured.
                if block.is_some() {
                    let rules = &self.experiment.rules;
                    // Agents on this machine are the load, as this process is otherwise.
                    let agents = asked.agents.iter().map(|_| AGENT.to_owned()).collect();
                    let known = [rules.processes.clone(), agents].concat();
                    let known = measured.servers.take().map(|servers| [servers, known].concat());
                    let cpus = self.cpus();
                    let here = self.machine.ran(look, cpus.as_ref(), known.as_deref(), measured.clock);
                    measured.machine = disturbed::worst(here, measured.record.as_deref());
                    measured.warnings.extend(measured.machine.as_ref().and_then(disturbed::words));
                    self.reporter.warn(&measured.warnings);
                }
                Ok(Some(measured))
            }
            Err(stopped) => {
                let block = block.unwrap_or(0);
                match asked.server.filter(|&server| self.servers.ended().iter().any(|(gone, _)| *gone == server)) {
                    Some(server) => self.give_up_server(server, block, stopped)?,
                    None => self.give_up(variant, block, stopped)?,
                }
                Ok(None)
            }
        }
    }

    /// Runs that only find the rate are not in the result.
    fn cpus(&self) -> Option<CpuList> {
        let (servers, load) = (self.experiment.server_cpus.as_ref(), self.experiment.load_cpus.as_ref());
        if self.cell.servers.is_empty() {
            return None;
        }
        let both: BTreeSet<usize> = servers?.iter().chain(load?.iter()).collect();
        both.iter().map(usize::to_string).collect::<Vec<_>>().join(",").parse().ok()
    }

    fn report_run(&mut self, variant: usize) {
        let experiment = self.experiment;
        let rules = &experiment.rules;
        let precision = self.precision(self.pace.metrics[0], rules.precision);
        let later = experiment.cells[self.index + 1..].iter().map(|cell| cell.variants.len());
        let progress = Progress {
            elapsed: self.pace.begun.elapsed(),
            runs: self.pace.runs,
            in_cell: self.runs.len(),
            variants: self.failed.iter().filter(|failed| failed.is_none()).count(),
            precise: precision.is_some_and(|precision| precision <= rules.precision),
            later: later.collect(),
        };
        let left = stop::left(rules, &progress);
        self.reporter.event(Event::Ran { cell: self.index, variant, precision, elapsed: progress.elapsed, left });
    }

    fn precision(&self, primary: Metric, asked: f64) -> Option<f64> {
        let alive: Vec<bool> = self.failed.iter().map(Option::is_none).collect();
        analysis::precision(primary, &self.runs, &alive, asked)
    }

    /// Returns the CPUs that both sides of a run may use; `None`: all, or unknown.
    fn give_up_server(&mut self, server: usize, block: usize, stopped: Stopped) -> Result<(), Ended> {
        let all = self.is_for_all(server);
        for variant in 0..self.cell.variants.len() {
            if self.failed[variant].is_none() && (all || self.cell.variants[variant].server == Some(server)) {
                self.give_up(variant, block, stopped.clone())?;
            }
        }
        self.servers.stop(server, self.reporter);
        Ok(())
    }

    /// Gives up all variants of a server. If no variant uses it directly, gives up all, because any of them may need
    /// it.
    fn give_up_without_figure(&mut self, block: usize) -> Result<(), Ended> {
        if self.blocks != LEAST_BLOCKS {
            return Ok(());
        }
        let primary = self.pace.metrics[0];
        for (index, variant) in self.cell.variants.iter().enumerate() {
            let mut runs = self.runs.iter().filter(|run| run.variant == index);
            if self.failed[index].is_some() || runs.any(|run| run.figures.contains_key(&primary)) {
                continue;
            }
            let why = no_figure(primary, &Facts::of(&variant.name, &self.runs, index));
            let why = format!("{} is compared first, and after {LEAST_BLOCKS} blocks {why}", primary.label());
            self.give_up(index, block, Stopped::failed(why))?;
        }
        self.enough()
    }

    fn give_up(&mut self, variant: usize, block: usize, stopped: Stopped) -> Result<(), Ended> {
        let Stopped::Failed { why, output } = stopped else { return Err(Ended::Interrupted) };
        let name = &self.cell.variants[variant].name;
        self.reporter.event(Event::Failed { cell: self.index, variant: name, why: &why });
        self.failed[variant] = Some(Failure { block, why, output });
        // Gives up variants none of whose runs has the primary figure: more runs would bring none, and the cell would
        // never be precise.
        if let Some(server) = self.cell.variants[variant].server.filter(|&server| !self.is_wanted(server)) {
            self.servers.stop(server, self.reporter);
        }
        Ok(())
    }

    /// An unused server only disturbs.
    fn is_for_all(&self, server: usize) -> bool {
        self.cell.variants.iter().all(|variant| variant.server != Some(server))
    }

    fn is_wanted(&self, server: usize) -> bool {
        let asked = self.cell.variants.iter().zip(&self.failed);
        let mut alive = asked.filter(|(_, failed)| failed.is_none());
        let for_all = self.is_for_all(server);
        alive.any(|(variant, _)| for_all || variant.server == Some(server))
    }

    /// Whether no variant uses this server directly: it serves the others.
    fn enough(&self) -> Result<(), Ended> {
        let alive = self.failed.iter().filter(|failed| failed.is_none()).count();
        if alive >= self.failed.len().min(2) && alive > 0 { Ok(()) } else { Err(Ended::Failed) }
    }

    /// Fails once nothing is left to compare: a comparison needs two variants that did not fail.
    fn load_words(&self, variant: &Variant) -> String {
        let more = match (&variant.load, &self.lengthened) {
            (Load::Bench(draft), Some(lengths)) => lengths::in_words(draft, lengths),
            _ => String::new(),
        };
        variant.load_words.clone() + &more
    }

    fn conclude(self, ended: Ended) -> CellResult {
        let experiment = self.experiment;
        let names: Vec<String> = self.cell.variants.iter().map(|variant| variant.name.clone()).collect();
        let alive: Vec<bool> = self.failed.iter().map(Option::is_none).collect();
        let rules = &experiment.rules;
        let comparisons = decide::comparisons(rules, &self.pace.metrics, &names, &alive, ended, &self.runs);
        let stopped_at = Some(rules.precision).filter(|_| ended == Ended::Precise);
        let alone = self.cell.variants.len() == 1;
        let variants = self.cell.variants.iter().zip(self.failed.clone()).zip(self.load_programs.clone()).enumerate();
        type Of<'a> = ((&'a Variant, Option<Failure>), Option<Program>);
        let variant = |(index, ((variant, failed), load_program)): (usize, Of<'_>)| VariantResult {
            name: variant.name.clone(),
            urls: variant.urls.clone(),
            start: variant.server.map(|server| shell_words::join(&self.cell.servers[server].start)),
            load: self.load_words(variant),
            program: variant.server.and_then(|server| self.servers.program(server).cloned()),
            load_program,
            figures: analysis::figures(&self.runs, index, stopped_at.filter(|_| alone)),
            response: None,
            failed,
        };
        CellResult {
            group: self.cell.group.clone(),
            point: self.cell.point,
            variants: variants.map(variant).collect(),
            comparisons,
            lengthened: self.lengthened,
            rate: self.rate,
            blocks: self.blocks,
            repeated: self.repeated,
            ended,
            runs: self.runs,
        }
    }
}

fn as_run(measured: Measured, variant: usize, block: usize, session: usize, place: usize, at_s: f64) -> Run {
    let Measured { figures, shift, warnings, machine, unfinished_agents, record, command, .. } = measured;
    Run {
        variant,
        block,
        session,
        place,
        at_s,
        figures,
        shift,
        warnings,
        machine,
        unfinished_agents,
        grade: None,
        record,
        command,
    }
}

/// Leaves the score out of the metrics if one of these runs has none, and it may give way.
fn leave_out_score(metrics: &mut Vec<Metric>, may: bool, runs: &[Run]) {
    if may && metrics.len() > 1 && runs.iter().any(|run| !run.figures.contains_key(&Metric::Score)) {
        metrics.retain(|metric| *metric != Metric::Score);
    }
}

/// Returns a variant's load, with the chosen lengths.
fn is_to_be_repeated(runs: &[Run], rules: &Rules, primary: Metric, block: usize, repeated: usize) -> bool {
    let minds_others = disturbed::is_sensitive(primary) && rules.disturbed < 1.0;
    let is_useless = |run: &Run| run.unfinished_agents > 0 || minds_others && disturbed::is_disturbed(run);
    repeated < rules.min_blocks.div_ceil(2) && runs.iter().any(|run| run.block == block && is_useless(run))
}

/// Rounds a rate as a user would.
fn three_digits(rate: f64) -> f64 {
    let step = 10_f64.powf(rate.abs().log10().floor() - 2.0);
    if step.is_finite() && step > 0.0 { (rate / step).round() * step } else { rate }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::MachineUse;

    #[test]
    fn disturbed_blocks_are_made_anew_for_some_times_and_only_where_it_matters() {
        let disturbed = |others| {
            let machine = Some(MachineUse { cpus: 2, others: Some(others), stolen: None });
            Run { machine, ..crate::sample::run(0, 4, &[]) }
        };
        let of = |others, repeated, primary, limit| {
            let runs = [crate::sample::run(1, 4, &[]), disturbed(others), Run { block: 3, ..disturbed(9.0) }];
            is_to_be_repeated(&runs, &Rules { disturbed: limit, ..Rules::default() }, primary, 4, repeated)
        };
        assert!(of(1.0, 0, Metric::Rps, 0.2) && of(1.0, 4, Metric::P99, 0.2));
        assert!(!of(0.1, 0, Metric::Rps, 0.2), "the block before it was, and not this one");
        assert!(!of(1.0, 5, Metric::Rps, 0.2), "half as many as there are blocks at least");
        assert!(!of(1.0, 0, Metric::Cpu, 0.2), "CPU time compares all the same");
        assert!(!of(1.0, 0, Metric::Rps, 1.0), "nobody minds");
        let short = [Run { unfinished_agents: 1, ..crate::sample::run(1, 4, &[]) }];
        let again = |primary, limit, repeated| {
            is_to_be_repeated(&short, &Rules { disturbed: limit, ..Rules::default() }, primary, 4, repeated)
        };
        assert!(again(Metric::Cpu, 1.0, 0) && again(Metric::Rps, 0.2, 4), "a run without its agents says nothing");
        assert!(!again(Metric::Rps, 0.2, 5));
    }

    #[test]
    fn a_rate_has_three_digits() {
        for (rate, rounded) in [(48_765.4, 48_800.0), (999.6, 1000.0), (12.34, 12.3), (0.0, 0.0)] {
            assert!((three_digits(rate) - rounded).abs() < 1e-9 * rounded.max(1.0), "{rate}");
        }
    }
}
