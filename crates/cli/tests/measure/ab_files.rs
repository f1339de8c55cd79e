//! What `-g` and `-e` write, beside ab's own files and beside the report of the same run.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::ab::{Report, ab, ours};
use crate::common::support::nginx;
use crate::common::support::peer::{Peer, Place, Port};
use crate::common::support::{OK, wait_until};
use crate::common::{OROSHI, Ran, answering, bench, measured};
use oroshi_bench::Record;
use rustix::process::{Pid, Signal, kill_process};

/// The columns of a `-g` file, and its header.
struct List {
    rows: Vec<(String, f64, [f64; 4])>,
}

impl List {
    #[track_caller]
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("starttime\tseconds\tctime\tdtime\tttime\twait"));
        let rows = lines.map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            let numbers: Vec<f64> = fields[1..].iter().map(|field| field.parse().unwrap()).collect();
            (fields[0].to_owned(), numbers[0], numbers[1..].try_into().unwrap_or_else(|_| panic!("{line}")))
        });
        Self { rows: rows.collect() }
    }

    fn column(&self, n: usize) -> impl Iterator<Item = f64> {
        self.rows.iter().map(move |row| row.2[n])
    }

    fn sum(&self, n: usize) -> f64 {
        self.column(n).sum()
    }

    /// `Sun Nov 22 07:39:58 2026`, as far as letters and places go.
    #[track_caller]
    fn has_dates(&self) {
        let shape = |date: &str| {
            let kind = |c: char| {
                if c.is_ascii_digit() {
                    '0'
                } else if c.is_alphabetic() {
                    'a'
                } else {
                    c
                }
            };
            date.chars().map(kind).collect::<String>()
        };
        assert!(self.rows.iter().all(|row| shape(&row.0) == "aaa aaa 00 00:00:00 0000"), "{:?}", self.rows[0]);
    }
}

#[test]
fn the_files_are_abs_and_the_list_is_in_time_order() {
    let test = "the_files_are_abs_and_the_list_is_in_time_order";
    let Some(nginx) = nginx::start(test, 1) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    for (kept, theirs, flags) in [(true, &["-k"][..], &[][..]), (false, &[], &["--close"])] {
        let run = |run: &dyn Fn(&[&str]) -> Option<Report>, flags: &[&str], who: &str| {
            let [list, csv] = ["list", "csv"].map(|kind| file(&format!("{who}.{kind}")));
            let files = ["-g", list.to_str().unwrap(), "-e", csv.to_str().unwrap()];
            let report = run(&[flags, &["-n", "500", "-c", "4"], &files, &[&nginx.http]].concat())?;
            Some((report, List::read(&list), std::fs::read_to_string(csv).unwrap()))
        };
        let Some((_, their_list, their_csv)) = run(&|args| ab(test, args), theirs, "ab") else { return };
        let exact = [flags, &["--ab-decimals", "6"]].concat();
        let (report, our_list, our_csv) = run(&|args| Some(ours(args)), &exact, "ours").unwrap();

        assert_eq!((their_list.rows.len(), our_list.rows.len()), (500, 500));
        their_list.has_dates();
        our_list.has_dates();
        let percents = |csv: &str| csv.lines().map(|row| row.split(',').next().unwrap().to_owned()).collect::<Vec<_>>();
        assert_eq!(percents(&their_csv), percents(&our_csv));
        assert_eq!(their_csv.lines().next(), our_csv.lines().next());
        // Three digits after the point.
        let digits = |csv: &str| csv.lines().skip(1).all(|row| row.split('.').nth(1).is_some_and(|d| d.len() == 3));
        assert!(digits(&their_csv) && digits(&our_csv), "{our_csv}");

        assert!(our_list.rows.is_sorted_by(|one, next| one.1 <= next.1), "in time order");
        assert!(
            our_list.rows.iter().all(|row| (row.2[0] + row.2[1] - row.2[2]).abs() < 2e-6),
            "the parts are the whole"
        );
        assert!(our_list.rows.iter().all(|row| row.2[3] <= row.2[1]), "waiting is a part of processing");
        let connected = our_list.column(0).filter(|ctime| *ctime > 0.0).count();
        assert_eq!(connected, if kept { 4 } else { 500 });

        // The list, the table, the percentages and the CSV tell of the same times.
        let rows = ["Connect:", "Processing:", "Total:", "Waiting:"].map(|label| report.row(label));
        for (n, [min, mean, _, median, max]) in rows.into_iter().enumerate() {
            let least = our_list.column(n).fold(f64::MAX, f64::min);
            let greatest = our_list.column(n).fold(0.0, f64::max);
            assert_eq!((least, greatest), (min, max));
            assert!((our_list.sum(n) / 500.0 - mean).abs() < 2e-6, "{mean}");
            let mut sorted: Vec<f64> = our_list.column(n).collect();
            sorted.sort_by(f64::total_cmp);
            // The 250th of 500, within a histogram's bucket.
            assert!((sorted[249]..=sorted[249] * 1.001 + 2e-6).contains(&median), "{median} of {}", sorted[249]);
        }
        let [connect, processing, total, _] = rows;
        assert!((connect[1] + processing[1] - total[1]).abs() < 3e-6, "{}", report.text);
        assert_eq!((report.percentage("100%"), report.percentage("50%")), (total[4], total[3]));
        let time =
            |row: usize| our_csv.lines().nth(row + 1).unwrap().split(',').nth(1).unwrap().parse::<f64>().unwrap();
        assert!((time(0) - total[0]).abs() < 0.001 && (time(100) - total[4]).abs() < 0.001, "{our_csv}");
        assert!((time(50) - total[3]).abs() < 0.001, "{our_csv}");
        let mean = report.field("Requests per second").is_some().then(|| report.text.lines()).unwrap();
        let mean = mean.filter_map(|line| line.strip_prefix("Time per request:")).next().unwrap();
        let mean: f64 = mean.split_whitespace().next().unwrap().parse().unwrap();
        assert!((mean - total[1]).abs() < 0.001, "{}", report.text);
    }
}

