//! Processes and signals: descendants, exit statuses, names of signals.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::OnceLock;

use procfs::net::TcpState;
use procfs::process::{Process, all_processes};
use rustix::process::{Pid, Signal, WaitStatus, kill_process};

/// Returns every process below `ancestor`, including zombies. Processes that start or end meanwhile may be missing.
pub fn descendants(ancestor: u32) -> Vec<u32> {
    let processes_and_parents = processes_and_parents();
    let mut found = vec![ancestor];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        let new =
            processes_and_parents.iter().filter(|(pid, its_parent)| *its_parent == parent && !found.contains(pid));
        let new: Vec<u32> = new.map(|(pid, _)| *pid).collect();
        found.extend(new);
        next += 1;
    }
    found.remove(0);
    found
}

/// Returns the processes whose parent is `parent`, including zombies.
pub fn children(parent: u32) -> Vec<u32> {
    processes_and_parents().into_iter().filter(|(_, its_parent)| *its_parent == parent).map(|(pid, _)| pid).collect()
}

/// Returns the processes of a group, without zombies.
pub fn group(leader: u32) -> Vec<u32> {
    let stats = all_processes().into_iter().flatten().filter_map(|process| process.ok()?.stat().ok());
    let of_group = stats.filter(|stat| u32::try_from(stat.pgrp) == Ok(leader) && !matches!(stat.state, 'Z' | 'X'));
    of_group.filter_map(|stat| u32::try_from(stat.pid).ok()).collect()
}

/// Returns the visible processes that started with this environment variable, without zombies.
pub fn with_variable(name: &str, value: &str) -> Vec<u32> {
    let wanted = format!("{name}={value}");
    let has_it = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    processes_and_parents().into_iter().map(|(pid, _)| pid).filter(has_it).collect()
}

/// Has this process call a function when it ends by `exit`, also by that of C code. Only the first function counts.
pub fn at_exit(call: fn()) {
    static CALL: OnceLock<fn()> = OnceLock::new();
    extern "C" fn ends() {
        if let Some(call) = CALL.get() {
            call();
        }
    }
    if CALL.set(call).is_ok() {
        crate::sys::at_exit(ends);
    }
}

/// Whether this process ignores a signal, as `nohup` makes it ignore HUP.
pub fn ignores(signal: Signal) -> bool {
    let status = Process::myself().and_then(|myself| myself.status());
    status.is_ok_and(|status| status.sigign & (1 << (signal.as_raw() - 1)) != 0)
}

/// Whether this process exists, including as a zombie.
pub fn exists(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Whether a process has the socket of this inode open.
///
/// # Errors
/// When the process is gone, or belongs to another user and is not visible.
pub fn holds_socket(pid: u32, inode: u64) -> io::Result<bool> {
    let wanted = format!("socket:[{inode}]");
    let open = Path::new("/proc").join(pid.to_string()).join("fd").read_dir()?;
    // A descriptor that closes meanwhile does not count.
    Ok(open.flatten().any(|entry| entry.path().read_link().is_ok_and(|link| link.as_os_str() == wanted.as_str())))
}

/// Returns the process that listens at a TCP address, or at every address of its port: the lowest number. `None`
/// without one, or if it is not visible.
pub fn who_listens(address: SocketAddr) -> Option<u32> {
    let sockets = procfs::net::tcp().into_iter().chain(procfs::net::tcp6()).flatten();
    let in_the_way = |local: SocketAddr| {
        let everywhere = local.ip().is_unspecified() || address.ip().is_unspecified();
        local.port() == address.port() && (everywhere || local.ip().to_canonical() == address.ip().to_canonical())
    };
    let listening = sockets.filter(|socket| socket.state == TcpState::Listen && in_the_way(socket.local_address));
    let inodes: Vec<u64> = listening.map(|socket| socket.inode).collect();
    let holds = |pid: &u32| inodes.iter().any(|inode| holds_socket(*pid, *inode).is_ok_and(|holds| holds));
    let mut pids: Vec<u32> = processes_and_parents().into_iter().map(|(pid, _)| pid).collect();
    pids.sort_unstable();
    pids.into_iter().find(holds)
}

/// Sends a signal. Returns false if the process is gone, or belongs to another user.
pub fn signal_to(pid: u32, signal: Signal) -> bool {
    i32::try_from(pid).ok().and_then(Pid::from_raw).is_some_and(|pid| kill_process(pid, signal).is_ok())
}

/// Describes how a process ended: `exit code 1`, `ended by signal KILL`.
pub fn how_it_ended(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by signal {}", signal_name(signal)),
        (None, None) => "ended in a way that the kernel does not tell".to_owned(),
    }
}

