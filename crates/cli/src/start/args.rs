//! The flags of `oroshi start`, as they are typed.
//!
//! Values stay text here: the parser would stop at the first wrong one; `read` finds all of them. As with
//! `start_server`, options and the command's words may have any order up to `--`, and unique abbreviations of names
//! work.

use std::ffi::OsString;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  oroshi start --port 8080 --pid-file app.pid --status-file app.status -- ./server
      owns port 8080, and runs the command behind it
  oroshi start --restart --pid-file app.pid --status-file app.status
      starts a new generation, and stops the old one once the new one is ready; refuses no connection
  oroshi start --path /run/app.sock --path-mode 0660 --ready notify -- puma -C puma.rb
      a unix socket; a generation is ready when it sends READY=1 (sd_notify)
  oroshi start --port 8080 --ready http://localhost:8080/health -- ./server
      a generation is ready when one of its processes answers with 200 to 399
  oroshi start --restart --wait --pid-file app.pid && echo deployed
      exit code 0: the new generation serves; 1: it failed, and the old one stays
  oroshi start --status --pid-file app.pid
      generations, sockets, waiting connections; with --json for programs

Signals: HUP starts a new generation. TERM, INT and QUIT stop all generations and end (INT twice: at
once). USR1 reopens the log file.

The command finds its sockets in SERVER_STARTER_PORT (name=descriptor;...), and in LISTEN_FDS,
LISTEN_PID and LISTEN_FDNAMES as from systemd; SERVER_STARTER_GENERATION counts the starts.

Times take ms, s, m, h; a plain number is seconds.

Exit codes: 0 done; 1 the work failed, or the new generation did; 2 wrong usage.";

const PORT: &str = "Listen at a TCP port: 8080 (all IPv4 addresses), 127.0.0.1:8080, name:8080, [::1]:8080 (IPv6 \
                    only); u5353 is UDP; 8080=5 makes it descriptor 5; repeatable";

/// Run a command behind sockets that outlive it, and replace it without losing a connection
///
/// A drop-in for Server::Starter's start_server: its options, files, variables and signals mean the same here.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, infer_long_args = true)]
pub(crate) struct Args {
    /// Run this command with its arguments
    #[arg(value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,

    #[arg(long, value_name = "PORT", allow_negative_numbers = true, help_heading = "Sockets", help = PORT)]
    pub(super) port: Vec<String>,
    /// Listen at a unix socket: a path, or @name in the abstract namespace; repeatable, also beside --port
    #[arg(long, value_name = "PATH", help_heading = "Sockets")]
    pub(super) path: Vec<String>,
    /// Set the mode of the unix sockets' files, as chmod does: who may connect [default: 0777]
    #[arg(long, value_name = "MODE", help_heading = "Sockets")]
    pub(super) path_mode: Option<String>,
    /// Set the owner of the unix sockets' files, by name or number
    #[arg(long, value_name = "USER[:GROUP]", help_heading = "Sockets")]
    pub(super) path_owner: Option<String>,
    /// Let this many connections wait to be accepted; the kernel allows at most net.core.somaxconn [default: 4096]
    #[arg(long, value_name = "N", help_heading = "Sockets")]
    pub(super) backlog: Option<String>,

    /// Run the command in this folder [default: the current folder]
    #[arg(long, value_name = "FOLDER", help_heading = "The command")]
    pub(super) dir: Option<PathBuf>,
    /// Set the command's environment from a folder with one file per variable [default: the variable ENVDIR]
    ///
    /// The first line of a file is the value. Each generation reads the folder again; a variable whose file is gone
    /// stays.
    #[arg(long, value_name = "FOLDER", help_heading = "The command")]
    pub(super) envdir: Option<OsString>,
    /// Count a generation as ready once it has lived this long (without --ready); also the minimum time from a failed
    /// start to the next [default: 1s]
    #[arg(long, value_name = "TIME", help_heading = "The command")]
    pub(super) interval: Option<String>,
    /// Stop older generations with this signal when a newer one is ready: TERM, SIGQUIT, usr1, 10 [default: TERM]
    #[arg(long, value_name = "SIGNAL", help_heading = "The command")]
    pub(super) signal_on_hup: Option<String>,
    /// Stop all generations with this signal at the end, if TERM caused it [default: TERM]
    #[arg(long, value_name = "SIGNAL", help_heading = "The command")]
    pub(super) signal_on_term: Option<String>,
    /// Kill generations that have not ended this long after that signal [default: never]
    #[arg(long, value_name = "TIME", help_heading = "The command")]
    pub(super) stop_timeout: Option<String>,
    /// End all generations when this process dies, even by kill -9
    ///
    /// No generation outlives this process by more than --stop-timeout (10s without). Each generation is then a
    /// process group.
    #[arg(long, help_heading = "The command")]
    pub(super) die_together: bool,

