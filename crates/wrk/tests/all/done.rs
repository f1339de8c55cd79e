//! The arguments of `done`.

use crate::common;
use crate::common::{case, record};
use oroshi_bench::Record;

/// Calls `done` with this body, whose assertions must hold.
#[track_caller]
fn done(record: Record, body: &str) {
    let script = format!("function done(summary, latency, requests)\n{body}\nend");
    case(&script, 1).done(record).unwrap_or_else(|error| panic!("{error}"));
}

#[track_caller]
fn error(body: &str) -> String {
    let case = case(&format!("\nfunction done(summary, latency, requests)\n{body}\nend"), 1);
    let error = case.done(record::closed([1, 2, 3], &[10])).unwrap_err();
    case.without_folder(&error)
}

/// For latencies, whose buckets are 0.1 % wide.
const ABOUT: &str = "local function about(a, b) return math.abs(a - b) <= b * 0.001 end ";

#[test]
fn the_summary_is_that_of_the_report() {
    done(
        record::closed([1, 2, 3], &[10, 20, 0, 5]),
        "assert(summary.duration == 400000 and summary.requests == 35 and summary.bytes == 16000)
         local e = summary.errors
         assert(e.connect == 3 and e.read == 28 and e.write == 32 and e.status == 9 and e.timeout == 64)",
    );
}

#[test]
fn latencies_are_in_microseconds() {
    done(
        record::closed((1..=1000).map(|i| i * 100), &[1]),
        &format!(
            "{ABOUT}
             assert(latency.min == 100 and latency.max == 100000 and about(latency.mean, 50050))
             assert(about(latency.stdev, 28881.94), latency.stdev)
             for p = 1, 99 do assert(about(latency:percentile(p), p * 1000), p .. ': ' .. latency:percentile(p)) end
             assert(about(latency:percentile(99.9), 99900) and about(latency.percentile(latency, 50), 50000))
             assert(latency:percentile(100) == latency.max and latency:percentile(0) == latency.min)
             assert(latency:percentile('50') == latency:percentile(50))"
        ),
    );
}

#[test]
fn distinct_values_come_in_order_with_their_counts() {
    // Below 2 ms the buckets are finer than wrk's microsecond.
    let times = (1..=9).flat_map(|i| std::iter::repeat_n(i * 7, i as usize));
    done(
        record::closed(times, &[1]),
        "assert(#latency == 9)
         local total = 0
         for i = 1, #latency do
             local value, count = latency(i)
             assert(value == i * 7 and count == i, i .. ': ' .. value .. ' ' .. count)
             assert(latency[i] == value)
             total = total + count
         end
         assert(total == 45)
         for _, i in ipairs({ 0, -1, 10, 1e18 }) do
             local value, count = latency(i)
             assert(value == 0 and count == 0)
         end",
    );
    let long = (0..5000).map(|i| 1_000_000 + i * 10);
    done(
        record::closed(long, &[1]),
        "local last, total = 0, 0
         for i = 1, #latency do
             local value, count = latency(i)
             assert(value > last and value % 1 == 0 and count > 0)
             last, total = value, total + count
         end
         assert(total == 5000 and last == latency.max and #latency > 20)",
    );
}

#[test]
fn rates_are_samples_per_thread() {
    // Two threads, tenths of a second; no sample without a response.
    done(
        record::closed([1], &[100, 200, 0, 300, 300]),
        "assert(requests.min == 500 and requests.max == 1500 and requests.mean == 1125)
         assert(math.abs(requests.stdev - 478.71) < 0.01, requests.stdev)
         assert(#requests == 3)
         local value, count = requests(3)
         assert(value == 1500 and count == 2)
         assert(requests:percentile(0) == 500 and requests:percentile(25) == 500 and requests:percentile(26) == 1000)
         assert(requests:percentile(50) == 1000 and requests:percentile(51) == 1500 and requests:percentile(100) == \
         1500)",
    );
}

#[test]
fn an_open_loop_is_told_by_its_response_times() {
    done(record::open(), "assert(latency.max == 7000 and #latency == 1)");
}

#[test]
fn backfilling_is_the_report_s() {
    let mut record = record::closed([1000, 1_000_000], &[100; 10]);
    record.requests.answered = 1000;
    let mut case = case(
        "function done(_, latency) total = 0 for i = 1, #latency do total = total + select(2, latency(i)) end \
         assert(total == EXPECTED, total) end",
        1,
    );
    // One second and ten connections: wrk expects a response each 10 ms, and makes up 98 between those and the second
    // one.
    let script = std::fs::read_to_string(case.file()).unwrap();
    for (backfill, expected) in [(false, 2), (true, 100)] {
        std::fs::write(case.file(), script.replace("EXPECTED", &expected.to_string())).unwrap();
        case.options.backfill = backfill;
        case.done(record.clone()).unwrap();
    }
}

#[test]
fn nothing_answered_is_zeros() {
    done(
        record::nothing(),
        "for _, stats in ipairs({ latency, requests }) do
             assert(stats.min == 0 and stats.max == 0 and stats.mean == 0 and stats.stdev == 0 and #stats == 0)
             assert(stats:percentile(50) == 0 and stats:percentile(100) == 0 and stats(1) == 0)
         end
         assert(summary.requests == 0 and summary.duration == 200000)",
    );
}

#[test]
fn what_is_wrong_in_done_is_told_with_its_line() {
    for (body, told) in [
        ("local x = latency:percentile(101)", "a.lua:3: percentile(101): expected a number from 0 to 100"),
        ("local x = latency:percentile(-1)", "a.lua:3: percentile(-1): expected"),
        ("local x = latency:percentile()", "a.lua:3: percentile(nil): expected"),
        ("local x = latency:percentile(0/0)", "a.lua:3: percentile("),
        ("local x = latency.median", "a.lua:3: there is no `median`: expected min, max, mean, stdev, percentile(p)"),
        ("local x = summary.nothing.more", "a.lua:3: attempt to index field 'nothing' (a nil value)"),
        ("error({})", "a.lua"),
    ] {
        let error = error(body);
        assert!(error.starts_with(told), "{body}: {error}");
    }
}

#[test]
fn a_script_without_done_has_nothing_to_say() {
    let case = case("done = 5", 1);
    assert!(!case.load().unwrap().has_done());
    case.done(record::nothing()).unwrap();
}

#[test]
fn threads_that_have_ended_are_said_to_have() {
    let case = case(
        "threads = {} function setup(thread) table.insert(threads, thread) end
         function done() local ok, why = pcall(threads[1].get, threads[1], 'x') assert(not ok and why:find('thread 1 \
         has ended'), why) end",
        1,
    );
    let wrk = case.load().unwrap();
    let peers = case.peers.clone();
    common::bounded(move || {
        drop(oroshi_bench::Script::enter(&*wrk, 0, &peers).unwrap());
        wrk.done(&record::nothing()).unwrap_or_else(|error| panic!("{error}"));
    });
}
