//! Makes the machines of an experiment: a network namespace for each, joined by veth pairs.
//!
//! The namespaces have no names, and both ends of a link are inside them. The kernel therefore removes everything when
//! this process and those that it started have ended, even if they were killed. `ip` and `tc` of iproute2 set the links
//! up.

use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use oroshi_net::NetworkNamespace;

use crate::network::{Link, LinkQuality, Network, USUAL_MTU};

/// Folders of administrators' programs, which users' PATH may lack.
const FOLDERS: [&str; 3] = ["", "/usr/sbin/", "/sbin/"];
/// A link of limited rate lets this much of it through at once.
const BURST: Duration = Duration::from_millis(2);
/// Packets that wait at a link of limited rate, before others are dropped: as many as at a network card (txqueuelen).
const QUEUE: u64 = 1000;
/// Packets on their way through a link with a delay. More than memory for connections allows, so that none is lost.
const UNDER_WAY: u32 = 1_000_000;
/// Settings in which a new namespace may differ from this machine: it begins with the kernel's defaults.
const SETTINGS: [&str; 4] =
    ["net/core/somaxconn", "net/ipv4/ip_local_port_range", "net/ipv4/tcp_max_syn_backlog", "net/ipv4/tcp_tw_reuse"];

/// Why there are no machines.
#[derive(Debug, thiserror::Error)]
pub enum MachinesError {
    /// Run as root, or leave the machines out.
    #[error(
        "the machines of [network] need root (CAP_SYS_ADMIN and CAP_NET_ADMIN), as they are network namespaces: run \
         oroshi with sudo, or leave [network] out"
    )]
    NotAllowed,
    /// The kernel has no network namespaces, or too many of them exist (user.max_net_namespaces): see the cause.
    #[error("no network namespace can be made for a machine of [network]")]
    Namespace(#[source] io::Error),
    /// Install iproute2.
    #[error("`{program}` is not installed, and links between the machines of [network] need it: install iproute2")]
    NotInstalled {
        /// `ip` or `tc`.
        program: &'static str,
    },
    /// Load the kernel's module, or leave the key out.
    #[error(
        "this kernel has no {module}, which `{key}` in [network] needs: load it (`modprobe {module}`), or leave \
         `{key}` out"
    )]
    Unsupported {
        /// The key of the link.
        key: &'static str,
        /// The module that the kernel lacks.
        module: &'static str,
    },
    /// The text says what failed.
    #[error("`{program}` could not link the machines of [network]: {said}")]
    Failed {
        /// `ip` or `tc`.
        program: &'static str,
        /// Its words, or how it ended.
        said: String,
    },
    /// The kernel's settings of this machine cannot be given to the others: see the cause.
    #[error("/proc/sys/{setting} of a machine of [network] cannot be set to `{value}`, as it is here")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// Its value here.
        value: String,
        /// The system's error.
        source: io::Error,
    },
    /// A thread could not enter a machine's namespace or leave it: see the cause.
    #[error("a network namespace cannot be entered")]
    Enter(#[source] io::Error),
}

/// The machines of an experiment. Dropping it removes those in which no process runs.
#[derive(Debug)]
pub struct Machines(Vec<NetworkNamespace>);

impl Machines {
    /// Makes the machines, and joins them.
    ///
    /// # Errors
    /// When this is not allowed or not possible here. Then nothing remains.
    pub fn join(network: &Network) -> Result<Self, MachinesError> {
        let make = |_: &String| {
            NetworkNamespace::new().map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => MachinesError::NotAllowed,
                _ => MachinesError::Namespace(error),
            })
        };
        let machines = Self(network.machines.iter().map(make).collect::<Result<_, _>>()?);
        let here = SETTINGS.map(setting);
        for (machine, commands) in machines.links(network).iter().enumerate() {
            machines.within(machine, || {
                SETTINGS.iter().zip(&here).try_for_each(|(name, value)| copy(name, value.as_deref()))?;
                batch("ip", commands)
            })??;
        }
        for machine in 0..network.machines.len() {
            let (addresses, queues) = ends(network, machine);
            machines.within(machine, || batch("ip", &addresses).and_then(|()| limit(&queues)))??;
        }
        Ok(machines)
    }

    /// Runs `work` on a machine, as [`NetworkNamespace::within`] does.
    ///
    /// # Errors
    /// When the thread cannot enter the machine or leave it.
    pub fn within<T>(&self, machine: usize, work: impl FnOnce() -> T) -> Result<T, MachinesError> {
        let namespace = self.0.get(machine).ok_or_else(|| MachinesError::Enter(io::ErrorKind::NotFound.into()))?;
        namespace.within(work).map_err(MachinesError::Enter)
    }

    /// Returns the commands of `ip` that make loopback and links, for each machine. The first end makes the link.
    fn links(&self, network: &Network) -> Vec<Vec<String>> {
        let mut commands = vec![vec!["link set dev lo up".to_owned()]; network.machines.len()];
        for Link { ends: (one, other), quality } in &network.links {
            let (name, peer) = (&network.machines[*other], &network.machines[*one]);
            let (mtu, namespace) = (quality.mtu.unwrap_or(USUAL_MTU), self.0[*other].path());
            commands[*one].push(format!(
                "link add name {name} mtu {mtu} type veth peer name {peer} mtu {mtu} netns {}",
                namespace.display()
            ));
        }
        commands
    }
}

