//! The servers of a cell. All run while it is measured; some plans restart them from time to time.

use oroshi_words::with_causes;

use super::launcher::{Launcher, Writer};
use super::reporter::Reporter;
use crate::follow::Event;
use crate::plan::{Cell, Server};
use crate::result::Program;
use crate::serving::{Running, StartError};

/// Lines of a server's output that a failure shows.
pub(super) const LINES: usize = 20;

/// Why there is no outcome.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stopped {
    /// The user ended the experiment.
    Cancelled,
    /// It failed.
    Failed {
        /// Why.
        why: String,
        /// The last lines of the failed process's output.
        output: Vec<String>,
    },
}

impl Stopped {
    pub(super) fn failed(why: impl Into<String>) -> Self {
        Self::Failed { why: why.into(), output: Vec::new() }
    }
}

/// The servers of a cell.
#[derive(Debug)]
pub(super) struct Servers<'a> {
    index: usize,
    cell: &'a Cell,
    /// By their indices in [`Cell::servers`]; `None` while a server is down.
    running: Vec<Option<Running>>,
    /// The files that were started last.
    programs: Vec<Option<Program>>,
}

impl<'a> Servers<'a> {
    /// The servers of a cell (from 0), all of them down.
    pub(super) fn new(index: usize, cell: &'a Cell) -> Self {
        let (running, programs) = cell.servers.iter().map(|_| (None, None)).unzip();
        Self { index, cell, running, programs }
    }

    /// Starts a server; stops it first if it runs. A server that ends before it is ready gets a second try in another
    /// place, because another process may have taken its port in the meantime.
    pub(super) fn start(
        &mut self,
        server: usize,
        launcher: &Launcher<'_>,
        reporter: &mut Reporter<'_>,
    ) -> Result<(), Stopped> {
        self.stop(server, reporter);
        let plan = &self.cell.servers[server];
        reporter.event(Event::Starting { server: &plan.name });
        let output = launcher.output_file(self.index, self.cell, Writer::Server(server));
        let mut first = None;
        let error = loop {
            let launch = launcher.for_server(&output);
            let start = || Running::start(plan, &launch, &mut || reporter.cancelled());
            let error = match launcher.on(plan.machine, start)? {
                Ok(running) => {
                    if let Some(error) = first {
                        reporter.trouble(format!("{} was started twice: {}", plan.name, with_causes(&error)));
                    }
                    self.programs[server] = running.program().cloned();
                    self.running[server] = Some(running);
                    return Ok(());
                }
                Err(error) => error,
            };
            let (error, end) = error.split();
            if let Some(end) = end {
                reporter.trouble(format!("{}: {}", plan.name, with_causes(&end)));
            }
            match error {
                StartError::Cancelled => return Err(Stopped::Cancelled),
                error @ StartError::Ended { .. } if first.is_none() => first = Some(error),
                error => break error,
            }
        };
        let why = format!("its server {} did not start: {}", plan.name, with_causes(&error));
        Err(Stopped::Failed { why, output: error.output().to_vec() })
    }

    /// Returns the file last started as this server, if any.
    pub(super) fn program(&self, index: usize) -> Option<&Program> {
        self.programs.get(index)?.as_ref()
    }

    /// Stops a server, if it runs.
    pub(super) fn stop(&mut self, server: usize, reporter: &mut Reporter<'_>) {
        let Some(running) = self.running[server].take() else { return };
        let name = &self.cell.servers[server].name;
        reporter.event(Event::Starting { server: name });
        if let Err(error) = running.stop() {
            reporter.trouble(format!("{name}: {}", with_causes(&error)));
        }
    }

    /// Stops all of them.
    pub(super) fn stop_all(&mut self, reporter: &mut Reporter<'_>) {
        (0..self.running.len()).for_each(|server| self.stop(server, reporter));
    }

    /// A server that runs, and its plan.
    pub(super) fn get(&mut self, server: usize) -> Option<(&mut Running, &'a Server)> {
        Some((self.running[server].as_mut()?, &self.cell.servers[server]))
    }

    /// The servers that have ended by themselves, and why their variants cannot go on.
    pub(super) fn ended(&mut self) -> Vec<(usize, Stopped)> {
        let plans = &self.cell.servers;
        let ended =
            |(index, running): (usize, &mut Option<Running>)| Some((index, gone(running.as_mut()?, &plans[index])?));
        self.running.iter_mut().enumerate().filter_map(ended).collect()
    }
}

/// Says so if a server has ended by itself.
pub(super) fn gone(running: &mut Running, server: &Server) -> Option<Stopped> {
    let how = running.ended()?;
    let why = format!("its server {} ended by itself: {how}", server.name);
    Some(Stopped::Failed { why, output: running.last_lines(LINES) })
}
