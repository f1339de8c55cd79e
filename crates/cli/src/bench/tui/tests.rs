//! The picture at several sizes, on a terminal for tests.

use std::time::Duration;

use oroshi_bench::follow::Stage;
use oroshi_bench::{Course, Failure, FailureCounts, PointData, Progress};
use oroshi_stats::Sketch;
use ratatui_core::backend::TestBackend;
use ratatui_core::terminal::Terminal;

use super::picture::{Known, Phase, draw, span};
use super::{MOST_VALUES, Means};

const SIZES: [(u16, u16); 3] = [(60, 15), (80, 24), (160, 48)];
const WIDTH: Duration = Duration::from_millis(100);

/// A point with a hundred requests of 1 ms, and one that takes as many milliseconds as this.
fn point(slow_ms: u64) -> PointData {
    let mut service = Sketch::new();
    (0..99).for_each(|_| service.record(1_000_000));
    service.record(slow_ms * 1_000_000);
    PointData { requests: 100, service, ..PointData::default() }
}

fn progress(points: usize) -> Progress {
    let mut failures = FailureCounts::default();
    failures.add_many(Failure::Status, 1200);
    failures.add_many(Failure::Timeout, 3);
    Progress {
        stage: Stage::Measuring,
        elapsed: WIDTH * points as u32,
        left: Some(Duration::from_secs(10).saturating_sub(WIDTH * points as u32)),
        done: 100 * points as u64,
        rate: 61_234.4,
        service: point(20).service,
        errors: 1203,
        failures,
        server_cpu: Some(0.934),
        alive: 99,
    }
}

/// A run after so many points.
fn known(points: usize) -> Known {
    let mut known = Known {
        title: "http://127.0.0.1:8080/".into(),
        connections: 100,
        phase: Phase::Measuring,
        progress: Some(progress(points)),
        server: vec![0.5; points],
        ..Known::default()
    };
    let points = vec![point(20); points];
    known.take(&Course { points: &points, width: WIDTH, complete: points.len() });
    known
}

/// The lines of the picture.
fn lines(known: &Known, (width, height): (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(known, frame.area(), frame.buffer_mut())).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(row).collect()
}

/// The line that begins with this word.
#[track_caller]
fn line<'l>(lines: &'l [String], word: &str) -> &'l str {
    let found = lines.iter().find(|line| line.trim_start().starts_with(word));
    found.unwrap_or_else(|| panic!("no `{word}` in\n{}", lines.join("\n")))
}

/// The words of a line.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn all_figures_stand_there_at_every_size() {
    for size in SIZES {
        let lines = lines(&known(50), size);
        assert!(lines[0].starts_with(" http://127.0.0.1:8080/ "), "{lines:?}");
        assert!(lines[0].trim_end().ends_with(" 99/100 connections"), "{lines:?}");
        assert!(lines[1].starts_with(" measuring  ━"), "{lines:?}");
        assert!(lines[1].trim_end().ends_with("─  5s left of 10s"), "{lines:?}");
        assert_eq!(words(line(&lines, "rate"))[1..3], ["61,234/s", "1,000/s"], "now, and the run");
        for percentile in ["p50", "p90"] {
            assert!(words(line(&lines, percentile))[1].starts_with("1.0"), "{lines:?}");
        }
        assert!(words(line(&lines, "p99.9"))[1].starts_with("20"), "{lines:?}");
        assert_eq!(words(line(&lines, "server CPU"))[2..6], ["93", "%", "50", "%"]);
        let counted = words(line(&lines, "5,000 answered")).join(" ");
        assert!(counted.starts_with("5,000 answered 1,203 errors "), "{counted}");
        assert_eq!(counted.contains("1,200 x status 3 x timeout"), size.0 >= 80, "{counted}");
        assert_eq!(counted.contains("+2 other names"), size.0 < 80, "none is cut in the middle: {counted}");
        let axis = lines.iter().find(|line| line.contains("0s└─")).unwrap();
        assert!(axis.contains(" 5s ") && axis.contains("of 5,000"), "{axis}");
        let histogram: Vec<&String> = lines.iter().filter(|line| line.contains('│')).collect();
        assert!(histogram.iter().any(|line| line.trim_end().ends_with(" 99 %")), "{histogram:?}");
        assert!(histogram.iter().any(|line| line.trim_end().ends_with(" 1.0 %")), "{histogram:?}");
        assert_eq!(histogram.iter().any(|line| line.contains(" 4,950 ")), size.0 >= 160, "{histogram:?}");
    }
}

