//! The machine of a run, recorded so that its figures can be judged later and elsewhere.
//!
//! [`Environment`] is how the machine is set up, captured once. [`StealMeter`] measures how its CPUs were used during
//! the run. Values that cannot be read, in a container or on another kernel, are left out; nothing here fails.

mod meters;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use oroshi_net::CpuList;
use serde::{Deserialize, Serialize};

pub use meters::{CpuShare, CpuShares, StealMeter};

/// How the machine is set up. A field is `None` where it cannot be read, or does not apply.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// Version of oroshi.
    pub oroshi: String,
    /// The command line. The caller fills it in, because it knows which parts are secret.
    pub command: Vec<String>,
    /// Release of the kernel: `uname -r`.
    pub kernel: String,
    /// The kernel's identity since it started (`/proc/sys/kernel/random/boot_id`): two runs with the same one were on
    /// the same machine.
    pub boot_id: Option<String>,
    /// Machine type: `uname -m`.
    pub architecture: String,
    /// The CPUs.
    pub cpu: Cpu,
    /// Memory of the machine, bytes.
    pub memory_bytes: Option<u64>,
    /// Limits of this process's control group.
    pub cgroup: Cgroup,
    /// Product name of the virtual machine, or `unknown hypervisor`; `None` on what looks like bare metal.
    pub virtual_machine: Option<String>,
    /// The kernel's clock source: `tsc` is quick, `hpet` and `acpi_pm` cost a microsecond per reading.
    pub clocksource: Option<String>,
    /// Settings of this network namespace.
    pub sysctl: Sysctl,
    /// Limit of open descriptors of this process (RLIMIT_NOFILE).
    pub descriptors: DescriptorLimit,
    /// Load average over 1, 5 and 15 minutes, before the run.
    pub load_average: Option<[f64; 3]>,
}

/// The CPUs of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cpu {
    /// Model name.
    pub model: Option<String>,
    /// CPUs that are online.
    pub online: Option<usize>,
    /// CPUs that this process may run on, such as `0-3,8`.
    pub affinity: Option<String>,
    /// Frequency governors in use, such as `performance`.
    pub governor: Option<String>,
    /// Whether the clock may rise above its nominal frequency.
    pub turbo: Option<bool>,
    /// Whether two threads share a core.
    pub smt: Option<bool>,
}

/// Limits by control groups of version 2: the least of the group and its ancestors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cgroup {
    /// CPUs' worth of time (`cpu.max`); `None`: no limit.
    pub cpus: Option<f64>,
    /// Memory in bytes (`memory.max`); `None`: no limit.
    pub memory_bytes: Option<u64>,
}

/// Kernel settings that decide how many connections can be opened and accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sysctl {
    /// `net.ipv4.ip_local_port_range`: first and last port for outgoing connections.
    pub ip_local_port_range: Option<(u16, u16)>,
    /// `net.ipv4.tcp_tw_reuse`: 0 never, 1 always, 2 over loopback.
    pub tcp_tw_reuse: Option<u64>,
    /// `net.core.somaxconn`: the longest listen backlog.
    pub somaxconn: Option<u64>,
    /// `net.ipv4.tcp_max_syn_backlog`: half-open connections per listener.
    pub tcp_max_syn_backlog: Option<u64>,
}

/// RLIMIT_NOFILE; `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DescriptorLimit {
    /// The limit in force.
    pub soft: Option<u64>,
    /// The highest value to which the process may raise it.
    pub hard: Option<u64>,
}

impl Environment {
    /// Captures the current state of the machine.
    pub fn capture() -> Self {
        Self::capture_at(Path::new("/"))
    }

    /// Reads files under another root than `/`.
    fn capture_at(root: &Path) -> Self {
        let files = Files { root };
        let uname = rustix::system::uname();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        Self {
            oroshi: env!("CARGO_PKG_VERSION").to_owned(),
            command: Vec::new(),
            kernel: uname.release().to_string_lossy().into_owned(),
            boot_id: files.read("proc/sys/kernel/random/boot_id"),
            architecture: uname.machine().to_string_lossy().into_owned(),
            cpu: Cpu::read(&files),
            memory_bytes: files.field("proc/meminfo", "MemTotal").and_then(|text| kibibytes(&text)),
            cgroup: Cgroup::read(&files, "self"),
            virtual_machine: virtual_machine(&files),
            clocksource: files.read("sys/devices/system/clocksource/clocksource0/current_clocksource"),
            sysctl: Sysctl::read(&files),
            descriptors: DescriptorLimit { soft: limit.current, hard: limit.maximum },
            load_average: files.read("proc/loadavg").and_then(|text| load_average(&text)),
        }
    }
}

/// Returns the CPUs' worth of time that a process's control groups allow; `None` without a limit.
pub(crate) fn cpu_limit_of(pid: u32) -> Option<f64> {
    Cgroup::read(&Files { root: Path::new("/") }, &pid.to_string()).cpus
}