/// Returns a signal's name as in `kill -l`, or its number.
pub fn signal_name(signal: i32) -> String {
    let name = NAMED.iter().find(|(known, _)| known.as_raw() == signal);
    name.map_or_else(|| signal.to_string(), |(_, name)| (*name).to_owned())
}

/// Returns the signal of a name, with or without `SIG`, in any case, or of a number.
pub fn signal_named(name: &str) -> Option<Signal> {
    if let Ok(number) = name.parse() {
        return Signal::from_named_raw(number);
    }
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    let bare = OTHER_NAMES.iter().find(|(other, _)| *other == bare).map_or(bare, |(_, name)| name);
    NAMED.iter().find(|(_, name)| *name == bare).map(|(signal, _)| *signal)
}

/// Returns the names that [`signal_name`] uses, in the usual order of the numbers.
pub fn signal_names() -> impl Iterator<Item = &'static str> {
    NAMED.iter().map(|(_, name)| *name)
}

const NAMED: [(Signal, &str); 30] = [
    (Signal::HUP, "HUP"),
    (Signal::INT, "INT"),
    (Signal::QUIT, "QUIT"),
    (Signal::ILL, "ILL"),
    (Signal::TRAP, "TRAP"),
    (Signal::ABORT, "ABRT"),
    (Signal::BUS, "BUS"),
    (Signal::FPE, "FPE"),
    (Signal::KILL, "KILL"),
    (Signal::USR1, "USR1"),
    (Signal::SEGV, "SEGV"),
    (Signal::USR2, "USR2"),
    (Signal::PIPE, "PIPE"),
    (Signal::ALARM, "ALRM"),
    (Signal::TERM, "TERM"),
    (Signal::CHILD, "CHLD"),
    (Signal::CONT, "CONT"),
    (Signal::STOP, "STOP"),
    (Signal::TSTP, "TSTP"),
    (Signal::TTIN, "TTIN"),
    (Signal::TTOU, "TTOU"),
    (Signal::URG, "URG"),
    (Signal::XCPU, "XCPU"),
    (Signal::XFSZ, "XFSZ"),
    (Signal::VTALARM, "VTALRM"),
    (Signal::PROF, "PROF"),
    (Signal::WINCH, "WINCH"),
    (Signal::IO, "IO"),
    (Signal::POWER, "PWR"),
    (Signal::SYS, "SYS"),
];

/// Aliases from signal(7).
const OTHER_NAMES: [(&str, &str); 4] = [("CLD", "CHLD"), ("IOT", "ABRT"), ("POLL", "IO"), ("UNUSED", "SYS")];

/// Returns every process and its parent.
fn processes_and_parents() -> Vec<(u32, u32)> {
    // Skips a process that ends meanwhile.
    let stats = all_processes().into_iter().flatten().filter_map(|process| process.ok()?.stat().ok());
    stats.filter_map(|stat| Some((u32::try_from(stat.pid).ok()?, u32::try_from(stat.ppid).ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn descendants_are_found_at_any_depth() {
        let mut child = Command::new("sh")
            .args(["-c", "sh -c 'cat; :' ; :"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        while descendants(pid).len() < 2 {
            std::thread::yield_now();
        }
        let below = descendants(pid);
        assert_eq!(children(pid), below[..1]);
        assert_eq!(children(below[0]), below[1..]);
        assert!(children(std::process::id()).contains(&pid));
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(signal_name(11), "SEGV");
        assert_eq!(signal_name(34), "34");
        for name in ["TERM", "term", "SIGTERM", "sigterm", "15"] {
            assert_eq!(signal_named(name), Some(Signal::TERM), "{name}");
        }
        assert_eq!(signal_named("CLD"), Some(Signal::CHILD));
        for name in ["", "SIG", "TERMINATE", "0", "-1", "99", "15x"] {
            assert_eq!(signal_named(name), None, "{name}");
        }
        for name in signal_names() {
            assert_eq!(signal_named(name).map(|signal| signal_name(signal.as_raw())).as_deref(), Some(name));
        }
    }
}
