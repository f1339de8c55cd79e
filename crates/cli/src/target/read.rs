//! From flags to a plan: checks every value, reports every problem at once.

use oroshi_net::CpuList;
use oroshi_stats::Shape;
use oroshi_target::{ListenAddress, Plan, Rotation, TlsFiles};
use oroshi_words::units::{parse_count, parse_time};

use super::Args;
use crate::problems::Problems;

/// More threads than this are a slip of the finger.
const MOST_THREADS: u64 = 1024;

/// The most work for an answer: some seconds.
const MOST_WORK: u64 = 1_000_000_000;

/// The longest body, in bytes: a tebibyte.
const LARGEST: u64 = 1 << 40;

/// Reads the flags.
///
/// # Errors
/// Everything that is wrong, one line each: the flag, its value, and what was expected.
pub(super) fn plan(args: Args) -> Result<Plan, Vec<String>> {
    let mut problems = Problems::of_flags();
    let delay = problems.one("--delay", args.delay.as_deref(), parse_time).unwrap_or_default();
    let shape = problems.take("--delay-shape", shape(&args.delay_shape)).unwrap_or_default();
    let work = problems.one("--work", args.work.as_deref(), work).unwrap_or_default();
    let size = problems.take("--size", size(&args.size)).unwrap_or_default();
    let statuses = problems.take("--status", Rotation::parse(&args.status)).unwrap_or_default();
    let one_in = |text: &str| at_least_one(text, u64::MAX);
    let stall_one_in = problems.one("--stall-one-in", args.stall_one_in.as_deref(), one_in);
    let cpus = problems.one("--cpus", args.cpus.as_deref(), CpuList::parse_available);
    let threads = match &args.threads {
        Some(text) => problems.take("--threads", at_least_one(text, MOST_THREADS)).unwrap_or_default() as usize,
        None => cpus.as_ref().map_or(1, CpuList::len),
    };
    let tls = match (args.cert, args.key) {
        (Some(cert), Some(key)) => Some(TlsFiles { cert: cert.into(), key: key.into() }),
        (None, None) => None,
        (Some(cert), None) => {
            problems.add(&format!("--cert {cert}"), "expected --key FILE with its private key too");
            None
        }
        (None, Some(key)) => {
            problems.add(&format!("--key {key}"), "expected --cert FILE with its certificate too");
            None
        }
    };
    let has_tls = tls.is_some();
    let listen: Vec<ListenAddress> =
        args.listen.into_iter().filter_map(|text| problems.take("--listen", place(text, has_tls))).collect();
    if let Some(TlsFiles { cert, .. }) = &tls
        && !listen.is_empty()
        && listen.iter().all(|address| !address.https)
    {
        let flag = format!("--cert {}", cert.display());
        problems.add(&flag, "expected a --listen for https, as only http and unix are there");
    }
    let plan = Plan {
        listen,
        delay,
        shape,
        work,
        size,
        chunked: args.chunked,
        close: args.close,
        statuses,
        stall_one_in,
        tls,
        threads,
        cpus,
    };
    if problems.found.is_empty() { Ok(plan) } else { Err(problems.lines()) }
}

fn shape(text: &str) -> Result<Shape, String> {
    Shape::ALL.into_iter().find(|shape| shape.name() == text).ok_or_else(|| {
        let names = Shape::ALL.map(Shape::name).join(", ");
        format!("`{text}` is no shape of delays: expected one of {names}")
    })
}

fn work(text: &str) -> Result<u64, String> {
    match parse_count(text)? {
        rounds if rounds <= MOST_WORK => Ok(rounds),
        _ => Err(format!("`{text}` is more than some seconds of work: expected a number of rounds up to {MOST_WORK}")),
    }
}

fn size(text: &str) -> Result<u64, String> {
    match parse_count(text)? {
        size if size <= LARGEST => Ok(size),
        _ => Err(format!("`{text}` is more than a tebibyte: expected a size such as 12, 10k or 1M")),
    }
}

fn at_least_one(text: &str, most: u64) -> Result<u64, String> {
    match parse_count(text)? {
        0 => Err(format!("`{text}` is too little: expected at least 1")),
        count if count > most => Err(format!("`{text}` is too large: expected at most {most}")),
        count => Ok(count),
    }
}

fn place(typed: String, has_tls: bool) -> Result<ListenAddress, String> {
    let scheme = |name: &str| typed.get(..name.len()).filter(|start| start.eq_ignore_ascii_case(name)).map(str::len);
    let (start, https) = match (scheme("http://"), scheme("https://")) {
        (Some(start), _) => (start, false),
        (_, Some(start)) => (start, true),
        _ => (0, has_tls && !is_unix(&typed)),
    };
    if https && !has_tls {
        return Err(format!("`{typed}` is https: expected --cert FILE and --key FILE too"));
    }
    let address = &typed[start..];
    let address = if start > 0 { address.strip_suffix('/').unwrap_or(address) } else { address };
    if start > 0 && address.contains(['/', '?', '#', '@']) {
        return Err(format!("`{typed}` has more than an address: expected one such as http://127.0.0.1:8080/"));
    }
    if address.is_empty() {
        return Err(format!("`{typed}` names no address: expected 127.0.0.1:8080, :8080, unix:/path or unix:@name"));
    }
    let address = address.to_owned();
    Ok(ListenAddress { typed, address, https })
}

