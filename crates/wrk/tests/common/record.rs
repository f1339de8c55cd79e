//! Records made by hand.

use std::collections::BTreeMap;

use oroshi_bench::environment::Environment;
use oroshi_bench::record::{
    Answers, ClockRecord, ClockRecords, Connections, Generator, OriginRecord, PlanRecord, PointRecord, Rates, Requests,
    SCHEMA, SeriesRecord,
};
use oroshi_bench::{Bottleneck, Failure, Grade, Load, Protocol, Record, Spacing, Stage};
use oroshi_stats::Latency;

/// Makes a closed loop of 2 threads: these service times in microseconds, these numbers of responses per 100 ms, and
/// errors of each kind.
pub fn closed(service_us: impl IntoIterator<Item = u64>, answers: &[u64]) -> Record {
    let point = |(i, &requests): (usize, &u64)| PointRecord {
        at_s: i as f64 / 10.0,
        requests,
        errors: 0,
        bytes: 0,
        p50_ns: None,
        p99_ns: None,
        max_ns: None,
        alive: None,
    };
    let service = latency(service_us.into_iter().map(|us| us * 1000));
    let empty = || ClockRecord::from(Latency::new());
    Record {
        schema: SCHEMA.into(),
        started_unix_s: 1.7e9,
        plan: PlanRecord {
            origins: vec![OriginRecord {
                address: "127.0.0.1:8080".into(),
                scheme: "http".into(),
                authority: String::new(),
                request_count: 1,
                connections: 10,
                requests: Vec::new(),
                request_bytes: 40,
            }],
            threads: 2,
            connections: 10,
            hold: 0,
            load: Load::Closed,
            duration_s: Some(answers.len() as f64 / 10.0),
            requests: None,
            warmup_s: 0.0,
            timeout_s: 2.0,
            requests_per_connection: None,
            pipeline: 1,
            protocol: Protocol::Http1,
            streams: 1,
            gather_s: 0.0,
            script: Some("a.lua".into()),
        },
        elapsed_s: answers.len() as f64 / 10.0,
        cut_short: false,
        gone: None,
        requests: Requests { answered: answers.iter().sum(), ..Requests::default() },
        rates: Rates { read_bytes: 16_000, ..Rates::default() },
        latency: ClockRecords {
            service: service.into(),
            response: latency([7_000_000]).into(),
            lateness: empty(),
            connect: empty(),
            tls: empty(),
            first_byte: empty(),
        },
        failures: BTreeMap::from([
            (Failure::ConnectRefused, 1),
            (Failure::PortsExhausted, 2),
            (Failure::ReadReset, 4),
            (Failure::ReadEof, 8),
            (Failure::Parse, 16),
            (Failure::Write, 32),
            (Failure::Timeout, 64),
            (Failure::Status, 128),
            (Failure::CutOffAtEnd, 256),
        ]),
        errors: 255,
        parse: Vec::new(),
        http2: None,
        statuses: BTreeMap::from([(200, 10), (302, 5), (399, 2), (404, 7), (500, 2)]),
        connections: Connections::default(),
        answers: Answers::default(),
        connection_times: None,
        series: SeriesRecord { width_s: 0.1, points: answers.iter().enumerate().map(point).collect(), heat: None },
        generator: Generator { thread_cpu: Vec::new(), cpu_us_per_request: None, lag: Latency::new().summary() },
        server: None,
        server_unknown: None,
        server_watched_by: None,
        grade: Grade { bottleneck: Bottleneck::LatencyBound, because: String::new(), advice: None },
        warnings: Vec::new(),
        machine: None,
        fail_if: Vec::new(),
        environment: Environment::default(),
        scenario: None,
        urls: Vec::new(),
        agents: Vec::new(),
    }
}

/// Makes the same in an open loop.
pub fn open() -> Record {
    let stages = vec![Stage { duration: std::time::Duration::ZERO, rate: 1000.0 }];
    let mut record = closed([1000], &[10]);
    record.plan.load = Load::Open { stages, spacing: Spacing::Poisson, seed: 7 };
    record
}

/// Makes a run without any response.
pub fn nothing() -> Record {
    closed([], &[0, 0])
}

fn latency(values: impl IntoIterator<Item = u64>) -> Latency {
    let mut latency = Latency::new();
    values.into_iter().for_each(|ns| latency.record(ns));
    latency
}
