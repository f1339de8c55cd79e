//! `oroshi agent`: lends this machine's load to a coordinator.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use oroshi_agents::bus::{Bus, BusError, check_name};
use oroshi_agents::serve::{Assignment, Surroundings, serve};
use oroshi_agents::wire::Job;
use oroshi_bench::{Load, Plan, push};
use oroshi_net::{Permitted, Shutdown};
use oroshi_words::{Naming, printable, units};

use crate::bench::{Meeting, Unpacked, UnpackedLoad, meeting, parse_size, unpack};
use crate::problems::Problems;
use crate::{CommandError, interrupt, say};

const EXAMPLES: &str = "\
Examples:
  openssl rand -hex 32 > agents.key
      makes the key that the coordinator and all agents share
  oroshi agent --nats nats://10.0.0.1:4222 --key-file agents.key --allow 10.0.0.0/8:8080
      lends this machine to `oroshi bench --agents`, for servers of that network at that port
  oroshi bench --agents 3 --nats nats://10.0.0.1:4222 --key-file agents.key -R 30k http://10.0.0.9:8080/
      30,000 requests per second from three agents, with one report

Signals: TERM and INT end the load that is under way, whose result the coordinator still gets.

Exit codes: 0 done; 1 NATS could not be reached; 2 wrong usage.";

/// Lend this machine to `oroshi bench --agents`: load from many machines, as one (docs/agents.md)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Meet coordinators at these NATS servers: nats://host:4222, several with commas; @FILE reads them from a file
    #[arg(long, value_name = "URL")]
    nats: String,

    /// Sign messages with the key in this file, which coordinators have too; or with the seed of an nkey
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,

    /// With an nkey: obey coordinators with these public keys, with commas; @FILE reads them from a file, one a line
    #[arg(long, value_name = "KEYS")]
    accept: Option<String>,

    /// Be known by this name [default: the host's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Belong to this group [default: default]
    #[arg(long, value_name = "NAME")]
    group: Option<String>,

    /// Connect to these addresses only: 10.0.0.0/8, 10.0.0.9:8080, [fd00::/8]:8000-8999, unix:/run/apps/, any; with
    /// commas, or repeated [default: loopback]
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    allow: Vec<String>,

    /// Run wrk's scripts too: they can read and write files and start programs, as this user
    #[arg(long)]
    wrk_scripts: bool,

    /// Refuse plans whose rate is higher on this agent
    #[arg(long, value_name = "PER_SECOND", default_value = "100k")]
    max_rate: String,

    /// Refuse plans with more connections on this agent
    #[arg(long, value_name = "N", default_value = "10k")]
    max_connections: String,

    /// Refuse plans with more bytes, the files that travel with them included
    #[arg(long, value_name = "BYTES", default_value = "64M")]
    max_plan: String,

    /// Refuse plans that last longer, and end plans after this time that end with their requests
    #[arg(long, value_name = "TIME", default_value = "1h")]
    max_duration: String,
}

/// Why an agent ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Correct the flags: each line names one.
    #[error("{}", .0.join("\n"))]
    Usage(Vec<String>),
    /// NATS cannot be reached.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// Signal handlers could not be installed.
    #[error("cannot take signals")]
    Signals(#[source] io::Error),
}

impl CommandError for Error {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            _ => 1,
        }
    }

    fn next_step(&self) -> Option<&'static str> {
        match self {
            Self::Usage(_) => Some("`oroshi agent --help` lists all flags, with examples"),
            Self::Bus(_) => Some("start nats-server, or correct --nats"),
            Self::Signals(_) => None,
        }
    }
}

