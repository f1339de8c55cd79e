//! The pages in a browser: they load nothing, produce no errors, show the data, and fit a phone.

mod support;

use std::io::ErrorKind;
use std::net::TcpListener;

use oroshi_bench::Record;
use oroshi_lab::LabResult;
use oroshi_report::sample::scenario;
use oroshi_report::{Named, bench_page, history_page, lab_page};
use oroshi_testkit::chromium::{self, count, look};
use serde_json::Value;
use support::{closed, history, lab, nothing, on_agents, open};

/// Widths in pixels: a phone, a desktop.
const WIDTHS: [u32; 2] = [390, 1280];

fn named(runs: &[(&str, &Record)]) -> String {
    let runs: Vec<Named<'_>> = runs.iter().map(|(name, record)| Named { name: (*name).to_owned(), record }).collect();
    bench_page(&runs)
}

/// Returns every sample page.
fn pages() -> Vec<(&'static str, String)> {
    let (one, other, slow) = (closed(1, 350_000.0), closed(2, 420_000.0), open(5));
    vec![
        ("bench", named(&[("run", &one)])),
        ("bench-open", named(&[("run", &slow)])),
        ("bench-agents", named(&[("run", &on_agents())])),
        ("bench-nothing", named(&[("run", &nothing())])),
        (
            "bench-several",
            named(&[("before", &one), ("after the change", &other), ("open", &slow), ("nothing", &nothing())]),
        ),
        ("bench-none", named(&[])),
        ("scenario", named(&[("run", &scenario::shop())])),
        ("scenario-void", named(&[("run", &scenario::void())])),
        ("scenario-idle", named(&[("run", &scenario::idle())])),
        ("scenario-hostile", named(&[("run", &scenario::hostile())])),
        ("scenario-one-step", named(&[("run", &scenario::chain(1))])),
        ("scenario-sixty-steps", named(&[("run", &scenario::chain(60))])),
        ("scenario-several", named(&[("shop", &scenario::shop()), ("void", &scenario::void()), ("plain", &one)])),
        ("lab", lab_page(&lab::pair())),
        ("lab-sweep", lab_page(&lab::sweep())),
        ("lab-named", lab_page(&lab::named())),
        ("lab-nothing", lab_page(&lab::nothing())),
        ("history", history_page("perf", &oroshi_history::all(&history::stepped(), 0.01))),
    ]
}

/// Checks a page at one width.
#[track_caller]
fn is_sound(name: &str, page: &Value) {
    for question in ["outside", "left", "overlapping"] {
        assert_eq!(page[question].as_array().map(Vec::len), Some(0), "{name}: {question}: {}", page[question]);
    }
    for question in ["overflow", "loaded", "unlabelled"] {
        assert_eq!(page[question], 0, "{name}: {question}");
    }
    assert!(page["smallest"].as_f64().is_some_and(|size| size >= 9.0), "{name}: text of {} px", page["smallest"]);
    for nonsense in ["NaN", "inf", "undefined", "Some(", "None"] {
        assert!(!text_of(page).contains(nonsense), "{name}: {nonsense}");
    }
}

fn text_of(page: &Value) -> &str {
    page["text"].as_str().unwrap()
}

#[track_caller]
fn says(page: &Value, words: &[&str]) {
    for words in words {
        assert!(text_of(page).contains(words), "`{words}`: {}", text_of(page));
    }
}

#[test]
fn every_page_is_sound_on_a_phone_and_on_a_desk() {
    let Some(browser) = chromium::need("pages") else { return };
    let pages = pages();
    let views: Vec<(&str, &str, u32)> =
        pages.iter().flat_map(|(name, page)| WIDTHS.map(|width| (*name, page.as_str(), width))).collect();
    let shown: Vec<(&str, u32)> = views.iter().map(|(_, page, width)| (*page, *width)).collect();
    let seen = look(browser, &shown, false, &[]);
    assert_eq!(seen.console, Vec::<String>::new());
    for ((name, _, width), page) in views.iter().zip(&seen.pages) {
        is_sound(&format!("{name} at {width}"), page);
        assert_eq!(page["background"], "rgb(255, 255, 255)", "{name}");
    }
    let dark = look(browser, &[(&pages[0].1, 390)], true, &[]);
    assert_eq!((dark.console, &dark.pages[0]["background"]), (Vec::new(), &"rgb(17, 20, 24)".into()));
}

