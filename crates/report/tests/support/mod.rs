//! Synthetic results in the form of real ones, as input for pages.
#![allow(dead_code, unreachable_pub, reason = "a module of each test file, which uses its part")]

pub mod history;
pub mod lab;

use std::collections::BTreeMap;
use std::time::Duration;

use oroshi_bench::environment::{Cpu, DescriptorLimit, Environment, Sysctl};
use oroshi_bench::record::{
    AgentRecord, AgentState, Answers, ClockRecords, Connections, Generator, HeatMapRecord, OriginRecord, PlanRecord,
    PointRecord, Rates, Requests, SCHEMA, SeriesRecord,
};
use oroshi_bench::watch::{FoundBy, Precision, ProcessUsage, ServerSample, ServerUsage};
use oroshi_bench::{Bottleneck, Failure, Grade, Load, Protocol, Record, Spacing, Stage};
use oroshi_stats::Latency;

/// A deterministic pseudo-random generator.
#[derive(Debug)]
pub struct Chance(pub u64);

impl Chance {
    /// Uniform from 0 to 1.
    pub fn even(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as f64 + 0.5) / f64::from(1_u32 << 31)
    }

    /// Around 0, standard deviation 1.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.even()).sum::<f64>() - 6.0
    }

    /// A service time: most near `median_ns`, few far above it.
    pub fn latency(&mut self, median_ns: f64) -> u64 {
        let tail = if self.even() < 0.004 { 1.0 + 12.0 * self.even() } else { 1.0 };
        (median_ns * (0.22 * self.normal()).exp() * tail) as u64
    }
}

/// A closed loop of ten seconds against nginx, with some errors and a dip halfway.
pub fn closed(seed: u64, median_ns: f64) -> Record {
    let mut chance = Chance(seed);
    let (width_s, count) = (0.1, 100_usize);
    let bounds_ns: Vec<u64> = (40..96).map(|n| 2_f64.powf(f64::from(n) / 4.0) as u64).collect();
    let mut heat = HeatMapRecord { column_s: 0.2, bounds_ns, counts: vec![Vec::new(); count / 2] };
    let (mut service, mut first, mut connect) = (Latency::new(), Latency::new(), Latency::new());
    let mut points = Vec::new();
    for index in 0..count {
        // Halfway through, the server is busy otherwise.
        let slow = if (48..55).contains(&index) { 3.5 } else { 1.0 };
        let requests = ((2600.0 + 90.0 * chance.normal()) / slow) as u64;
        let mut times: Vec<u64> = (0..requests).map(|_| chance.latency(median_ns * slow)).collect();
        for &ns in &times {
            service.record(ns);
            first.record(ns * 9 / 10);
            let row = heat.bounds_ns.partition_point(|bound| *bound <= ns).saturating_sub(1);
            let column = &mut heat.counts[index / 2];
            column.resize(column.len().max(row + 1), 0);
            column[row] += 1;
        }
        times.sort_unstable();
        let at = |q: f64| Some(times[(times.len() as f64 * q) as usize]);
        points.push(PointRecord {
            at_s: index as f64 * width_s,
            requests,
            errors: if (50..53).contains(&index) { 5 } else { 0 },
            bytes: requests * 160,
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            max_ns: times.last().copied(),
            alive: Some(if (50..54).contains(&index) { 94 } else { 100 }),
        });
    }
    (0..115).for_each(|_| connect.record(chance.latency(28_000.0)));
    let answered = service.len();
    (0..12).for_each(|_| service.record_censored(2_000_000_000));
    Record {
        schema: SCHEMA.into(),
        started_unix_s: 1.772e9,
        plan: plan(Load::Closed),
        elapsed_s: 10.0,
        cut_short: false,
        gone: None,
        requests: Requests {
            started: answered + 34,
            completed: answered,
            failed: 15,
            cut_off: 19,
            unsent: 0,
            waited: 0,
            answered,
        },
        rates: Rates {
            requests: Some(answered as f64),
            requests_per_s: answered as f64 / 10.0,
            read_bytes_per_s: answered as f64 * 16.0,
            written_bytes_per_s: answered as f64 * 4.0,
            read_bytes: answered * 160,
            written_bytes: answered * 40,
            requests_per_s_error: None,
        },
        latency: ClockRecords {
            response: service.clone().into(),
            service: service.into(),
            lateness: Latency::new().into(),
            connect: connect.into(),
            tls: Latency::new().into(),
            first_byte: first.into(),
        },
        failures: BTreeMap::from([(Failure::Timeout, 12), (Failure::ReadReset, 3), (Failure::CutOffAtEnd, 19)]),
        errors: 15,
        parse: Vec::new(),
        http2: None,
        statuses: BTreeMap::from([(200, answered - 7), (502, 7)]),
        connections: Connections {
            opened: 115,
            closed_by_server: 0,
            alive_at_end: 100,
            fewest_alive: 94,
            held_at_end: 0,
        },
        answers: Answers::default(),
        connection_times: None,
        series: SeriesRecord { width_s, points, heat: Some(heat) },
        generator: Generator {
            thread_cpu: vec![0.41],
            cpu_us_per_request: Some(9.1),
            lag: {
                let mut lag = Latency::new();
                (0..1000).for_each(|_| lag.record(chance.latency(60_000.0)));
                lag.summary()
            },
        },
        server: Some(server(&mut chance)),
        server_unknown: None,
        server_watched_by: None,
        grade: Grade {
            bottleneck: Bottleneck::ServerBound,
            because: "the server's busiest thread used 97 % of a core, and 49 % of the CPUs it may use; the \
                      generator's busiest thread used 41 % of a core"
                .into(),
            advice: None,
        },
        warnings: vec!["2.1 % of the CPU time was stolen by other virtual machines: figures vary".into()],
        machine: None,
        fail_if: Vec::new(),
        environment: environment(),
        scenario: None,
        urls: Vec::new(),
        agents: Vec::new(),
    }
}

