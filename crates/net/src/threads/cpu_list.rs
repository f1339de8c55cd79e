//! Lists of CPUs as Linux writes them: `0,2-3`.

use std::fmt;
use std::io;
use std::str::FromStr;

use rustix::thread::{CpuSet, sched_getaffinity};
use thiserror::Error;

/// CPUs in the order given, each once, at least one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CpuList(Vec<usize>);

/// Returns the CPUs on which the calling thread may run (sched_getaffinity(2)), as limited by taskset and cpusets.
pub fn available_cpus() -> io::Result<CpuList> {
    let set = sched_getaffinity(None)?;
    Ok(CpuList((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()))
}

impl CpuList {
    /// A list of one CPU.
    #[must_use]
    pub fn one(cpu: usize) -> Self {
        CpuList(vec![cpu])
    }

    /// Reads a list of CPUs that are available here. Where the kernel does not say which are, pinning will.
    ///
    /// # Errors
    /// When the text is no list, or names a CPU that is not available.
    pub fn parse_available(text: &str) -> Result<Self, CpuListError> {
        let list: CpuList = text.parse()?;
        if let Ok(available) = available_cpus()
            && let Some(cpu) = list.iter().find(|&cpu| !available.contains(cpu))
        {
            return Err(CpuListError::Unavailable { text: text.to_owned(), cpu, available });
        }
        Ok(list)
    }

    /// The CPUs in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().copied()
    }

    /// Number of CPUs.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the CPU is in the list.
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }

    /// The CPU at this position, starting over after the last.
    pub(super) fn at(&self, place: usize) -> usize {
        self.0[place % self.0.len()]
    }
}

/// Parses `0,2-3`: numbers and ranges between commas, in order of use.
impl FromStr for CpuList {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<Self, CpuListError> {
        let bad = || CpuListError::Format { text: text.to_owned() };
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |digits: &str| digits.trim().parse::<usize>().map_err(|_| bad());
            let (first, last) = (number(first)?, number(last)?);
            if last >= CpuSet::MAX_CPU {
                return Err(CpuListError::TooLarge { text: text.to_owned(), cpu: last });
            }
            if first > last {
                return Err(bad());
            }
            for cpu in first..=last {
                if cpus.contains(&cpu) {
                    return Err(CpuListError::Twice { text: text.to_owned(), cpu });
                }
                cpus.push(cpu);
            }
        }
        Ok(CpuList(cpus))
    }
}

/// Prints the list with neighbours joined: `0-3`.
impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_slice();
        let mut comma = "";
        while let Some(&first) = rest.first() {
            let run = rest.iter().zip(first..).take_while(|(cpu, expected)| *cpu == expected).count();
            match run {
                1 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{}", rest[run - 1])?,
            }
            comma = ",";
            rest = &rest[run..];
        }
        Ok(())
    }
}

/// The reason why a text is not a list of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CpuListError {
    /// Write numbers and ranges with commas between them.
    #[error("`{text}` is no list of CPUs: expected numbers and ranges, for example 0,2-3")]
    Format {
        /// The given text.
        text: String,
    },
    /// Linux numbers CPUs from 0; see /sys/devices/system/cpu/online.
    #[error("`{text}`: there is no CPU {cpu}: the highest number possible is {}", CpuSet::MAX_CPU - 1)]
    TooLarge {
        /// The given text.
        text: String,
        /// The number.
        cpu: usize,
    },
    /// Name each CPU once.
    #[error("`{text}` names CPU {cpu} twice")]
    Twice {
        /// The given text.
        text: String,
        /// The number.
        cpu: usize,
    },
    /// Name CPUs that this process may use.
    #[error("`{text}` names CPU {cpu}: expected some of those available here, {available}")]
    Unavailable {
        /// What was given.
        text: String,
        /// The number.
        cpu: usize,
        /// Those that are available.
        available: CpuList,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        for (text, cpus, canonical) in [
            ("0", vec![0], "0"),
            ("0,2-3", vec![0, 2, 3], "0,2-3"),
            ("3,1-2, 0", vec![3, 1, 2, 0], "3,1-2,0"),
            ("0,1,2,7-7", vec![0, 1, 2, 7], "0-2,7"),
        ] {
            let list: CpuList = text.parse().unwrap();
            assert_eq!(list.iter().collect::<Vec<_>>(), cpus, "{text}");
            assert_eq!(list.to_string(), canonical);
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["", "a", "1,", "-1", "3-1", "1-", "+"] {
            assert!(matches!(text.parse::<CpuList>(), Err(CpuListError::Format { .. })), "{text:?}");
        }
        assert!(matches!("0-99999999999".parse::<CpuList>(), Err(CpuListError::TooLarge { .. })));
        assert_eq!("0-2,1".parse::<CpuList>(), Err(CpuListError::Twice { text: "0-2,1".to_owned(), cpu: 1 }));
    }

    #[test]
    fn what_is_not_available_is_refused_by_its_number() {
        let available = available_cpus().unwrap();
        assert_eq!(CpuList::parse_available(&available.to_string()), Ok(available.clone()));
        let none = (0..CpuSet::MAX_CPU).find(|&cpu| !available.contains(cpu)).unwrap();
        let error = CpuList::parse_available(&none.to_string()).unwrap_err().to_string();
        let expected = format!("`{none}` names CPU {none}: expected some of those available here, {available}");
        assert_eq!(error, expected);
    }

    #[test]
    fn this_thread_may_run_somewhere() {
        assert!(available_cpus().unwrap().len() >= 1);
    }
}
