//! The flags of `oroshi start`, as they are typed.
//!
//! Values stay text here: the parser would stop at the first one that is wrong, where `read` finds all of them. Options and the
//! command's words may stand in any order up to `--`, and names may be cut short while they are unique, as `start_server`
//! has it.

use std::ffi::OsString;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  oroshi start --port 8080 --pid-file app.pid --status-file app.status -- ./server
      owns port 8080, and runs the command behind it
  oroshi start --restart --pid-file app.pid --status-file app.status
      a new generation: once it is ready, the old one is told to stop; nobody is refused
  oroshi start --path /run/app.sock --path-mode 0660 --ready notify -- puma -C puma.rb
      a unix socket; a generation is ready when it says so (sd_notify)
  oroshi start --port 8080 --ready http://localhost:8080/health -- ./server
      a generation is ready when a process of its own answers with 200 to 399
  oroshi start --restart --wait --pid-file app.pid && echo deployed
      exit code 0: the new generation serves; 1: it failed, and the old one stays
  oroshi start --status --pid-file app.pid
      generations, sockets, waiting connections; with --json for programs

Signals: HUP starts a new generation; TERM, INT and QUIT end all of them in good order (INT
twice: at once); USR1 opens the log file anew.

The command finds its sockets in SERVER_STARTER_PORT (name=descriptor;...), and in LISTEN_FDS,
LISTEN_PID and LISTEN_FDNAMES as from systemd; SERVER_STARTER_GENERATION counts the starts.

Times take ms, s, m, h, and are seconds without.

Exit codes: 0 done; 1 it could not be done, or the new generation failed; 2 wrong usage.";

const PORT: &str = "A TCP port to listen at: 8080, 127.0.0.1:8080, [::1]:8080; u5353 for UDP; 8080=5 to be descriptor 5. \
                    May be given several times";

/// Run a command behind sockets that outlive it, and replace it without losing a connection
///
/// A drop-in for Server::Starter's start_server: its options, files, variables and signals mean the same here.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, infer_long_args = true)]
pub(crate) struct Args {
    /// The command and its arguments
    #[arg(value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,

    #[arg(long, value_name = "PORT", allow_negative_numbers = true, help_heading = "Sockets", help = PORT)]
    pub(super) port: Vec<String>,
    /// A unix socket to listen at: a path, or @name in the abstract namespace. May be given several times
    #[arg(long, value_name = "PATH", help_heading = "Sockets")]
    pub(super) path: Vec<String>,
    /// Who may connect to unix sockets, as for chmod [default: 0777]
    #[arg(long, value_name = "MODE", help_heading = "Sockets")]
    pub(super) path_mode: Option<String>,
    /// Whose the unix sockets' files are: names or numbers
    #[arg(long, value_name = "USER[:GROUP]", help_heading = "Sockets")]
    pub(super) path_owner: Option<String>,
    /// How many connections may wait to be accepted; no more than net.core.somaxconn [default: 4096]
    #[arg(long, value_name = "N", help_heading = "Sockets")]
    pub(super) backlog: Option<String>,

    /// The folder that the command runs in
    #[arg(long, value_name = "FOLDER", help_heading = "The command")]
    pub(super) dir: Option<PathBuf>,
    /// A folder with a file for each variable of the command's environment, read anew for each generation (or ENVDIR)
    #[arg(long, value_name = "FOLDER", help_heading = "The command")]
    pub(super) envdir: Option<OsString>,
    /// How long a generation must live to count as ready (without --ready), and the least time from a failed start to the next [default: 1s]
    #[arg(long, value_name = "TIME", help_heading = "The command")]
    pub(super) interval: Option<String>,
    /// What older generations are sent when a newer one is ready [default: TERM]
    #[arg(long, value_name = "SIGNAL", help_heading = "The command")]
    pub(super) signal_on_hup: Option<String>,
    /// What all generations are sent at the end [default: TERM]
    #[arg(long, value_name = "SIGNAL", help_heading = "The command")]
    pub(super) signal_on_term: Option<String>,
    /// Kill what has not ended so long after that [default: never]
    #[arg(long, value_name = "TIME", help_heading = "The command")]
    pub(super) stop_timeout: Option<String>,
    /// End the command when this process dies, even by kill -9; each generation is then a process group of its own
    #[arg(long, help_heading = "The command")]
    pub(super) die_together: bool,