/// An open loop beyond the server's capacity: most of its upper percentiles are bounds.
pub fn open(seed: u64) -> Record {
    let mut record = closed(seed, 800_000.0);
    let mut chance = Chance(seed + 1);
    let stages = vec![Stage { duration: Duration::ZERO, rate: 4000.0 }];
    record.plan = PlanRecord { warmup_s: 2.0, ..plan(Load::Open { stages, spacing: Spacing::Poisson, seed: 7 }) };
    let (mut response, mut lateness) = (Latency::new(), Latency::new());
    for i in 0..20_000_u64 {
        response.record(900_000 + i * 150_000 + chance.latency(400_000.0));
        lateness.record(chance.latency(35_000.0));
    }
    (0..3000).for_each(|i| response.record_censored(1_500_000_000 + i * 1_500_000));
    record.latency.response = response.into();
    record.latency.lateness = lateness.into();
    let mut tls = Latency::new();
    (0..60).for_each(|_| tls.record(chance.latency(900_000.0)));
    record.latency.tls = tls.into();
    record.requests.unsent = 2900;
    record.cut_short = true;
    record.grade = Grade {
        bottleneck: Bottleneck::GeneratorBound,
        because: "the generator's busiest thread used 99 % of a core, the server's CPU time is not known".into(),
        advice: Some(
            "the server could do more than this shows: use more threads (-t) on free CPUs, or a second machine".into(),
        ),
    };
    record.server = None;
    record.server_unknown = Some("nobody on this machine listens there".into());
    record
}

/// A run without responses and without the optional parts.
pub fn nothing() -> Record {
    let mut record = closed(1, 500_000.0);
    let empty = || Latency::new().into();
    record.latency = ClockRecords {
        service: empty(),
        response: empty(),
        lateness: empty(),
        connect: empty(),
        tls: empty(),
        first_byte: empty(),
    };
    record.requests = Requests::default();
    record.rates = Rates::default();
    record.series = SeriesRecord { width_s: 0.1, points: Vec::new(), heat: None };
    record.failures = BTreeMap::from([(Failure::ConnectRefused, 40)]);
    record.errors = 40;
    record.statuses.clear();
    record.server = None;
    record.server_unknown = None;
    record.generator = Generator { thread_cpu: Vec::new(), cpu_us_per_request: None, lag: Latency::new().summary() };
    record.environment = Environment::default();
    record
}

