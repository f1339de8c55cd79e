//! The server over time, in a bounded number of samples.

use std::time::Duration;

use super::ServerSample;

/// The most samples of a run. In a longer one neighbours are merged in pairs, again and again.
const CAPACITY: usize = 120;
/// A sample so soon after the last one extends its interval: in less time, CPU time that the kernel has not booked yet
/// (up to a scheduler tick) would weigh too much.
const SHORTEST: Duration = Duration::from_millis(100);

/// Samples since the measured part began.
#[derive(Clone, Debug)]
pub(super) struct Samples {
    seen: Vec<Sample>,
    /// How many readings make a sample by now.
    looks_each: u32,
}

/// The end of an interval.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Duration,
    /// CPU time since the measured part began.
    cpu_seconds: f64,
    /// The most memory in the interval.
    rss: u64,
    looks: u32,
}

impl Sample {
    /// Extends the interval until `later`.
    fn extend(&mut self, later: &Self) {
        self.at = later.at;
        self.cpu_seconds = later.cpu_seconds;
        self.rss = self.rss.max(later.rss);
        self.looks += later.looks;
    }
}

impl Default for Samples {
    fn default() -> Self {
        Self { seen: Vec::new(), looks_each: 1 }
    }
}

impl Samples {
    /// Adds a reading at `at` after the start: CPU time used until then, and resident memory in bytes.
    pub(super) fn add(&mut self, at: Duration, cpu_seconds: f64, rss: u64) {
        let look = Sample { at, cpu_seconds, rss, looks: 1 };
        match self.seen.last_mut() {
            Some(last) if last.looks < self.looks_each || at < last.at + SHORTEST => last.extend(&look),
            _ => self.seen.push(look),
        }
        if self.seen.len() > CAPACITY {
            self.seen = self.seen.chunks(2).map(merged).collect();
            self.looks_each *= 2;
        }
    }

    /// Returns the samples for a report.
    pub(super) fn records(&self) -> Vec<ServerSample> {
        let (mut since, mut used) = (Duration::ZERO, 0.0);
        let record = |sample: &Sample| {
            let length = sample.at.saturating_sub(since).as_secs_f64();
            // A process that ended changes from nanoseconds to ticks, which are cut off: never report less than zero.
            let cpu = if length > 0.0 { (sample.cpu_seconds - used).max(0.0) / length } else { 0.0 };
            (since, used) = (sample.at, sample.cpu_seconds.max(used));
            ServerSample { at_s: rounded(sample.at.as_secs_f64()), cpu: rounded(cpu), rss_bytes: sample.rss }
        };
        self.seen.iter().map(record).collect()
    }
}

fn merged(neighbours: &[Sample]) -> Sample {
    let mut merged = neighbours[0];
    neighbours[1..].iter().for_each(|later| merged.extend(later));
    merged
}

/// Rounds to a ten-thousandth: further digits mean nothing.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn each_sample_is_of_the_time_since_the_one_before() {
        let mut samples = Samples::default();
        samples.add(ms(250), 0.125, 10);
        samples.add(ms(500), 0.5, 30);
        samples.add(ms(1000), 0.5, 20);
        let expected = [(0.25, 0.5, 10), (0.5, 1.5, 30), (1.0, 0.0, 20)];
        let records = samples.records();
        assert_eq!(records.iter().map(|s| (s.at_s, s.cpu, s.rss_bytes)).collect::<Vec<_>>(), expected);
        // The end of the run, right after a look.
        samples.add(ms(1010), 0.602, 40);
        let last = *samples.records().last().unwrap();
        assert_eq!((last.at_s, last.cpu, last.rss_bytes, samples.records().len()), (1.01, 0.2, 40, 3));
    }

    #[test]
    fn a_run_shorter_than_any_look_has_one() {
        let mut samples = Samples::default();
        assert_eq!(samples.records(), []);
        samples.add(ms(30), 0.03, 7);
        assert_eq!(samples.records(), [ServerSample { at_s: 0.03, cpu: 1.0, rss_bytes: 7 }]);
    }

    #[test]
    fn what_a_process_that_ended_takes_back_is_nobody_s() {
        let mut samples = Samples::default();
        samples.add(ms(500), 0.259, 1);
        samples.add(ms(1000), 0.25, 1);
        samples.add(ms(1500), 0.309, 1);
        assert_eq!(samples.records().iter().map(|s| s.cpu).collect::<Vec<_>>(), [0.518, 0.0, 0.1]);
    }

    #[test]
    fn the_longest_run_has_few_and_they_add_up() {
        for looks in [119_u32, 120, 121, 240, 241, 242, 10_000] {
            let mut samples = Samples::default();
            for look in 1..=looks {
                // Half a CPU throughout; memory peaks once.
                let rss = if look == 77 { 99 } else { 1 };
                samples.add(ms(250) * look, 0.125 * f64::from(look), rss);
            }
            let records = samples.records();
            assert!(records.len() <= CAPACITY && records.len() >= CAPACITY / 2 - 1, "{looks}: {}", records.len());
            assert!(records.iter().all(|s| s.cpu == 0.5), "{looks}: {records:?}");
            assert_eq!(records.iter().filter(|s| s.rss_bytes == 99).count(), 1);
            assert_eq!(records.last().unwrap().at_s, f64::from(looks) / 4.0);
            // All but the last are equally long.
            let lengths: Vec<f64> = records.windows(2).map(|pair| pair[1].at_s - pair[0].at_s).collect();
            assert!(lengths.iter().rev().skip(1).all(|length| *length == records[0].at_s), "{looks}: {records:?}");
        }
    }
}
