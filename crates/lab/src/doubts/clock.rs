//! The CPUs' clocks, and which CPUs share a core.

use std::fs;

use oroshi_net::CpuList;
use oroshi_words::units;

/// The clock may change by this share between runs.
const MOVED: f64 = 0.05;

/// Returns the highest clock of any CPU now, MHz: a busy one's. `None` if the machine does not tell.
pub(crate) fn megahertz() -> Option<f64> {
    let policies = fs::read_dir("/sys/devices/system/cpu/cpufreq").into_iter().flatten().flatten();
    let kilohertz = policies.filter_map(|policy| fs::read_to_string(policy.path().join("scaling_cur_freq")).ok());
    let now = kilohertz.filter_map(|text| text.trim().parse::<f64>().ok()).reduce(f64::max).map(|khz| khz / 1e3);
    now.or_else(|| highest(&fs::read_to_string("/proc/cpuinfo").ok()?))
}

/// Returns the highest `cpu MHz` in `/proc/cpuinfo`.
fn highest(cpuinfo: &str) -> Option<f64> {
    let value = |line: &str| line.strip_prefix("cpu MHz")?.split_once(':')?.1.trim().parse::<f64>().ok();
    cpuinfo.lines().filter_map(value).filter(|mhz| *mhz > 0.0).reduce(f64::max)
}

/// Warns if the clock changed between runs.
pub(super) fn moved(clocks: &[f64]) -> Option<String> {
    let (low, high) = (clocks.iter().copied().reduce(f64::min)?, clocks.iter().copied().reduce(f64::max)?);
    (high > low * (1.0 + MOVED)).then(|| {
        format!(
            "the CPU clock moved between {} and {} MHz from run to run: times and rates moved with it",
            units::number(low),
            units::number(high)
        )
    })
}

/// Returns the CPUs that share a core with this one, including itself; none if the machine does not tell.
pub(super) fn siblings(cpu: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let list = fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<CpuList>().ok());
    list.map(|list| list.iter().collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_clock_is_read() {
        let text = "processor\t: 0\ncpu MHz\t\t: 800.000\n\nprocessor\t: 1\ncpu MHz\t\t: 2596.094\nbogomips: 9\n";
        assert_eq!(highest(text), Some(2596.094));
        for nonsense in ["", "cpu MHz", "cpu MHz : fast", "cpu MHz : 0.000"] {
            assert_eq!(highest(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn a_clock_that_moves_is_named_with_its_range() {
        assert_eq!(moved(&[]), None);
        assert_eq!(moved(&[2600.0, 2500.0, 2600.0]), None);
        assert!(moved(&[2600.0, 3400.0, 2600.0]).unwrap().contains("between 2,600 and 3,400 MHz"));
    }
}