#[test]
fn sparklines_and_maps_grow() {
    let filled = |points: usize, size: (u16, u16)| {
        let lines = lines(&known(points), size);
        let bars = |c: char| ('▁'..='█').contains(&c);
        let course = line(&lines, "rate").chars().filter(|c| bars(*c)).count();
        // The row with the most requests, left of the histogram.
        let dense = lines
            .iter()
            .filter_map(|line| line.split_once('│'))
            .map(|(_, map)| map.chars().take_while(|c| "░▒▓█".contains(*c)).count());
        (course, dense.max().unwrap())
    };
    assert_eq!([1, 5, 12].map(|points| filled(points, (60, 15))), [(1, 1), (5, 5), (12, 12)]);
    // When all columns are in use, neighbours are merged.
    assert_eq!(filled(200, (80, 24)), (40, 40));
    assert_eq!(filled(600, (160, 48)), (120, 100));
}

#[test]
fn lines_of_the_server_have_the_same_columns_as_the_others() {
    let known = Known { server: (0..333).map(|n| f64::from(n) / 333.0).collect(), ..known(90) };
    let lines = lines(&known, (80, 24));
    let bars = |word| line(&lines, word).chars().filter(|c| ('▁'..='█').contains(c)).count();
    assert_eq!((bars("rate"), bars("server CPU")), (45, 45));
}

#[test]
fn every_size_has_a_picture_that_fits() {
    let agents: Vec<String> = (0..30).map(|n| format!("  agent-{n}: 1,234 answered  0 errors")).collect();
    let known = Known { agents, note: Some("warning: é".repeat(50)), ..known(350) };
    for width in 1..180 {
        for height in 1..60 {
            let lines = lines(&known, (width, height));
            if width < 50 || height < 11 {
                let text = format!("{width} x {height}: the view needs 50 x 11");
                assert_eq!(lines[0].trim_end() == text, text.len() <= usize::from(width), "{lines:?}");
                continue;
            }
            assert!(lines[0].contains("connections"), "{lines:?}");
            assert_eq!(lines.iter().any(|line| line.contains("0s└")), height >= 14, "{width} x {height}: {lines:?}");
            let needed = lines.iter().any(|line| line.contains("more row"));
            assert_eq!(needed, (11..14).contains(&height), "{width} x {height}: {lines:?}");
        }
    }
    let lines = lines(&known, (100, 30));
    assert!(lines.iter().any(|line| line.contains(" more agents not shown")), "{lines:?}");
}

#[test]
fn a_run_without_figures_says_what_it_waits_for() {
    let known = Known { title: "http://h/\x1b[2J".into(), connections: 3, ..Known::default() };
    let lines = lines(&known, (80, 24));
    assert!(lines[0].contains(r"http://h/\u{1b}[2J") && lines[0].contains("0/3 connections"), "{lines:?}");
    assert!(lines[1].contains("opening connections") && line(&lines, "p50").contains(" - "), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("begins with the first responses")), "{lines:?}");
}

#[test]
fn long_times_are_told_in_minutes_and_hours() {
    let texts = [7.0, 119.0, 120.0, 3_599.0, 3_600.0, 90_061.0].map(span);
    assert_eq!(texts, ["7s", "119s", "2m 00s", "59m 59s", "1h 00m", "25h 01m"]);
}

#[test]
fn a_number_of_requests_takes_the_place_of_the_time_left() {
    let mut known = known(10);
    (known.requests, known.progress.as_mut().unwrap().left) = (Some(4000), None);
    let lines = lines(&known, (80, 24));
    assert!(lines[1].trim_end().ends_with("─  1,000 of 4,000 answered"), "{lines:?}");
    let (full, empty) = (lines[1].matches('━').count(), lines[1].matches('─').count());
    assert!(full.abs_diff((full + empty) / 4) <= 1, "{lines:?}");
}

#[test]
fn points_are_copied_each_time_also_the_complete_ones() {
    let (a, b, c) = (point(20), point(40), point(80));
    let mut known = Known::default();
    let requests = |known: &Known| known.points.iter().map(|point| point.service.max() / 1_000_000).collect::<Vec<_>>();
    known.take(&Course { points: &[a.clone(), b.clone()], width: WIDTH, complete: 1 });
    // A silent agent has added to the first one.
    known.take(&Course { points: &[c.clone(), c.clone(), b.clone()], width: WIDTH, complete: 2 });
    assert_eq!(requests(&known), [80, 80, 40]);
    // Neighbours were merged.
    known.take(&Course { points: &[b.clone(), a], width: WIDTH * 2, complete: 1 });
    assert_eq!(requests(&known), [40, 20]);
    known.take(&Course { points: &[], width: WIDTH * 2, complete: 0 });
    assert!(requests(&known).is_empty());
}

#[test]
fn means_are_as_wide_as_each_other_however_many_values_there_are() {
    let mut means = Means::default();
    (0..100_000).for_each(|n| means.add(f64::from(n)));
    let values = &means.values;
    assert!((MOST_VALUES / 2..=MOST_VALUES).contains(&values.len()), "{}", values.len());
    let step = values[1] - values[0];
    assert!(values.windows(2).all(|pair| (pair[1] - pair[0] - step).abs() < 1e-6), "{step}");
}