/// Returns the commands of `ip` that give a machine its address at each of its links, and the links with their names.
fn ends(network: &Network, machine: usize) -> (Vec<String>, Vec<(String, LinkQuality)>) {
    let own = Network::address(machine);
    let (mut commands, mut queues) = (Vec::new(), Vec::new());
    for Link { ends: (one, other), quality } in &network.links {
        let peer = match machine {
            machine if machine == *one => *other,
            machine if machine == *other => *one,
            _ => continue,
        };
        let name = &network.machines[peer];
        commands.push(format!("address add {own}/32 dev {name}"));
        commands.push(format!("link set dev {name} up"));
        commands.push(format!("route add {}/32 dev {name} src {own}", Network::address(peer)));
        queues.push((name.clone(), *quality));
    }
    (commands, queues)
}

/// Limits the links of the machine that the thread is in.
fn limit(links: &[(String, LinkQuality)]) -> Result<(), MachinesError> {
    for (name, quality) in links {
        // tc(8) counts bytes of frames; ten of them go at once on a slow link.
        let frame = u64::from(quality.mtu.unwrap_or(USUAL_MTU)) + 14;
        let shape = |rate: u64| {
            let burst = (rate as f64 / 8.0 * BURST.as_secs_f64()) as u64;
            format!("tbf rate {rate}bit burst {} limit {}", burst.max(10 * frame), QUEUE * frame)
        };
        let mut place = "root";
        if let Some(delay) = quality.delay {
            let delay = delay.as_nanos().div_ceil(1000);
            let command = format!("qdisc add dev {name} root handle 1: netem delay {delay}us limit {UNDER_WAY}");
            batch("tc", &[command]).map_err(|error| unsupported(error, "delay", "sch_netem"))?;
            place = "parent 1:1 handle 10:";
        }
        if let Some(rate) = quality.rate {
            let command = format!("qdisc add dev {name} {place} {}", shape(rate));
            batch("tc", &[command]).map_err(|error| unsupported(error, "rate", "sch_tbf"))?;
        }
    }
    Ok(())
}

/// Says so if the kernel lacks a queueing discipline.
fn unsupported(error: MachinesError, key: &'static str, module: &'static str) -> MachinesError {
    match error {
        MachinesError::Failed { said, .. } if said.contains("qdisc kind is unknown") => {
            MachinesError::Unsupported { key, module }
        }
        error => error,
    }
}

/// Runs commands of `ip` or `tc` where the thread is.
fn batch(program: &'static str, commands: &[String]) -> Result<(), MachinesError> {
    let failed = |said: String| MachinesError::Failed { program, said };
    let spawn = |folder: &&str| {
        let mut command = Command::new(format!("{folder}{program}"));
        command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            other => Some(other),
        }
    };
    let started = FOLDERS.iter().find_map(spawn).ok_or(MachinesError::NotInstalled { program })?;
    let mut child = started.map_err(|error| failed(error.to_string()))?;
    let text: String = commands.iter().map(|command| format!("{command}\n")).collect();
    // Dropping the pipe ends its input. If it ended before, its status says why.
    let _ = child.stdin.take().map(|mut input| input.write_all(text.as_bytes()));
    let ended = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr).trim().replace('\n', "; ");
    Err(failed(if said.is_empty() { ended.status.to_string() } else { said }))
}

/// Returns a setting of the machine that the thread is in; `None` if the kernel does not have it.
fn setting(name: &str) -> Option<String> {
    std::fs::read_to_string(format!("/proc/sys/{name}")).ok().map(|text| text.trim().to_owned())
}

/// Gives the machine that the thread is in a setting, if it differs.
fn copy(name: &'static str, value: Option<&str>) -> Result<(), MachinesError> {
    let Some(value) = value.filter(|value| setting(name).is_some_and(|own| own != *value)) else { return Ok(()) };
    std::fs::write(format!("/proc/sys/{name}"), value).map_err(|source| MachinesError::Setting {
        setting: name,
        value: value.to_owned(),
        source,
    })
}
