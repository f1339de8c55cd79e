//! Everything that processes of an experiment are started with, and the files that they write to.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use oroshi_net::CpuList;
use oroshi_words::with_causes;

use super::Tools;
use super::servers::Stopped;
use crate::machines::Machines;
use crate::network::Network;
use crate::plan::{Cell, Experiment};
use crate::serving::Launch;
use crate::template::Values;

/// Starts servers and load programs under the same keeper, with the CPUs, machines and names of the experiment.
#[derive(Debug)]
pub(super) struct Launcher<'a> {
    keeper: &'a [OsString],
    server_cpus: Option<&'a CpuList>,
    load_cpus: Option<&'a CpuList>,
    /// `None`: everything runs on this machine.
    machines: Option<&'a Machines>,
    output: &'a Path,
    values: Values,
}

/// The process that writes to an output file, by its index in the cell.
#[derive(Clone, Copy, Debug)]
pub(super) enum Writer {
    Server(usize),
    /// The load program of a variant.
    Load(usize),
}

impl<'a> Launcher<'a> {
    pub(super) fn new(experiment: &'a Experiment, tools: &'a Tools, machines: Option<&'a Machines>) -> Self {
        let (server_cpus, load_cpus) = (experiment.server_cpus.as_ref(), experiment.load_cpus.as_ref());
        let mut values = Values::default();
        values.set("oroshi", tools.oroshi.display().to_string());
        for (name, cpus) in [("cpus.server", server_cpus), ("cpus.load", load_cpus)] {
            if let Some(cpus) = cpus {
                values.set(name, cpus.to_string());
            }
        }
        for (name, address) in experiment.network.iter().flat_map(Network::names) {
            values.set(name, address);
        }
        Self { keeper: &tools.keeper, server_cpus, load_cpus, machines, output: &tools.output, values }
    }

    /// Runs `work`, and what it starts, on a machine (by its index); `None`: on this one.
    pub(super) fn on<T>(&self, machine: Option<usize>, work: impl FnOnce() -> T) -> Result<T, Stopped> {
        match self.machines.zip(machine) {
            Some((machines, machine)) => {
                machines.within(machine, work).map_err(|error| Stopped::failed(with_causes(&error)))
            }
            None => Ok(work()),
        }
    }

    /// Starts servers: on their CPUs, writing to `output`.
    pub(super) fn for_server<'l>(&'l self, output: &'l Path) -> Launch<'l> {
        Launch { keeper: self.keeper, cpus: self.server_cpus, output, values: &self.values }
    }

    /// Starts load programs: on their CPUs, writing to `output`.
    pub(super) fn for_load<'l>(&'l self, output: &'l Path) -> Launch<'l> {
        Launch { keeper: self.keeper, cpus: self.load_cpus, output, values: &self.values }
    }

    /// The values of names that are the same everywhere: `oroshi`, `cpus.server`, `cpus.load`, `ip.MACHINE`.
    pub(super) fn values(&self) -> &Values {
        &self.values
    }

    pub(super) fn load_cpus(&self) -> Option<&CpuList> {
        self.load_cpus
    }

    /// The folder of all output files.
    pub(super) fn output(&self) -> &Path {
        self.output
    }

    /// The file of a server or a load program in a cell (from 0): `01-nginx.log`.
    pub(super) fn output_file(&self, index: usize, cell: &Cell, writer: Writer) -> PathBuf {
        let place = match writer {
            Writer::Server(server) => server,
            Writer::Load(variant) => cell.servers.len() + variant,
        };
        self.output.join(format!("{:02}-{}.log", index + 1, output_names(cell)[place]))
    }
}

/// File names, all different: those of the servers, then those of the variants' load programs.
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
    use crate::plan::Server;
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