impl Cpu {
    fn read(files: &Files<'_>) -> Self {
        let governors: BTreeSet<String> = files
            .list("sys/devices/system/cpu/cpufreq")
            .into_iter()
            .filter_map(|policy| files.read(policy.join("scaling_governor")))
            .collect();
        // Intel's driver asks the question the other way round.
        let turbo = files.switch("sys/devices/system/cpu/cpufreq/boost");
        let no_turbo = files.switch("sys/devices/system/cpu/intel_pstate/no_turbo");
        Self {
            model: files.field("proc/cpuinfo", "model name"),
            online: files
                .read("sys/devices/system/cpu/online")
                .and_then(|text| Some(text.parse::<CpuList>().ok()?.len())),
            affinity: oroshi_net::available_cpus().ok().map(|cpus| cpus.to_string()),
            governor: (!governors.is_empty()).then(|| Vec::from_iter(governors).join(", ")),
            turbo: turbo.or(no_turbo.map(|off| !off)),
            smt: files.switch("sys/devices/system/cpu/smt/active"),
        }
    }
}

impl Cgroup {
    /// Reads the limits of a process (its id, or `self`).
    fn read(files: &Files<'_>, process: &str) -> Self {
        let mut limits = Self::default();
        let groups = files.read(format!("proc/{process}/cgroup")).unwrap_or_default();
        let Some(group) = groups.lines().find_map(|line| line.strip_prefix("0::/")) else { return limits };
        // Beside version 1, version 2 is mounted in a folder of its own.
        let mounts = ["sys/fs/cgroup/unified", "sys/fs/cgroup"];
        let Some(mount) = mounts.into_iter().find(|mount| files.has(Path::new(mount).join("cgroup.controllers")))
        else {
            return limits;
        };
        // From outside its namespace a group is shown with `..`; then only the namespace's own root can be read.
        let group = if group.split('/').any(|part| part == "..") { "" } else { group };
        for group in Path::new(group).ancestors() {
            let folder = Path::new(mount).join(group);
            limits.cpus =
                least(limits.cpus, files.read(folder.join("cpu.max")).and_then(|text| cpu_max(&text)), f64::min);
            let memory = files.read(folder.join("memory.max")).and_then(|text| text.parse().ok());
            limits.memory_bytes = least(limits.memory_bytes, memory, u64::min);
        }
        limits
    }
}

impl Sysctl {
    fn read(files: &Files<'_>) -> Self {
        let number = |path: &str| files.read(format!("proc/sys/net/{path}"))?.parse().ok();
        let range = files.read("proc/sys/net/ipv4/ip_local_port_range").and_then(|text| {
            let mut ports = text.split_whitespace().map(str::parse);
            Some((ports.next()?.ok()?, ports.next()?.ok()?))
        });
        Self {
            ip_local_port_range: range,
            tcp_tw_reuse: number("ipv4/tcp_tw_reuse"),
            somaxconn: number("core/somaxconn"),
            tcp_max_syn_backlog: number("ipv4/tcp_max_syn_backlog"),
        }
    }
}

/// Files that may be missing, below a root.
struct Files<'r> {
    root: &'r Path,
}

impl Files<'_> {
    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = fs::read(self.root.join(path)).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn has(&self, path: impl AsRef<Path>) -> bool {
        self.root.join(path).exists()
    }

    /// The value of the first line `name : value`.
    fn field(&self, path: &str, name: &str) -> Option<String> {
        let text = self.read(path)?;
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        lines
            .map(|(key, value)| (key.trim(), value.trim()))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.to_owned())
    }

    /// A file that says 0 or 1.
    fn switch(&self, path: &str) -> Option<bool> {
        match self.read(path)?.as_str() {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        }
    }

    /// Lists a folder, as paths below the root.
    fn list(&self, folder: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.root.join(folder)).into_iter().flatten().flatten();
        entries.map(|entry| Path::new(folder).join(entry.file_name())).collect()
    }
}

/// The hypervisor, if there is one.
fn virtual_machine(files: &Files<'_>) -> Option<String> {
    let hypervisor = files.read("sys/hypervisor/type");
    let flags = files.field("proc/cpuinfo", "flags").unwrap_or_default();
    if hypervisor.is_none() && !flags.split(' ').any(|flag| flag == "hypervisor") {
        return None;
    }
    let product = files.read("sys/class/dmi/id/product_name");
    hypervisor.or(product).or_else(|| Some("unknown hypervisor".to_owned()))
}

/// `cpu.max`: `quota period` in microseconds, or `max period`.
fn cpu_max(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (period > 0.0).then_some(quota / period)
}

fn least<T>(one: Option<T>, other: Option<T>, min: fn(T, T) -> T) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(min(one, other)),
        (one, other) => one.or(other),
    }
}

