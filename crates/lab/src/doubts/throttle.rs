//! How often the control group used up its CPU quota.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oroshi_words::units;

/// Counters in `cpu.stat` of this process's control groups, which all its children share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Throttled {
    /// Periods in which a group had used up its quota.
    periods: u64,
    /// How long its threads then waited, summed over CPUs.
    time: Duration,
}

impl Throttled {
    /// Reads the counters; zero if nothing is limited or the file is missing.
    pub(super) fn now() -> Self {
        Self::below(Path::new("/"))
    }

    fn below(root: &Path) -> Self {
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let folders = groups.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, group) = (parts.next()?, parts.next()?, parts.next()?.strip_prefix('/')?);
            let mounts: &[&str] = match controllers {
                "" => &["sys/fs/cgroup/unified", "sys/fs/cgroup"],
                version_1 if version_1.split(',').any(|name| name == "cpu") => {
                    &["sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/cpu"]
                }
                _ => return None,
            };
            let mount = mounts.iter().map(|mount| root.join(mount)).find(|mount| mount.is_dir())?;
            // A group outside the cgroup namespace is shown with `..`; then only the namespace's root is readable.
            let group = if group.split('/').any(|part| part == "..") { "" } else { group };
            Some(Path::new(group).ancestors().map(|group| mount.join(group)).collect::<Vec<PathBuf>>())
        });
        let stats = folders.flatten().filter_map(|folder| fs::read_to_string(folder.join("cpu.stat")).ok());
        stats
            .map(|stat| Self::read(&stat))
            .fold(Self::default(), |sum, one| Self { periods: sum.periods + one.periods, time: sum.time + one.time })
    }

    fn read(stat: &str) -> Self {
        let field = |name: &str| {
            let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.trim().parse::<u64>().ok())
        };
        // Version 2 counts microseconds, version 1 nanoseconds.
        let time = field("throttled_usec").map(Duration::from_micros);
        let time = time.or(field("throttled_time").map(Duration::from_nanos)).unwrap_or_default();
        Self { periods: field("nr_throttled").unwrap_or(0), time }
    }

    /// Warns of throttling since `then`.
    pub(super) fn since(self, then: Self) -> Option<String> {
        let periods = self.periods.checked_sub(then.periods).filter(|periods| *periods > 0)?;
        Some(format!(
            "the control group had used up its CPU time (cpu.max) in {}, and threads waited {} for more: servers and \
             load were \
             slowed down by that limit, and not by each other; raise it, or ask for less load",
            units::plural(periods, "period"),
            units::time(self.time.saturating_sub(then.time).as_nanos() as f64),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn both_versions_are_read_with_the_groups_above() {
        let second = root(&[
            ("proc/self/cgroup", "0::/outer/inner\n"),
            ("sys/fs/cgroup/cpu.stat", "usage_usec 9\n"),
            ("sys/fs/cgroup/outer/cpu.stat", "usage_usec 5\nnr_periods 9\nnr_throttled 3\nthrottled_usec 2000\n"),
            ("sys/fs/cgroup/outer/inner/cpu.stat", "nr_throttled 4\nthrottled_usec 500\n"),
        ]);
        let read = Throttled::below(second.path());
        assert_eq!(read, Throttled { periods: 7, time: Duration::from_micros(2500) });
        let first = root(&[
            ("proc/self/cgroup", "3:cpu,cpuacct:/group\n2:memory:/other\n0::/\n"),
            ("sys/fs/cgroup/cpu,cpuacct/group/cpu.stat", "nr_periods 5\nnr_throttled 2\nthrottled_time 1500\n"),
        ]);
        assert_eq!(Throttled::below(first.path()), Throttled { periods: 2, time: Duration::from_nanos(1500) });
        assert_eq!(Throttled::below(Path::new("/nonexistent")), Throttled::default());
    }

    #[test]
    fn only_what_came_meanwhile_is_told() {
        let at = |periods, ms| Throttled { periods, time: Duration::from_millis(ms) };
        assert_eq!(at(5, 100).since(at(5, 100)), None);
        let said = at(12, 350).since(at(5, 100)).unwrap();
        assert!(said.contains("in 7 periods, and threads waited 250"), "{said}");
    }
}