/// Serves coordinators until a signal ends it.
///
/// # Errors
/// The flags are wrong, or NATS cannot be reached.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    let mut problems = Problems::of_flags();
    let keys = (Some(args.key_file.as_path()), args.accept.as_deref());
    let found = meeting(Some(&args.nats), args.group.as_deref(), keys, &mut problems);
    let host = rustix::system::uname().nodename().to_string_lossy().replace('.', "-");
    let name = args.name.clone().unwrap_or(host);
    let name = problems.one("--name", Some(&name), |text| check_name(text).map(|()| text.to_owned()));
    let mut permitted = if args.allow.is_empty() { Permitted::loopback() } else { Permitted::default() };
    for rule in &args.allow {
        match permitted.add(rule.trim()) {
            Ok(None) => {}
            Ok(Some(name)) => problems.add(
                "--allow",
                format!("`{}` is a name, whose address others choose: expected addresses or networks", name.name),
            ),
            Err(error) => problems.add("--allow", error.to_string()),
        }
    }
    let limits = Limits {
        rate: problems.one("--max-rate", Some(&args.max_rate), units::parse_number).unwrap_or_default(),
        connections: problems.one("--max-connections", Some(&args.max_connections), parse_size).unwrap_or_default(),
        duration: problems.one("--max-duration", Some(&args.max_duration), units::parse_time).unwrap_or_default(),
        plan_bytes: problems.one("--max-plan", Some(&args.max_plan), units::parse_count).unwrap_or_default(),
        permitted: Arc::new(permitted),
        wrk_scripts: args.wrk_scripts,
    };
    let lines = problems.lines();
    let (Some(Meeting { mut settings, key }), Some(name), true) = (found, name, lines.is_empty()) else {
        return Err(Error::Usage(lines));
    };
    settings.agent = Some(name.clone());
    let group = settings.group.clone();
    let shutdown = interrupt::shutdown().map_err(Error::Signals)?;
    let bus = Bus::connect(settings)?;
    say(&format!("agent {name} of group {group} may connect to {}", limits.permitted));
    let around: Arc<dyn Surroundings> = Arc::new(limits);
    serve(&bus, &key, &group, name, &around, &shutdown);
    Ok(ExitCode::SUCCESS)
}

/// What plans may ask of this agent.
#[derive(Debug)]
struct Limits {
    rate: f64,
    connections: usize,
    duration: Duration,
    plan_bytes: u64,
    permitted: Arc<Permitted>,
    wrk_scripts: bool,
}

impl Surroundings for Limits {
    fn read(&self, job: &Job) -> Result<(Assignment, Box<dyn Send>), Vec<String>> {
        let Unpacked { load, folder } = unpack(job, Some(Arc::clone(&self.permitted)), false)?;
        let (draft, script) = match load {
            UnpackedLoad::Requests(draft, script) => (draft, script),
            UnpackedLoad::Subscriptions(plan) => {
                let mistakes = self.exceeded_by_subscriptions(&plan, job);
                let assignment = Assignment::Subscriptions(plan);
                return if mistakes.is_empty() { Ok((assignment, Box::new(folder))) } else { Err(mistakes) };
            }
        };
        if script.is_some() && !self.wrk_scripts {
            return Err(vec![
                "--script: a wrk script can do all that the agent's user can: start this agent with --wrk-scripts, or \
                 write scenarios (docs/scenarios.md)"
                    .to_owned(),
            ]);
        }
        let mut plan =
            draft.plan().map_err(|found| found.0.iter().map(|it| it.told(Naming::Flags)).collect::<Vec<_>>())?;
        let mistakes = self.exceeded(&plan, job.of);
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        // A load that ends with its requests ends by time as well, whatever its server does.
        plan.duration.get_or_insert(self.duration.saturating_sub(plan.warmup));
        if let Some(script) = script {
            script.load(&mut plan, &Shutdown::new()).map_err(|error| vec![error.to_string()])?;
        }
        Ok((Assignment::Requests(Box::new(plan)), Box::new(folder)))
    }

    fn most_plan(&self) -> u64 {
        self.plan_bytes
    }

    fn say(&self, text: &str) {
        say(&printable(text));
    }
}

impl Limits {
    /// The limits that a part of a load on a hub exceeds. The first part publishes.
    fn exceeded_by_subscriptions(&self, plan: &push::Plan, job: &Job) -> Vec<String> {
        let mut mistakes = self.exceeded(&plan.connect, job.of);
        let publications = [&plan.publish, &plan.publish_to].into_iter().flatten().filter(|_| job.index == 0);
        publications.for_each(|publication| mistakes.extend(self.exceeded(&publication.plan, 1)));
        mistakes.dedup();
        mistakes
    }

    /// The limits that a part of a plan exceeds.
    fn exceeded(&self, plan: &Plan, parts: usize) -> Vec<String> {
        let mut mistakes = Vec::new();
        let connections = (plan.connections + plan.hold).div_ceil(parts);
        if connections > self.connections {
            mistakes.push(format!("{connections} connections: this agent's --max-connections is {}", self.connections));
        }
        if let Load::Open { stages, .. } = &plan.load {
            let rate = stages.iter().map(|stage| stage.rate).fold(0.0, f64::max) / parts as f64;
            if rate > self.rate {
                let (rate, most) = (units::number(rate), units::number(self.rate));
                mistakes.push(format!("{rate} requests per second: this agent's --max-rate is {most}"));
            }
        }
        let length = plan.duration.unwrap_or_default().saturating_add(plan.warmup);
        if length > self.duration {
            let (length, most) = (units::length(length.as_secs_f64()), units::length(self.duration.as_secs_f64()));
            mistakes.push(format!("{length}: this agent's --max-duration is {most}"));
        }
        mistakes
    }
}