#[test]
fn the_page_of_a_history_says_what_changed_at_a_step() {
    let Some(browser) = chromium::need("pages") else { return };
    let page = history_page("perf", &oroshi_history::all(&history::stepped(), 0.01));
    let seen = look(browser, &[(&page, 1280)], false, &["#steps tbody tr", "#charts figure", "circle.ring", ".divide"]);
    let page = &seen.pages[0];
    assert_eq!((count(page, "#steps tbody tr"), count(page, "#charts figure"), count(page, ".divide")), (1, 3, 1));
    // Four disturbed measurements, of the rate only; and one in the key.
    assert_eq!(count(page, "circle.ring"), 5);
    says(page, &["1 step", "kernel: 6.1 to 6.2", "Change 25 & <b>more</b>", "A Fast One, 2 CPUs"]);
    assert_eq!(seen.console, Vec::<String>::new());
}

#[test]
fn the_page_of_scenarios_holds_score_checks_steps_and_flow() {
    let Some(browser) = chromium::need("pages") else { return };
    let selectors =
        ["#journeys .stream", "#journeys .stops li", "#steps .range", "#score details", "#score pre", "svg title"];
    let pages = [named(&[("run", &scenario::shop())]), named(&[("run", &scenario::hostile())])];
    let shown: Vec<(&str, u32)> = pages.iter().map(|page| (page.as_str(), 1280)).collect();
    let seen = look(browser, &shown, false, &selectors);
    let [page, hostile] = &seen.pages[..] else { panic!("two pages") };
    // Two scenarios of three and two steps, each with a beginning and an end.
    assert_eq!((count(page, "#journeys .stream"), count(page, "#journeys .stops li")), (11, 9));
    assert_eq!((count(page, "#steps .range"), count(page, "#score details"), count(page, "#score pre")), (5, 2, 9));
    says(
        page,
        &[
            "43,933",
            "by the script’s formula",
            "99.88 % of 11,666 passed",
            "shop.lua:31, user 7",
            "500 Internal Server Error",
            "late answer",
            "-2,363",
        ],
    );
    assert_eq!(seen.console, Vec::<String>::new());
    // What others wrote is text, and only once in a line.
    assert!(text_of(hostile).contains("<script>alert('x')</script>"));
    assert!(!text_of(hostile).contains('\u{202e}') && !text_of(hostile).contains('\u{1b}'));
    assert_eq!(count(hostile, "#steps .range"), 5);
}

#[test]
fn the_charts_of_a_run_hold_its_data() {
    let Some(browser) = chromium::need("pages") else { return };
    let (record, unanswered) = (closed(1, 350_000.0), open(5));
    let selectors = [
        "#latency .plot .mark",
        "#latency .plot .atleast",
        "#latency .plot .mark.open",
        "#time .hit",
        "#time .heat",
        "#time .column",
        "#phases .range",
        "figure",
        "figcaption h3",
    ];
    let (one, other) = (named(&[("run", &record)]), named(&[("run", &unanswered)]));
    let seen = look(browser, &[(&one, 1280), (&other, 1280)], false, &selectors);
    let [page, unanswered] = &seen.pages[..] else { panic!("two pages") };
    let points = record.series.points.len() as u64;
    // On the heat map, the throughput, the errors and the connections; and a sample of the server's in two charts.
    let errors = record.series.points.iter().filter(|point| point.errors > 0).count() as u64;
    let samples = record.server.as_ref().unwrap().samples.len() as u64;
    assert_eq!(count(page, "#time .hit"), 3 * points + errors + 2 * samples);
    assert_eq!(count(page, "#time .column"), errors);
    assert!(count(page, "#time .heat") >= 5, "shades");
    // p50 to p99.999 of one clock: there are a quarter of a million responses.
    assert_eq!(count(page, "#latency .plot .mark"), 8);
    assert_eq!(count(page, "#phases .range"), 3);
    assert_eq!(count(page, "figure"), count(page, "figcaption h3"));
    let segments: Vec<u64> = serde_json::from_value(page["segments"].clone()).unwrap();
    assert!(segments.iter().filter(|n| **n == points).count() >= 3, "p50, p99 and throughput: {segments:?}");
    let rate = oroshi_words::units::number(record.rates.requests_per_s);
    says(
        page,
        &[
            "server-bound",
            "stolen by other virtual machines",
            "timeout",
            "502",
            "'Authorization: ***'",
            "A Fast One",
            &rate,
        ],
    );

    // Unanswered requests are drawn as a bound.
    assert_eq!(count(unanswered, "#latency .plot .atleast"), 2, "response and service times");
    assert!(count(unanswered, "#latency .plot .mark.open") >= 2);
    says(
        unanswered,
        &["≥", "at least", "nobody on this machine listens there", "say more about the load generator", "ended early"],
    );
}