fn is_unix(text: &str) -> bool {
    text.starts_with(['/', '@']) || text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("unix:"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;
    use oroshi_net::available_cpus;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn plan(line: &str) -> Result<Plan, Vec<String>> {
        let words = ["target"].into_iter().chain(line.split_whitespace());
        super::plan(Line::try_parse_from(words).unwrap().args)
    }

    #[test]
    fn defaults_are_a_tiny_answer_at_once() {
        let plan = plan("").unwrap();
        assert_eq!((plan.delay, plan.size, plan.threads), (Duration::ZERO, 12, 1));
        assert!(!plan.chunked && !plan.close && plan.listen.is_empty() && plan.tls.is_none());
        assert_eq!((plan.stall_one_in, plan.cpus, plan.statuses.statuses()), (None, None, &[200][..]));
    }

    #[test]
    fn every_option_is_taken() {
        let cpu = available_cpus().unwrap().iter().next().unwrap();
        let plan = plan(&format!(
            "--delay 100ms --delay-shape uniform --work 5k --size 10k --chunked --close --status 200=9,500 \
             --stall-one-in 7 --threads 3 --cpus {cpu} --listen 127.0.0.1:0 --listen unix:@x",
        ));
        let plan = plan.unwrap();
        assert_eq!((plan.delay, plan.size, plan.threads), (Duration::from_millis(100), 10_000, 3));
        assert_eq!((plan.shape, plan.work), (Shape::Uniform, 5000));
        assert!(plan.chunked && plan.close);
        assert_eq!((plan.stall_one_in, plan.statuses.statuses()), (Some(7), &[200, 500][..]));
        assert_eq!(plan.cpus.unwrap().to_string(), cpu.to_string());
        assert_eq!(plan.listen.len(), 2);
    }

    #[test]
    fn addresses_lose_their_scheme() {
        let place = |text: &str| place(text.to_owned(), false).map(|listen| listen.address);
        for (text, address) in [
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            (":8080", ":8080"),
            ("http://127.0.0.1:0/", "127.0.0.1:0"),
            ("HTTP://[::1]:80", "[::1]:80"),
            ("unix:/run/app.sock", "unix:/run/app.sock"),
            ("unix:@name", "unix:@name"),
            ("/run/app/", "/run/app/"),
        ] {
            assert_eq!(place(text).as_deref(), Ok(address), "{text}");
        }
    }

    #[test]
    fn a_certificate_makes_bare_tcp_addresses_https() {
        let plan = plan(
            "--cert c.pem --key k.pem --listen :1 --listen http://:2/ --listen https://:3/ --listen unix:@x --listen \
             /y",
        );
        let https: Vec<bool> = plan.unwrap().listen.iter().map(|address| address.https).collect();
        assert_eq!(https, [true, false, true, false, false]);
    }

    #[test]
    fn all_problems_are_said_at_once_each_with_flag_value_and_what_was_expected() {
        let problems = plan(
            "--delay soon --delay-shape round --work x --size big --status 99 --stall-one-in 0 --threads 5000 --cpus x \
             --cert c.pem --listen https://:1/ --listen http://a/b --listen http:///",
        );
        let problems = problems.unwrap_err();
        let expected = [
            ("--delay", "`soon`"),
            ("--delay-shape", "`round`"),
            ("--work", "`x`"),
            ("--size", "`big`"),
            ("--status", "`99`"),
            ("--stall-one-in", "`0`"),
            ("--cpus", "`x`"),
            ("--threads", "`5000`"),
            ("--cert", "c.pem"),
            ("--listen", "`https://:1/`"),
            ("--listen", "`http://a/b`"),
            ("--listen", "`http:///`"),
        ];
        assert_eq!(problems.len(), expected.len(), "{problems:#?}");
        for (problem, (flag, value)) in problems.iter().zip(expected) {
            assert!(problem.starts_with(flag) && problem.contains(value), "{problem}");
            assert!(problem.contains("expected"), "{problem}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_a_problem() {
        let one = |line: &str| {
            let mut problems = plan(line).unwrap_err();
            assert_eq!(problems.len(), 1, "{problems:?}");
            problems.remove(0)
        };
        assert!(one("--key k.pem").contains("--cert"));
        assert!(one("--cert c --key k --listen unix:@x").contains("https"));
        assert!(one("--cpus 1023").contains("CPU 1023"));
        assert!(one("--size 2000G").contains("tebibyte"));
    }
}
