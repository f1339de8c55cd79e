//! CPUs that do not share a core.

use super::cpu_list::available_cpus;

/// Two CPUs on different cores where there are such: one for the load, one for the server.
#[must_use]
pub fn two_cpus() -> Option<(usize, usize)> {
    let cpus = available_cpus().ok()?;
    let mut rest = cpus.iter();
    let first = rest.next()?;
    let others: Vec<usize> = rest.collect();
    // Threads of one core share it; a core of another socket is far away.
    let apart = |cpu: &&usize| core_of(**cpu) != core_of(first) && package_of(**cpu) == package_of(first);
    let second = others.iter().find(apart).or_else(|| others.iter().find(|cpu| core_of(**cpu) != core_of(first)));
    Some((first, *second.or_else(|| others.first())?))
}

fn core_of(cpu: usize) -> (Option<String>, Option<String>) {
    (package_of(cpu), topology(cpu, "core_id"))
}

fn package_of(cpu: usize) -> Option<String> {
    topology(cpu, "physical_package_id")
}

fn topology(cpu: usize, what: &str) -> Option<String> {
    std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/{what}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cpus_are_two() {
        let available = available_cpus().unwrap();
        match two_cpus() {
            Some((a, b)) => assert!(a != b && available.contains(a) && available.contains(b)),
            None => assert_eq!(available.len(), 1),
        }
    }
}