#[test]
fn values_that_are_names_have_bars_and_numbers_have_lines() {
    let Some(browser) = chromium::need("pages") else { return };
    let (named, numbers) = (lab::named(), lab::sweep());
    let selectors = ["#curves .plot .bar", "#curves .plot .whisker", "#curves .plot .line", "#curves .plot .band"];
    let (one, other) = (lab_page(&named), lab_page(&numbers));
    let seen = look(browser, &[(&one, 1280), (&other, 1280)], false, &selectors);
    let figures = named.cells.iter().flat_map(|cell| &cell.variants).map(|v| v.figures.len()).sum::<usize>() as u64;
    let found = |page: usize| selectors.map(|selector| count(&seen.pages[page], selector));
    assert_eq!(found(0), [figures, figures, 0, 0]);
    let [bars, _, lines, bands] = found(1);
    assert!(bars == 0 && lines > 0 && bands > 0, "{bars} {lines} {bands}");
    says(&seen.pages[0], &["disturbed", "Blocks made anew, as the machine was disturbed"]);
}

#[test]
fn the_charts_of_an_experiment_hold_its_data() {
    let Some(browser) = chromium::need("pages") else { return };
    let (swept, pair) = (lab::sweep(), lab::pair());
    let selectors = [
        "#ratios .range",
        "#runs .plot .mark",
        "#runs .plot .ring",
        "#curves .plot .mark",
        "#curves .band",
        ".failure pre",
    ];
    let (one, other) = (lab_page(&swept), lab_page(&pair));
    let seen = look(browser, &[(&one, 1280), (&other, 1280)], false, &selectors);
    let cells = &swept.cells;
    let ratios = cells.iter().flat_map(|cell| &cell.comparisons).filter(|c| c.ratio.is_some()).count() as u64;
    let runs = cells.iter().map(|cell| cell.runs.len()).sum::<usize>() as u64;
    let figures = cells.iter().flat_map(|cell| &cell.variants).map(|v| v.figures.len()).sum::<usize>() as u64;
    let metrics = swept.metrics.len() as u64;
    let page = &seen.pages[0];
    assert_eq!(count(page, "#ratios .range"), ratios);
    assert_eq!(count(page, "#runs .plot .mark"), runs * metrics);
    assert_eq!(count(page, "#curves .plot .mark"), figures);
    assert_eq!(count(page, "#curves .band"), 2 * 3 * metrics, "a band per group, variant and metric");
    assert_eq!(count(page, ".failure pre"), 1);
    says(
        page,
        &[
            "rackup is not installed",
            "signal SEGV",
            "Segmentation fault",
            "share CPU 1",
            "quick look",
            "oroshi lab run",
        ],
    );

    let page = &seen.pages[1];
    assert_eq!(count(page, "#runs .plot .ring"), 2 * metrics, "a shift and a warning in each chart");
    let place = |words: &str| text_of(page).find(words).unwrap_or_else(|| panic!("{words}"));
    assert!(place(&pair.cells[0].comparisons[0].words) < place("Ratios"), "the verdict is on top");
}