    /// When a generation is ready: notify (it says READY=1, sd_notify), a URL (http://..., unix:...) that it answers, or alive (it
    /// has lived for --interval). A restart that fails is then over, and the older generation stays [default: as alive, but a
    /// restart that fails is tried again until it succeeds]
    #[arg(long, value_name = "HOW", help_heading = "Restarts")]
    pub(super) ready: Option<String>,
    /// How long it may take to become ready [default: 60s]
    #[arg(long, value_name = "TIME", help_heading = "Restarts")]
    pub(super) ready_timeout: Option<String>,
    /// How long older generations serve on beside a ready one [default: 0, 5s with --enable-auto-restart; or KILL_OLD_DELAY]
    #[arg(long, value_name = "TIME", help_heading = "Restarts")]
    pub(super) kill_old_delay: Option<String>,
    /// Restart by time (or ENABLE_AUTO_RESTART)
    #[arg(long, help_heading = "Restarts")]
    pub(super) enable_auto_restart: bool,
    /// How often [default: 360s; or AUTO_RESTART_INTERVAL]
    #[arg(long, value_name = "TIME", help_heading = "Restarts")]
    pub(super) auto_restart_interval: Option<String>,

    /// The file for this process's number; it stays locked
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    pub(super) pid_file: Option<PathBuf>,
    /// The file for the generations: a line number:process for each
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    pub(super) status_file: Option<PathBuf>,
    /// Where all output goes: a file, or '| command'
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    pub(super) log_file: Option<String>,
    /// The socket for --status and --restart [default: the pid file's name, or the status file's, with .control behind]
    #[arg(long, value_name = "PATH", help_heading = "Files")]
    pub(super) control: Option<PathBuf>,
    /// Run in the background; takes --log-file
    #[arg(long, help_heading = "Files")]
    pub(super) daemonize: bool,

    /// Have the superdaemon of --pid-file start a new generation, and wait until the older ones have ended
    #[arg(long, help_heading = "Speaking to one that runs", conflicts_with_all = ["stop", "status"])]
    pub(super) restart: bool,
    /// With --restart: do not wait for further tries when the new generation has failed
    #[arg(long, help_heading = "Speaking to one that runs", requires = "restart")]
    pub(super) wait: bool,
    /// End the superdaemon of --pid-file, and wait for it
    #[arg(long, help_heading = "Speaking to one that runs", conflicts_with = "status")]
    pub(super) stop: bool,
    /// Show what it is doing
    #[arg(long, help_heading = "Speaking to one that runs")]
    pub(super) status: bool,
    /// With --status: as JSON
    #[arg(long, help_heading = "Speaking to one that runs", requires = "status")]
    pub(super) json: bool,

    /// How far this process has come on its way into the background. (No name that is like those above: they may be cut short.)
    #[arg(long = "oroshi-stage", hide = true)]
    pub(super) stage: Option<u8>,
}

/// Become the command of a generation
#[derive(Debug, clap::Args)]
pub(crate) struct ChildArgs {
    /// A socket's descriptor here and there
    #[arg(long, value_name = "FROM=TO")]
    pub(super) socket: Vec<String>,
    /// The folder to run in
    #[arg(long)]
    pub(super) dir: Option<PathBuf>,
    /// What to become
    #[arg(last = true, required = true)]
    pub(super) command: Vec<OsString>,
}

/// End the generations of a superdaemon that has died
#[derive(Debug, clap::Args)]
pub(crate) struct GuardArgs {
    /// What they are sent
    #[arg(long)]
    pub(super) signal: String,
    /// How long they may take to end
    #[arg(long)]
    pub(super) patience_ms: u64,
}
