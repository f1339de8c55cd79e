//! The servers of a cell: all of them are up while it is measured, and started anew from time to time.

use std::path::PathBuf;

use super::{Stage, in_words};
use crate::follow::Event;
use crate::plan::{Cell, Server};
use crate::serving::{Launch, Running, StartError};

/// Lines of a server's output that go with its end.
pub(super) const LINES: usize = 20;

/// Why something did not come to a result.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stopped {
    /// The experiment is to end now.
    Cancelled,
    /// It failed.
    Failed {
        /// Why.
        why: String,
        /// The last lines of what had to do with it.
        output: Vec<String>,
    },
}

impl Stopped {
    pub(super) fn failed(why: impl Into<String>) -> Self {
        Self::Failed { why: why.into(), output: Vec::new() }
    }
}

/// By their indices in [`Cell::servers`]; `None` where one is not up.
#[derive(Debug, Default)]
pub(super) struct Servers {
    running: Vec<Option<Running>>,
}

impl Servers {
    /// Starts one server, after it was stopped if it is up.
    pub(super) fn start(&mut self, stage: &mut Stage<'_>, cell: usize, index: usize) -> Result<(), Stopped> {
        let servers = &stage.experiment.cells[cell].servers;
        self.stop(stage, cell, index);
        self.running.resize_with(servers.len(), || None);
        let server = &servers[index];
        stage.event(Event::Starting { server: &server.name });
        let output = output_file(stage, cell, &server.name);
        let launch = Launch {
            keeper: &stage.tools.keeper,
            cpus: stage.experiment.server_cpus.as_ref(),
            output: &output,
            values: &stage.values,
        };
        match Running::start(server, &launch, &mut || stage.follow.cancelled()) {
            Ok(running) => self.running[index] = Some(running),
            Err(StartError::Cancelled) => return Err(Stopped::Cancelled),
            Err(error) => {
                let why = format!("its server {} did not start: {}", server.name, in_words(&error));
                return Err(Stopped::Failed { why, output: error.output().to_vec() });
            }
        }
        Ok(())
    }

    /// Ends one server, if it is up.
    pub(super) fn stop(&mut self, stage: &mut Stage<'_>, cell: usize, index: usize) {
        let Some(running) = self.running.get_mut(index).and_then(Option::take) else { return };
        let name = &stage.experiment.cells[cell].servers[index].name;
        stage.event(Event::Starting { server: name });
        if let Err(error) = running.stop() {
            stage.trouble(format!("{name}: {}", in_words(&error)));
        }
    }

    /// Ends all of them.
    pub(super) fn stop_all(&mut self, stage: &mut Stage<'_>, cell: usize) {
        (0..self.running.len()).for_each(|index| self.stop(stage, cell, index));
    }

    /// One that is up.
    pub(super) fn get(&mut self, index: usize) -> Option<&mut Running> {
        self.running.get_mut(index)?.as_mut()
    }

    /// Those that have ended by themselves, and why their variants cannot go on.
    pub(super) fn ended(&mut self, cell: &Cell) -> Vec<(usize, Stopped)> {
        let ended = |(index, running): (usize, &mut Option<Running>)| {
            Some((index, gone(running.as_mut()?, &cell.servers[index])?))
        };
        self.running.iter_mut().enumerate().filter_map(ended).collect()
    }
}

/// Says so if a server has ended by itself.
pub(super) fn gone(running: &mut Running, server: &Server) -> Option<Stopped> {
    let how = running.ended()?;
    let why = format!("its server {} ended by itself: {how}", server.name);
    Some(Stopped::Failed { why, output: running.last_lines(LINES) })
}

/// Where a server, or a load program, writes to: `01-nginx.log`.
pub(super) fn output_file(stage: &Stage<'_>, cell: usize, name: &str) -> PathBuf {
    let safe = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' };
    let name: String = name.chars().map(safe).collect();
    stage.tools.output.join(format!("{:02}-{name}.log", cell + 1))
}
