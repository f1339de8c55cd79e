//! Records made by hand, for the tests of reports.

use std::collections::BTreeMap;

use oroshi_bench::environment::{Cpu, Environment};
use oroshi_bench::record::{
    Answers, ClockRecord, ClockRecords, ConnectionTimesRecord, Connections, Generator, HeatMapRecord, OriginRecord,
    PlanRecord, PointRecord, Rates, Requests, SCHEMA, SeriesRecord,
};
use oroshi_bench::watch::{FoundBy, Precision, ProcessUsage, ServerSample, ServerUsage};
use oroshi_bench::{Bottleneck, Failure, Grade, Load, Protocol, Record, Spacing};
use oroshi_stats::Latency;

/// Closed loop, 10 s, 100,000 requests whose times lie evenly between 50 us and 1.05 ms, a few errors.
#[must_use]
pub fn closed() -> Record {
    let even = |low: u64, step: u64| latency((0..100_000).map(|i| low + i * step));
    let points = (0..100).map(|i| PointRecord {
        at_s: i as f64 / 10.0,
        requests: 1000,
        errors: 0,
        bytes: 160_000,
        p50_ns: Some(550_000),
        p99_ns: Some(1_040_000),
        max_ns: Some(1_050_000),
        alive: Some(if i == 50 { 97 } else { 100 }),
    });
    Record {
        schema: SCHEMA.into(),
        started_unix_s: 1.7e9,
        plan: plan(Load::Closed, 2, 100, 10.0),
        elapsed_s: 10.0,
        cut_short: false,
        gone: None,
        requests: Requests {
            started: 100_034,
            completed: 100_000,
            failed: 15,
            cut_off: 19,
            unsent: 0,
            waited: 0,
            answered: 100_000,
        },
        rates: Rates {
            requests: None,
            requests_per_s: 10_000.0,
            read_bytes_per_s: 1_600_000.0,
            written_bytes_per_s: 400_000.0,
            read_bytes: 16_000_000,
            written_bytes: 4_000_000,
            requests_per_s_error: None,
        },
        latency: ClockRecords {
            service: even(50_000, 10).into(),
            response: even(50_000, 10).into(),
            lateness: Latency::new().into(),
            connect: latency((0..100).map(|i| 20_000 + i * 100)).into(),
            tls: Latency::new().into(),
            first_byte: even(40_000, 10).into(),
        },
        failures: BTreeMap::from([(Failure::Timeout, 12), (Failure::ReadReset, 3), (Failure::CutOffAtEnd, 19)]),
        errors: 15,
        parse: Vec::new(),
        http2: None,
        statuses: BTreeMap::from([(200, 100_000)]),
        connections: Connections {
            opened: 115,
            closed_by_server: 0,
            alive_at_end: 100,
            fewest_alive: 97,
            held_at_end: 0,
        },
        answers: Answers::default(),
        connection_times: None,
        series: SeriesRecord { width_s: 0.1, points: points.collect(), heat: Some(heat()) },
        generator: Generator {
            thread_cpu: vec![0.05, 0.04],
            cpu_us_per_request: Some(9.0),
            lag: latency([10_000, 20_000, 60_000]).summary(),
        },
        server: Some(server()),
        server_unknown: None,
        server_watched_by: None,
        grade: Grade {
            bottleneck: Bottleneck::LatencyBound,
            because: "100 connections waited for answers".into(),
            advice: Some("use more connections (-c)".into()),
        },
        warnings: vec!["this is a sample".into()],
        machine: None,
        fail_if: Vec::new(),
        scenario: None,
        urls: Vec::new(),
        agents: Vec::new(),
        environment: Environment {
            kernel: "6.18.0".into(),
            cpu: Cpu { model: Some("A Fast One".into()), online: Some(2), ..Cpu::default() },
            ..Environment::default()
        },
    }
}

/// That of [`closed`] with what ab's report needs: a hundred of the requests were the first ones of their connections.
#[must_use]
pub fn ab() -> Record {
    let first = |i: u64| if i.is_multiple_of(1000) { 20_000 + i / 10 } else { 0 };
    let mut record = closed();
    record.answers = Answers {
        server: Some("nginx/1.22.1 (a build)".into()),
        first_body_bytes: Some(5),
        body_bytes: 500_000,
        other_lengths: 0,
        kept: 99_999,
        tls: None,
    };
    record.connection_times = Some(ConnectionTimesRecord {
        connect: latency((0..100_000).map(first)).into(),
        total: latency((0..100_000).map(|i| 50_000 + i * 10 + first(i))).into(),
    });
    record
}

