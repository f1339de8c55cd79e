//! `oroshi keep`: the process above each server and load program of an experiment. It is not for people: its orders
//! come through standard input.

use std::path::PathBuf;
use std::process::ExitCode;

use oroshi_lab::keeper::{KeeperSettings, keep};
use oroshi_net::CpuList;

/// Keep processes for an experiment, and end them when standard input closes
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file that all output is appended to
    #[arg(long)]
    output: PathBuf,

    /// CPUs to run on
    #[arg(long)]
    cpus: Option<CpuList>,

    /// Open files that each process may have
    #[arg(long)]
    descriptors: Option<u64>,

    /// The folder to make, and to remove in the end
    #[arg(long)]
    folder: Option<PathBuf>,
}

/// Keeps processes until all of them have ended.
pub(crate) fn run(args: Args) -> ExitCode {
    let Args { output, cpus, descriptors, folder } = args;
    ExitCode::from(keep(&KeeperSettings { cpus, descriptors, folder, output }))
}