/// `12345 kB` in bytes.
fn kibibytes(text: &str) -> Option<u64> {
    text.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn load_average(text: &str) -> Option<[f64; 3]> {
    let mut fields = text.split(' ').map(str::parse);
    Some([fields.next()?.ok()?, fields.next()?.ok()?, fields.next()?.ok()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files in a folder of their own, removed in the end.
    struct Tree(PathBuf);

    impl Tree {
        fn with(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("oroshi-environment-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            fs::create_dir_all(&root).unwrap();
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }

        fn files(&self) -> Files<'_> {
            Files { root: &self.0 }
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn this_machine_has_a_kernel_and_a_cpu() {
        let here = Environment::capture();
        assert_eq!(here.kernel, fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().trim());
        let affinity: CpuList = here.cpu.affinity.unwrap().parse().unwrap();
        assert!(affinity.len() >= 1);
        assert!(here.descriptors.soft.unwrap_or(u64::MAX) <= here.descriptors.hard.unwrap_or(u64::MAX));
    }

    /// What a container without `/proc` and `/sys` would leave.
    #[test]
    fn nothing_to_read_is_no_failure() {
        let tree = Tree::with("empty", &[]);
        let bare = Environment::capture_at(&tree.0);
        let affinity = bare.cpu.affinity.clone();
        assert_eq!(bare.cpu, Cpu { affinity, ..Cpu::default() });
        assert_eq!((bare.cgroup, bare.sysctl), (Cgroup::default(), Sysctl::default()));
        assert_eq!((bare.memory_bytes, bare.load_average, bare.virtual_machine), (None, None, None));
    }

    #[test]
    fn files_full_of_nonsense_are_no_failure() {
        let nonsense = [
            "proc/cpuinfo",
            "proc/meminfo",
            "proc/loadavg",
            "proc/self/cgroup",
            "proc/sys/net/ipv4/ip_local_port_range",
            "sys/devices/system/cpu/online",
            "sys/devices/system/cpu/smt/active",
        ];
        for text in ["", "\n", ":", "::::", "0::/../..", "MemTotal: kB", "1", "-1 99999999999999999999 x"] {
            let files: Vec<_> = nonsense.iter().map(|path| (*path, text)).collect();
            let tree = Tree::with("nonsense", &files);
            let read = Environment::capture_at(&tree.0);
            assert_eq!(
                (read.cgroup, read.memory_bytes, read.load_average),
                (Cgroup::default(), None, None),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_machine_is_described() {
        let tree = Tree::with(
            "machine",
            &[
                (
                    "proc/cpuinfo",
                    "processor : 0\nmodel name\t: Iron: 9000\nflags\t\t: fpu hypervisor\n\nprocessor : 1\n",
                ),
                ("proc/meminfo", "MemTotal:        2048 kB\nMemFree: 1 kB\n"),
                ("proc/loadavg", "0.50 1.25 2.00 1/100 4242\n"),
                ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
                ("proc/sys/net/core/somaxconn", "4096\n"),
                ("sys/devices/system/cpu/online", "0-2,5\n"),
                ("sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "powersave\n"),
                ("sys/devices/system/cpu/cpufreq/policy1/scaling_governor", "performance\n"),
                ("sys/devices/system/cpu/cpufreq/policy2/scaling_governor", "performance\n"),
                ("sys/devices/system/cpu/intel_pstate/no_turbo", "1\n"),
                ("sys/devices/system/cpu/smt/active", "1\n"),
                ("sys/class/dmi/id/product_name", "KVM\n"),
            ],
        );
        let read = Environment::capture_at(&tree.0);
        assert_eq!(read.cpu.model.as_deref(), Some("Iron: 9000"));
        assert_eq!((read.cpu.online, read.cpu.turbo, read.cpu.smt), (Some(4), Some(false), Some(true)));
        assert_eq!(read.cpu.governor.as_deref(), Some("performance, powersave"));
        assert_eq!((read.memory_bytes, read.load_average), (Some(2 << 20), Some([0.5, 1.25, 2.0])));
        assert_eq!(read.virtual_machine.as_deref(), Some("KVM"));
        assert_eq!(read.sysctl.ip_local_port_range, Some((32768, 60999)));
        assert_eq!((read.sysctl.somaxconn, read.sysctl.tcp_tw_reuse), (Some(4096), None));
    }

    #[test]
    fn the_tightest_of_nested_groups_counts() {
        let nested = [
            ("proc/self/cgroup", "3:cpu:/old\n0::/outer/inner\n"),
            ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
            ("sys/fs/cgroup/outer/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/outer/memory.max", "1000\n"),
            ("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/outer/inner/memory.max", "5000\n"),
        ];
        let tree = Tree::with("nested", &nested);
        let limits = Cgroup::read(&tree.files(), "self");
        assert_eq!(limits, Cgroup { cpus: Some(1.5), memory_bytes: Some(1000) });
        assert_eq!(Cgroup::read(&tree.files(), "4242"), Cgroup::default());
    }
}