/// Open loop with a warm-up and idle connections, over a unix socket, that fell behind and was cut short.
#[must_use]
pub fn open() -> Record {
    let stages = vec![oroshi_bench::Stage { duration: std::time::Duration::ZERO, rate: 1000.0 }];
    let mut record = closed();
    record.plan = PlanRecord {
        hold: 500,
        warmup_s: 2.0,
        ..plan(Load::Open { stages, spacing: Spacing::Poisson, seed: 7 }, 1, 50, 10.0)
    };
    record.plan.origins[0].address = "unix:/run/app.sock".into();
    record.cut_short = true;
    record.elapsed_s = 7.5;
    record.requests =
        Requests { started: 7500, completed: 5000, failed: 0, cut_off: 50, unsent: 2450, waited: 4000, answered: 5000 };
    record.rates.requests_per_s = 666.7;
    record.latency.service = latency((0..5000).map(|i| 500_000 + i * 100)).into();
    record.latency.first_byte = record.latency.service.clone();
    let mut response = latency((0..5000).map(|i| 1_000_000 + i * 500_000));
    (0..2500).for_each(|i| response.record_censored(i * 3_000_000));
    record.latency.response = response.into();
    record.latency.lateness = latency((0..5000).map(|i| i * 10)).into();
    record.failures = BTreeMap::from([(Failure::CutOffAtEnd, 50)]);
    record.errors = 0;
    record.statuses = BTreeMap::from([(200, 4990), (302, 10)]);
    record.connections =
        Connections { opened: 50, closed_by_server: 2, alive_at_end: 50, fewest_alive: 50, held_at_end: 498 };
    record.server = None;
    record.server_unknown = Some("nobody on this machine listens there".into());
    record.warnings.clear();
    record
}

/// A run in which nothing was ever answered.
#[must_use]
pub fn nothing() -> Record {
    let empty = || ClockRecord::from(Latency::new());
    let mut record = closed();
    record.plan = plan(Load::Closed, 1, 2, 1.0);
    record.elapsed_s = 1.0;
    record.requests = Requests::default();
    record.rates = Rates::default();
    record.latency = ClockRecords {
        service: empty(),
        response: empty(),
        lateness: empty(),
        connect: empty(),
        tls: empty(),
        first_byte: empty(),
    };
    record.failures = BTreeMap::from([(Failure::ConnectRefused, 40)]);
    record.errors = 40;
    record.statuses = BTreeMap::new();
    record.connections = Connections::default();
    record.series.points.clear();
    record.series.heat = None;
    record.generator = Generator { thread_cpu: Vec::new(), cpu_us_per_request: None, lag: Latency::new().summary() };
    record
}

fn plan(load: Load, threads: usize, connections: usize, seconds: f64) -> PlanRecord {
    PlanRecord {
        origins: vec![OriginRecord {
            address: "127.0.0.1:8080".into(),
            scheme: "http".into(),
            authority: String::new(),
            request_count: 1,
            connections,
            requests: vec!["GET /hello HTTP/1.1".into()],
            request_bytes: 40,
        }],
        threads,
        connections,
        hold: 0,
        load,
        duration_s: Some(seconds),
        requests: None,
        warmup_s: 0.0,
        timeout_s: 2.0,
        requests_per_connection: None,
        pipeline: 1,
        protocol: Protocol::Http1,
        streams: 1,
        gather_s: 0.0,
        script: None,
    }
}

/// The times of [`closed`], the same throughout.
fn heat() -> HeatMapRecord {
    let bounds_ns: Vec<u64> = (0..=21).map(|row| (4 + row % 4) << (13 + row / 4)).collect();
    let below = |bound: u64| (bound.clamp(50_000, 1_050_000) - 50_000) / 1000;
    let column: Vec<u64> = bounds_ns.windows(2).map(|row| below(row[1]) - below(row[0])).collect();
    HeatMapRecord { column_s: 0.1, bounds_ns, counts: vec![column; 100] }
}

/// 50 us per request of [`closed`].
fn server() -> ServerUsage {
    let process = |pid, cpu_seconds| ProcessUsage {
        pid,
        parent: 1,
        name: "nginx".into(),
        threads: 1,
        cpu_seconds,
        precision: Precision::Nanoseconds,
        rss_bytes: 6 << 20,
    };
    ServerUsage {
        found_by: FoundBy::TcpListener,
        processes: vec![process(18, 5.0), process(17, 0.0)],
        process_count: 2,
        exited: 0,
        cpu_seconds: 5.0,
        user_seconds: 2.0,
        system_seconds: 3.0,
        precision: Precision::Nanoseconds,
        busiest_process: 0.5,
        busiest_thread: 0.5,
        cpus_allowed: 2,
        cpu_limit: None,
        of_allowed_cpus: 0.25,
        rss_begin_bytes: 12 << 20,
        rss_peak_bytes: 16 << 20,
        rss_end_bytes: 12 << 20,
        pss_end_bytes: None,
        voluntary_switches: 150_000,
        involuntary_switches: 50_000,
        samples: vec![ServerSample { at_s: 10.0, cpu: 0.5, rss_bytes: 16 << 20 }],
    }
}

fn latency(values: impl IntoIterator<Item = u64>) -> Latency {
    let mut latency = Latency::new();
    values.into_iter().for_each(|ns| latency.record(ns));
    latency
}