/// Puts hostile text wherever a server, a user or a program may have written text.
fn hostile(text: &str) -> (Record, LabResult) {
    let hostile = || text.to_owned();
    let mut record = closed(1, 350_000.0);
    record.plan.origins[0].address = hostile();
    record.plan.origins[0].requests = vec![format!("GET /{text} HTTP/1.1")];
    record.warnings = vec![hostile()];
    record.grade.because = hostile();
    record.grade.advice = Some(hostile());
    record.environment.command = vec![hostile(), "-H".into(), hostile()];
    record.environment.cpu.model = Some(hostile());
    record.environment.kernel = hostile();
    record.server.as_mut().unwrap().processes[0].name = hostile();
    let mut result = lab::sweep();
    (result.name, result.title, result.question) = (hostile(), hostile(), hostile());
    result.rerun = vec![hostile()];
    result.source = Some(hostile());
    result.warnings = vec![hostile()];
    result.skipped[0].name = hostile();
    result.skipped[0].why = hostile();
    result.metrics[0].label = hostile();
    let sweep = result.sweep.as_mut().unwrap();
    sweep.label = hostile();
    sweep.values[0] = hostile();
    for cell in &mut result.cells {
        cell.group = hostile();
        cell.variants[0].name = hostile();
        cell.variants[0].urls = vec![hostile()];
        cell.variants[0].start = Some(hostile());
        cell.variants[0].load = hostile();
        cell.comparisons[0].words = hostile();
        cell.runs[0].warnings = vec![hostile()];
        cell.runs[0].shift = Some(hostile());
    }
    let failure = result.cells.last_mut().unwrap().variants[2].failed.as_mut().unwrap();
    (failure.why, failure.output) = (hostile(), vec![hostile()]);
    (record, result)
}

#[test]
fn what_others_wrote_loads_nothing_and_runs_nothing() {
    let Some(browser) = chromium::need("pages") else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let at = format!("http://{}", listener.local_addr().unwrap());
    let text = format!(
        "\"'><script>console.error('ran')</script><img src={at}/i.png \
         onerror=console.error(1)><svg/onload=console.error(2)>\
         <style>@import url({at}/s.css);*{{background:url({at}/b.png)}}</style></title></style></textarea>--><link \
         rel=stylesheet href={at}/l.css>"
    );
    let (record, result) = hostile(&text);
    let pages = [named(&[(&text, &record)]), named(&[(&text, &record), ("b", &record)]), lab_page(&result)];
    for page in &pages {
        assert!(!page.contains("<img") && !page.contains("<script"), "it stays text");
    }
    let seen = look(browser, &pages.each_ref().map(|page| (page.as_str(), 390)), false, &[]);
    assert_eq!(seen.console, Vec::<String>::new());
    for page in &seen.pages {
        assert_eq!(page["loaded"], 0);
        says(page, &["console.error('ran')"]);
    }
    let nobody = listener.accept().map(|_| ()).unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::WouldBlock, "nobody connected");

    // The same text without escaping: the test must detect it.
    let naive = format!("<!doctype html><body><p class=\"{text}\">");
    let answered = std::thread::spawn(move || {
        listener.set_nonblocking(false).unwrap();
        // Closes the connection of a page that loads something, so that the page does not wait.
        listener.accept().is_ok()
    });
    let seen = look(browser, &[(&naive, 390)], false, &[]);
    assert!(!seen.console.is_empty() && seen.pages[0]["loaded"] != 0, "{seen:?}");
    assert!(answered.join().unwrap());
}

/// For manual use: `OROSHI_PAGES=DIR cargo test -p oroshi-report --test pages -- --ignored`.
#[test]
#[ignore = "writes the sample pages into the folder OROSHI_PAGES, to be looked at"]
fn write_the_sample_pages() {
    let folder = std::path::PathBuf::from(std::env::var_os("OROSHI_PAGES").expect("OROSHI_PAGES names a folder"));
    for (name, page) in pages() {
        std::fs::write(folder.join(format!("{name}.html")), page).unwrap();
    }
}

#[test]
fn the_page_of_agents_has_a_row_for_each() {
    let Some(browser) = chromium::need("pages") else { return };
    let page = named(&[("run", &on_agents())]);
    let seen = look(browser, &[(&page, 1280)], false, &["#agents tbody tr"]);
    let page = &seen.pages[0];
    assert_eq!(count(page, "#agents tbody tr"), 3);
    says(
        page,
        &[
            "short by 1/3 from 12.3 s",
            "3, 1 of them lost; all began within 75.0us of the agreed moment (the last one waited 55.0us of it for a CPU); clocks known to ±40.0us.",
            "lab-2",
            "stopped",
            "120,001",
            "+75.0",
            "agent lab-1",
        ],
    );
}