#[test]
fn the_files_go_with_every_format_and_hold_the_measured_part() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        while let Some(request) = conn.request() {
            if request.number % 50 == 49 {
                return conn.reset();
            }
            conn.send(OK);
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let [list, csv] = ["list.tsv", "percentiles.csv"].map(|name| folder.path().join(name));
    let files = ["-g", list.to_str().unwrap(), "-e", csv.to_str().unwrap()];
    std::fs::write(&list, "an earlier list\n".repeat(100_000)).unwrap();
    for load in
        [&["-n", "500", "-c", "4"][..], &["-d", "300ms", "-w", "200ms", "-t", "2"], &["-R", "2000", "-d", "200ms"]]
    {
        let record = measured(&[load, &files, &[&peer.url]].concat());
        let rows = List::read(&list).rows;
        assert_eq!(rows.len() as u64, record.requests.completed, "{load:?}");
        assert!(record.requests.completed > 0 && rows.is_sorted_by(|one, next| one.1 <= next.1), "{load:?}");
        let started = record.started_unix_s as u64;
        assert!(rows.iter().all(|row| (row.1 as u64).abs_diff(started) < 600), "{:?}", rows[0]);
        assert_eq!(std::fs::read_to_string(&csv).unwrap().lines().count(), 102);
        let times = record.connection_times.unwrap();
        assert_eq!(times.total.summary.count, record.requests.completed);
    }
    for format in ["text", "wrk"] {
        let ran = bench(&[&["--format", format, "-n", "30"], &files[..], &[&peer.url]].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!((29..=30).contains(&List::read(&list).rows.len()), "{format}");
    }
}

/// Whoever looks into the list meanwhile sees it grow: nothing is kept until the end.
#[test]
fn the_list_is_written_while_the_run_lasts() {
    let peer = answering();
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("list.tsv");
    let mut command = Command::new(OROSHI);
    command.args([
        "bench",
        "-d",
        "1h",
        "--timeout",
        "100ms",
        "--format",
        "json",
        "-g",
        list.to_str().unwrap(),
        &peer.url,
    ]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let size = || std::fs::metadata(&list).map_or(0, |file| file.len());
    wait_until("the list has some pages", || {
        assert_eq!(child.try_wait().unwrap(), None);
        size() > 1 << 18
    });
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let record: Record = serde_json::from_slice(&output.stdout).unwrap();
    assert!(record.cut_short);
    assert_eq!(List::read(&list).rows.len() as u64, record.requests.completed);
}

#[test]
fn files_that_cannot_be_written_are_told_before_the_run() {
    let peer = answering();
    let folder = tempfile::tempdir().unwrap();
    let good = folder.path().join("good");
    for flag in ["-g", "-e"] {
        // The other one can be written, and is gone again.
        let other = if flag == "-g" { "-e" } else { "-g" };
        let ran = bench(&["-n", "10", other, good.to_str().unwrap(), flag, "/nonexistent/file", &peer.url]);
        ran.said(1, &["/nonexistent/file", "be written", "No such file"]);
        assert_eq!((ran.out.as_str(), peer.seen().accepted, good.exists()), ("", 0, false), "{ran:?}");
    }
    let ran = bench(&["-n", "10", "-g", "/dev/full", &peer.url]);
    ran.said(1, &["/dev/full"]);
    assert!(ran.out.contains("10 answered"), "the report is there all the same: {ran:?}");
}

#[test]
fn a_run_that_did_not_begin_leaves_no_file_and_takes_none() {
    let nobody = Port::reserve();
    let folder = tempfile::tempdir().unwrap();
    let paths = ["-g", "-e", "--hdr", "-o", "--report"].map(|flag| (flag, folder.path().join(flag)));
    let flags: Vec<&str> = paths.iter().flat_map(|(flag, path)| [*flag, path.to_str().unwrap()]).collect();
    let run = || -> Ran {
        let ran = bench(&[&["--format", "ab", "-n", "5"], &flags[..], &[&nobody.url()]].concat());
        ran.said(1, &["refused"]);
        ran
    };
    run();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    paths.iter().for_each(|(flag, path)| std::fs::write(path, flag).unwrap());
    run();
    paths.iter().for_each(|(flag, path)| assert_eq!(std::fs::read_to_string(path).unwrap(), *flag));
}
