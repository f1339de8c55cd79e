//! Counts the requests in a window of time, some of which cross its edges.
//!
//! A request within the window counts as one. A request across an edge counts as the share of its time within. The
//! count therefore does not jump as an edge moves: for a connection that sends requests of length `d` one after the
//! other, a window of length `T` holds `T / d`, wherever it begins.
//!
//! # Its error
//!
//! For a connection whose requests take times with mean `m` and coefficient of variation `c` (standard deviation by
//! mean):
//!
//! - If a request is under way when the window opens, as after a warm-up, the expected count is `T / m` exactly, for
//!   any distribution. (The request under way has length `l` with a probability in proportion to `l`, and counts `1 /
//!   l` per unit of time: `1 / m` on average.)
//! - If a request begins just when the window opens, as without a warm-up, the expected count is `T / m + c² / 2`: no
//!   error for constant times, half a request too many per connection for exponential ones.
//! - A request that never ended counts as none. It could have counted as anything up to the share of its time *until
//!   it was given up*. [`WindowCount::unknown`] is the sum of these shares, and the true count lies between
//!   [`WindowCount::requests`] and the sum of the two.
//!
//! Counting whole responses instead has an error of up to one request per connection, and connections in step err
//! together: by 10 % in a window of ten rounds.

use serde::{Deserialize, Serialize};

/// Requests within a window, each counted by the share of its time inside. Times are nanoseconds of one clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WindowCount {
    from: u64,
    until: u64,
    whole: u64,
    parts: f64,
    unknown: f64,
}

impl Default for WindowCount {
    /// A window without edges.
    fn default() -> Self {
        Self { from: 0, until: u64::MAX, whole: 0, parts: 0.0, unknown: 0.0 }
    }
}

impl WindowCount {
    /// Makes a window that opens at `from` and stays open until [`close`](Self::close).
    #[must_use]
    pub fn from(from: u64) -> Self {
        Self { from, ..Self::default() }
    }

    /// Sets the start of the window. Call it before any request ends that began earlier.
    pub fn open(&mut self, from: u64) {
        self.from = from;
    }

    /// Closes the window at `until`. Call it before counting any later response.
    pub fn close(&mut self, until: u64) {
        self.until = until;
    }

    /// Returns the window closed so many nanoseconds after it opened, for a count that nobody continues.
    #[must_use]
    pub fn closed_after(self, length: u64) -> Self {
        Self { until: self.from.saturating_add(length), ..self }
    }

    /// Counts a request that began at `began` and whose response was complete at `ended`.
    #[inline]
    pub fn answered(&mut self, began: u64, ended: u64) {
        if began >= self.from && ended <= self.until {
            self.whole += 1;
        } else {
            self.parts += self.share(began, ended);
        }
    }

    /// Counts a request without a response, begun at `began` and given up at `given_up`.
    pub fn unanswered(&mut self, began: u64, given_up: u64) {
        self.unknown += self.share(began, given_up);
    }

    /// Number of requests in the window.
    #[must_use]
    pub fn requests(&self) -> f64 {
        self.whole as f64 + self.parts
    }

    /// The most requests to add if those given up had been answered at that moment.
    #[must_use]
    pub fn unknown(&self) -> f64 {
        self.unknown
    }

    /// Length of the window, nanoseconds; 0 while it is open.
    #[must_use]
    pub fn length(&self) -> u64 {
        if self.until == u64::MAX { 0 } else { self.until.saturating_sub(self.from) }
    }

    /// The share of `began..ended` that lies in the window.
    fn share(&self, began: u64, ended: u64) -> f64 {
        let within = ended.min(self.until).saturating_sub(began.max(self.from));
        match ended.saturating_sub(began) {
            // A request of zero length lies inside or outside.
            0 => f64::from(u8::from(began >= self.from && began <= self.until)),
            length => within as f64 / length as f64,
        }
    }
}

/// Requests of several simultaneous windows, one per thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Throughput {
    /// Requests in all windows together.
    pub requests: f64,
    /// The most requests to add if those given up had been answered.
    pub unknown: f64,
    /// Requests per second: the sum of the windows' rates.
    pub per_second: f64,
}

