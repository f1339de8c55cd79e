//! A process's descendants, found in `/proc`, and how a process ended, in words.

use procfs::process::all_processes;
use rustix::process::{Pid, Signal, WaitStatus, kill_process};

/// The processes whose parent is `parent`, zombies too.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    everyone().into_iter().filter(|(_, its_parent)| *its_parent == parent).map(|(pid, _)| pid).collect()
}

/// All processes below `ancestor`, zombies too. Whoever is born or ends meanwhile may be in it or not.
pub(super) fn descendants(ancestor: u32) -> Vec<u32> {
    let everyone = everyone();
    let mut found = vec![ancestor];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        let new = everyone.iter().filter(|(pid, its_parent)| *its_parent == parent && !found.contains(pid));
        let new: Vec<u32> = new.map(|(pid, _)| *pid).collect();
        found.extend(new);
        next += 1;
    }
    found.remove(0);
    found
}

/// Sends a signal; a process that is gone is none to be told.
pub(super) fn signal_to(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// How a process ended, in words.
pub(super) fn how(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by signal {}", signal_name(signal)),
        (None, None) => "ended in a way that the kernel does not tell".to_owned(),
    }
}

/// A signal's name, as `kill -l` has it; a number where it has none.
fn signal_name(signal: i32) -> String {
    let named = [
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
        (Signal::XCPU, "XCPU"),
        (Signal::XFSZ, "XFSZ"),
        (Signal::SYS, "SYS"),
    ];
    let name = named.iter().find(|(known, _)| known.as_raw() == signal);
    name.map_or_else(|| signal.to_string(), |(_, name)| (*name).to_owned())
}

/// Every process and its parent.
fn everyone() -> Vec<(u32, u32)> {
    // A process that ends while it is read is left out.
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
    }
}