pub fn plan(load: Load) -> PlanRecord {
    PlanRecord {
        origins: vec![OriginRecord {
            address: "127.0.0.1:8080".into(),
            scheme: "http".into(),
            authority: String::new(),
            request_count: 1,
            connections: 100,
            requests: vec!["GET /hello HTTP/1.1".into()],
            request_bytes: 40,
        }],
        threads: 1,
        connections: 100,
        hold: 0,
        load,
        duration_s: Some(10.0),
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

pub fn environment() -> Environment {
    Environment {
        oroshi: "0.1.0".into(),
        command: [
            "oroshi",
            "bench",
            "-t1",
            "-c100",
            "-d10s",
            "-H",
            "Authorization: ***",
            "http://127.0.0.1:8080/hello",
        ]
        .map(str::to_owned)
        .to_vec(),
        kernel: "6.18.0".into(),
        architecture: "x86_64".into(),
        cpu: Cpu {
            model: Some("A Fast One @ 2.90GHz".into()),
            online: Some(2),
            affinity: Some("0-1".into()),
            ..Cpu::default()
        },
        memory_bytes: Some(8 << 30),
        clocksource: Some("tsc".into()),
        sysctl: Sysctl { ip_local_port_range: Some((32768, 60999)), somaxconn: Some(4096), ..Sysctl::default() },
        descriptors: DescriptorLimit { soft: Some(20_000), hard: Some(1_048_576) },
        load_average: Some([0.42, 0.31, 0.2]),
        ..Environment::default()
    }
}

fn server(chance: &mut Chance) -> ServerUsage {
    let process = |pid, cpu_seconds| ProcessUsage {
        pid,
        parent: 1,
        name: "nginx".into(),
        threads: 1,
        cpu_seconds,
        precision: Precision::Nanoseconds,
        rss_bytes: 6 << 20,
    };
    let samples = (0..40).map(|i| ServerSample {
        at_s: f64::from(i + 1) * 0.25,
        cpu: 0.95 + 0.015 * chance.normal(),
        rss_bytes: (12 << 20) + u64::from(i as u32) * (60 << 10),
    });
    ServerUsage {
        found_by: FoundBy::TcpListener,
        processes: vec![process(18, 9.5), process(17, 0.0)],
        process_count: 2,
        exited: 0,
        cpu_seconds: 9.5,
        user_seconds: 2.9,
        system_seconds: 6.6,
        precision: Precision::Nanoseconds,
        busiest_process: 0.97,
        busiest_thread: 0.97,
        cpus_allowed: 2,
        cpu_limit: None,
        of_allowed_cpus: 0.49,
        rss_begin_bytes: 12 << 20,
        rss_peak_bytes: 16 << 20,
        rss_end_bytes: 14 << 20,
        pss_end_bytes: None,
        voluntary_switches: 150_000,
        involuntary_switches: 50_000,
        samples: samples.collect(),
    }
}

/// A run on three agents, one of which was lost.
pub(crate) fn on_agents() -> Record {
    let agent = |name: &str, state, start_late_ns| AgentRecord {
        name: name.to_owned(),
        state,
        elapsed_s: 9.99,
        started: 120_004,
        completed: 120_001,
        failed: 3,
        unsent: 0,
        errors: 3,
        thread_cpu: vec![0.5, 0.25],
        p99_ns: Some(1_500_000),
        lateness_p99_ns: None,
        clock_bound_ns: Some(40_000),
        start_late_ns,
        start_queued_ns: start_late_ns.map(|ns: u64| ns - 20_000),
    };
    let mut record = closed(1, 350_000.0);
    record.agents = vec![
        agent("lab-1", AgentState::Done, Some(60_000)),
        agent("lab-2", AgentState::Stopped, Some(75_000)),
        agent("a-machine-with-a-long-name", AgentState::Lost, None),
    ];
    record.server_watched_by = Some("agent lab-1".to_owned());
    record.warnings.insert(0, "short by 1/3 from 12.3 s: agent a-machine-with-a-long-name was lost".to_owned());
    record
}