    /// Count a generation as ready by: notify (it sends READY=1, sd_notify), a URL that it answers (http://...,
    /// unix:...), or alive (it has lived for --interval) [default: as alive, and a failed restart is retried until a
    /// generation lives]
    ///
    /// With this option a failed restart is over, and the old generation stays.
    #[arg(long, value_name = "HOW", help_heading = "Restarts")]
    pub(super) ready: Option<String>,
    /// Give up a generation that is not ready after this time [default: 60s]
    #[arg(long, value_name = "TIME", help_heading = "Restarts")]
    pub(super) ready_timeout: Option<String>,
    /// Keep older generations serving this long beside a ready one [default: the variable KILL_OLD_DELAY, or 0; 5s
    /// with --enable-auto-restart]
    #[arg(long, value_name = "TIME", help_heading = "Restarts")]
    pub(super) kill_old_delay: Option<String>,
    /// Restart at intervals [default: the variable ENABLE_AUTO_RESTART]
    #[arg(long, help_heading = "Restarts")]
    pub(super) enable_auto_restart: bool,
    /// Restart this often, with --enable-auto-restart [default: the variable AUTO_RESTART_INTERVAL, or 360s]
    #[arg(long, value_name = "TIME", help_heading = "Restarts")]
    pub(super) auto_restart_interval: Option<String>,

    /// Write this process's number to a file, and lock it (flock) as long as the process lives
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    pub(super) pid_file: Option<PathBuf>,
    /// Write a file with a line `generation:pid` for each generation that is or was ready; replaced atomically
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    pub(super) status_file: Option<PathBuf>,
    /// Send all output to a file, or to a command: '| command' [default: the terminal]
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    pub(super) log_file: Option<String>,
    /// Serve --status and --restart at this socket, for this user alone [default: PIDFILE.control, or
    /// STATUSFILE.control]
    #[arg(long, value_name = "PATH", help_heading = "Files")]
    pub(super) control: Option<PathBuf>,
    /// Run in the background; needs --log-file
    ///
    /// Returns when the sockets are open, a log command reads and the command runs; with exit code 1 if one of these
    /// fails.
    #[arg(long, help_heading = "Files")]
    pub(super) daemonize: bool,

    /// Let the running `oroshi start` of --pid-file start a new generation, and wait until it serves and the older
    /// ones have ended
    #[arg(long, help_heading = "A running superdaemon", conflicts_with_all = ["stop", "status"])]
    pub(super) restart: bool,
    /// With --restart: exit with code 1 as soon as the first attempt fails, instead of waiting for further attempts
    #[arg(long, help_heading = "A running superdaemon", requires = "restart")]
    pub(super) wait: bool,
    /// Stop the running `oroshi start` of --pid-file, and wait for its end
    #[arg(long, help_heading = "A running superdaemon", conflicts_with = "status")]
    pub(super) stop: bool,
    /// Print the state of the running `oroshi start`: generations, sockets, waiting connections
    #[arg(long, help_heading = "A running superdaemon")]
    pub(super) status: bool,
    /// With --status: print JSON
    #[arg(long, help_heading = "A running superdaemon", requires = "status")]
    pub(super) json: bool,

    /// Continue at this step of the way into the background (unlike any name above, because names may be abbreviated)
    #[arg(long = "oroshi-stage", hide = true)]
    pub(super) stage: Option<u8>,
}

/// Become the command of a generation
#[derive(Debug, clap::Args)]
pub(crate) struct ChildArgs {
    /// Move the descriptor FROM to TO
    #[arg(long, value_name = "FROM=TO")]
    pub(super) socket: Vec<String>,
    /// Run in this folder
    #[arg(long)]
    pub(super) dir: Option<PathBuf>,
    /// Become this command
    #[arg(last = true, required = true)]
    pub(super) command: Vec<OsString>,
}

/// End the generations of a superdaemon that has died
#[derive(Debug, clap::Args)]
pub(crate) struct GuardArgs {
    /// Send this signal to the generations
    #[arg(long)]
    pub(super) signal: String,
    /// Kill what has not ended after this many milliseconds
    #[arg(long)]
    pub(super) patience_ms: u64,
}