impl Throughput {
    /// Combines windows that ended by the clock: each has a rate by its own length, and the rates add up.
    #[must_use]
    pub fn of(windows: &[WindowCount]) -> Self {
        Self::with(windows, WindowCount::length)
    }

    /// Combines windows that ended after their share of a number of requests. All count as long as the longest,
    /// because the whole took that long.
    #[must_use]
    pub fn of_number(windows: &[WindowCount]) -> Self {
        let longest = windows.iter().map(WindowCount::length).max().unwrap_or(0);
        Self::with(windows, |_| longest)
    }

    fn with(windows: &[WindowCount], length: impl Fn(&WindowCount) -> u64) -> Self {
        let rate = |window: &WindowCount| match length(window) {
            0 => 0.0,
            length => window.requests() / (length as f64 / 1e9),
        };
        Self {
            requests: windows.iter().map(WindowCount::requests).sum(),
            unknown: windows.iter().map(WindowCount::unknown).sum(),
            per_second: windows.iter().map(rate).sum(),
        }
    }
}

/// Returns how long to await outstanding responses after a window of `length`, in nanoseconds.
///
/// The longest of: twice the `longest` response time seen in the window, a tenth of its length, and 100 ms; without
/// any response, the window's length. At most `timeout`, and at most 10 s.
#[must_use]
pub fn patience(length: u64, longest: Option<u64>, timeout: u64) -> u64 {
    const LEAST: u64 = 100_000_000;
    const MOST: u64 = 10_000_000_000;
    let enough = longest.map_or(length, |longest| longest.saturating_mul(2).max(length / 10));
    enough.max(LEAST).min(timeout).min(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_awaited_for_as_long_as_they_may_take_and_no_longer() {
        let ms = |ms: u64| ms * 1_000_000;
        let of = |length, longest: Option<u64>, timeout| patience(ms(length), longest.map(ms), ms(timeout)) / ms(1);
        assert_eq!(of(1000, Some(103), 2000), 206);
        assert_eq!((of(1000, Some(1), 2000), of(100, Some(1), 2000)), (100, 100));
        assert_eq!((of(10_000, Some(1), 2000), of(10_000, Some(1500), 2000)), (1000, 2000));
        assert_eq!((of(300, None, 2000), of(20, None, 2000), of(5000, None, 2000)), (300, 100, 2000));
        assert_eq!((of(60_000, None, 60_000), of(60_000, Some(50_000), 60_000)), (10_000, 10_000));
        assert_eq!(of(1000, Some(10), 50), 50);
    }

    #[test]
    fn a_request_counts_as_the_share_of_it_that_lies_within() {
        let mut window = WindowCount::from(100);
        window.close(200);
        let count = |began, ended| {
            let mut window = window;
            window.answered(began, ended);
            window.requests()
        };
        assert_eq!([count(100, 200), count(120, 130), count(100, 100)], [1.0; 3]);
        assert_eq!([count(80, 120), count(180, 220), count(50, 250), count(0, 800)], [0.5, 0.5, 0.5, 0.125]);
        assert_eq!([count(0, 100), count(200, 300), count(99, 99)], [0.0; 3]);
        window.unanswered(150, 350);
        assert_eq!((window.requests(), window.unknown(), window.length()), (0.0, 0.25, 100));
    }

    #[test]
    fn windows_of_several_cores_add_up_by_their_own_lengths_or_by_the_longest() {
        let window = |length, requests| {
            let mut window = WindowCount::from(0);
            window.close(length);
            (0..requests).for_each(|_| window.answered(0, 1));
            window
        };
        let windows = [window(1_000_000_000, 100), window(2_000_000_000, 100)];
        assert_eq!(Throughput::of(&windows), Throughput { requests: 200.0, unknown: 0.0, per_second: 150.0 });
        assert_eq!(Throughput::of_number(&windows).per_second, 100.0);
        assert_eq!(Throughput::of(&[WindowCount::default()]).per_second, 0.0, "one that is open has no rate");
        assert_eq!(Throughput::of(&[]), Throughput::default());
    }
}
