//! The servers of a cell: all of them are up while it is measured, and started anew from time to time.

use std::path::PathBuf;

use oroshi_words::with_causes;

use super::Stage;
use crate::follow::Event;
use crate::plan::{Cell, Server};
use crate::result::Program;
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
    /// What was started, the last time.
    programs: Vec<Option<Program>>,
}

impl Servers {
    /// Starts one server, after it was stopped if it is up. One that ends before it is ready gets a second try in another place: its port
    /// may have been taken after it was found free.
    pub(super) fn start(&mut self, stage: &mut Stage<'_>, cell: usize, index: usize) -> Result<(), Stopped> {
        let servers = &stage.experiment.cells[cell].servers;
        self.stop(stage, cell, index);
        self.running.resize_with(servers.len(), || None);
        self.programs.resize_with(servers.len(), || None);
        let server = &servers[index];
        stage.event(Event::Starting { server: &server.name });
        let output = output_file(stage, cell, Writer::Server(index));
        let mut first = None;
        let error = loop {
            let launch = Launch {
                keeper: &stage.tools.keeper,
                cpus: stage.experiment.server_cpus.as_ref(),
                output: &output,
                values: &stage.values,
            };
            let error = match Running::start(server, &launch, &mut || stage.follow.cancelled()) {
                Ok(running) => {
                    if let Some(error) = first {
                        stage.trouble(format!("{} was started twice: {}", server.name, with_causes(&error)));
                    }
                    self.programs[index] = running.program().cloned();
                    self.running[index] = Some(running);
                    return Ok(());
                }
                Err(error) => error,
            };
            let (error, end) = error.split();
            if let Some(end) = end {
                stage.trouble(format!("{}: {}", server.name, with_causes(&end)));
            }
            match error {
                StartError::Cancelled => return Err(Stopped::Cancelled),
                error @ StartError::Ended { .. } if first.is_none() => first = Some(error),
                error => break error,
            }
        };
        let why = format!("its server {} did not start: {}", server.name, with_causes(&error));
        Err(Stopped::Failed { why, output: error.output().to_vec() })
    }

    /// What was started as this server, if it ever was.
    pub(super) fn program(&self, index: usize) -> Option<&Program> {
        self.programs.get(index)?.as_ref()
    }

    /// Ends one server, if it is up.
    pub(super) fn stop(&mut self, stage: &mut Stage<'_>, cell: usize, index: usize) {
        let Some(running) = self.running.get_mut(index).and_then(Option::take) else { return };
        let name = &stage.experiment.cells[cell].servers[index].name;
        stage.event(Event::Starting { server: name });
        if let Err(error) = running.stop() {
            stage.trouble(format!("{name}: {}", with_causes(&error)));
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

/// Who writes into a file of its own, by its index in the cell.
#[derive(Clone, Copy, Debug)]
pub(super) enum Writer {
    Server(usize),
    /// The load program of a variant.
    Load(usize),
}

/// Where a server, or a load program, writes to: `01-nginx.log`.
pub(super) fn output_file(stage: &Stage<'_>, cell: usize, writer: Writer) -> PathBuf {
    let names = output_names(&stage.experiment.cells[cell]);
    let index = match writer {
        Writer::Server(index) => index,
        Writer::Load(index) => stage.experiment.cells[cell].servers.len() + index,
    };
    stage.tools.output.join(format!("{:02}-{}.log", cell + 1, names[index]))
}

/// Names fit for files, all different: those of the servers, then those of the variants' loads.
fn output_names(cell: &Cell) -> Vec<String> {
    let safe = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' };
    let servers = cell.servers.iter().map(|server| server.name.clone());
    let loads = cell.variants.iter().map(|variant| format!("{}-load", variant.name));
    let mut names: Vec<String> = Vec::new();
    for name in servers.chain(loads) {
        let name: String = name.chars().map(safe).collect();
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        names.extend(std::iter::once(name.clone()).chain(numbered).find(|name| !names.contains(name)));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::experiment;

    #[test]
    fn no_two_write_into_one_file() {
        let mut cell = experiment().cells.remove(0);
        let server = cell.servers[0].clone();
        let servers = ["a/b", "a_b", "a b", "x-load"].map(|name| Server { name: name.into(), ..server.clone() });
        cell.servers = servers.to_vec();
        cell.variants[0].name = "x".into();
        assert_eq!(output_names(&cell), ["a_b", "a_b-2", "a_b-3", "x-load", "x-load-2", "B-load"]);
    }
}
