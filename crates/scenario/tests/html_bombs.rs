//! Hostile pages cost bounded memory, counted at the allocator, and bounded CPU time of this thread.
//! A binary of its own, as `allocation_counter` brings an allocator for all of it.
#![allow(clippy::print_stdout)]

use bytes::Bytes;
use oroshi_scenario::html::{Learned, Limits, Page};

/// Bytes of a hostile page.
const PAGE: usize = 3 << 20;
/// Bytes that a question about it may take: the page once more, what lol_html may use (2 MiB), the answer.
const MEMORY: u64 = 32 << 20;
/// CPU time for it, seconds. What is quadratic in the page takes hours.
const CPU: f64 = 10.0;

/// Returns the CPU time of this thread, seconds.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

type Question = fn(&Page);

fn ask(name: &str, html: &str) {
    let body = Bytes::copy_from_slice(html.as_bytes());
    let page = || Page::new(body.clone(), None, "http://a/", Learned::shared(), Limits::default()).unwrap();
    let questions: [(&str, Question); 15] = [
        ("text div", |page| drop(page.text("div"))),
        ("text li", |page| drop(page.text("li"))),
        ("inner li", |page| drop(page.inner("li"))),
        ("text script", |page| drop(page.text("script"))),
        ("has h7", |page| drop(page.has("h7"))),
        ("count *", |page| drop(page.count("*"))),
        ("attr", |page| drop(page.attr("div", "z"))),
        ("text [b=c]", |page| drop(page.text("[b=c]"))),
        ("count nth", |page| drop(page.count(":nth-of-type(3)"))),
        ("count nested", |page| drop(page.count("div div > p:nth-child(2n), li li li, [a] [b]"))),
        ("all div", |page| drop(page.all("div"))),
        ("all li", |page| drop(page.all("li"))),
        ("all *", |page| drop(page.all("*"))),
        ("form", |page| drop(page.form("form"))),
        ("resources", |page| drop(page.resources(100, false))),
    ];
    let (mut most, mut slowest) = ((0, ""), (0.0, ""));
    for (question, ask) in questions {
        let begin = cpu();
        let memory = allocation_counter::measure(|| ask(&page()));
        let taken = cpu() - begin;
        if memory.bytes_max > most.0 {
            most = (memory.bytes_max, question);
        }
        if taken > slowest.0 {
            slowest = (taken, question);
        }
        // Selectors and tables that stay with the thread.
        assert!(memory.bytes_current < 1 << 20, "{name}, {question}: {} bytes are left", memory.bytes_current);
    }
    println!("{name}: {} KiB ({}), {:.2} s ({})", most.0 >> 10, most.1, slowest.0, slowest.1); // seen with --nocapture
    assert!(most.0 < MEMORY, "{name}: {} bytes for {}", most.0, most.1);
    assert!(slowest.0 < CPU, "{name}: {:.1} s for {}", slowest.0, slowest.1);
}

fn repeat(part: &str) -> String {
    part.repeat(PAGE / part.len())
}

#[test]
fn nesting_costs_bounded_memory_and_time() {
    let deep = |tag: &str, times| format!("{}x", tag.repeat(times));
    ask("endless divs", &repeat("<div>"));
    ask("endless divs and paragraphs", &repeat("<div><p>x"));
    ask("endless lists", &repeat("<li><ul>"));
    ask("endless rows", &repeat("<table><tr><td>"));
    ask("endless options", &repeat("<select><option>"));
    ask("endless forms", &format!("<form>{}", repeat("<fieldset disabled><legend>")));
    let options = deep("<option selected><select>", 3_000) + &repeat("<br>");
    ask("nested options", &format!("<form><select name=a multiple>{options}"));
    ask("lists as deep as the limit", &(deep("<li><ul>", 3_000) + &"x".repeat(PAGE - 30_000)));
    ask("divs as deep as the limit", &(deep("<div>", 6_000) + &repeat("<p></p>")));
    ask("end tags that close nothing", &(deep("<div>", 6_000) + &repeat("</x>")));
    let names: String = (0..PAGE / 16).map(|n| format!("<x{n}></x{n}>")).collect();
    ask("each element another name", &names);
}

#[test]
fn tags_and_comments_cost_bounded_memory_and_time() {
    ask("many elements", &repeat("<a b=c></a>"));
    ask("many list items", &repeat("<li>x"));
    ask("attributes without end", &format!("<div {}>x", repeat("a ")));
    ask("many attributes", &format!("<div {}>x", "a ".repeat(800_000)));
    ask("many tags with many attributes", &format!("<div {}>x", "a=b ".repeat(15_000)).repeat(60));
    ask("values without end", &format!("<div a='{}", repeat("<b>")));
    ask("a long value", &format!("<div z='{}'>", repeat("<b>")));
    ask("a comment without end", &format!("<div><!--{}", repeat("-")));
    ask("comments in a comment", &format!("<div><!--{}", repeat("<!--")));
    ask("a script without end", &format!("<script>{}", repeat("</scrip")));
    ask("tag openers", &repeat("<"));
    ask("end tag openers", &repeat("</"));
    ask("openers in a div", &format!("<div>{}", repeat("</")));
    ask("sections of foreign data", &format!("<div><svg>{}", repeat("<![CDATA[")));
    ask("zeros", &repeat("\0"));
}

#[test]
fn references_cost_bounded_memory_and_time() {
    ask("ampersands", &format!("<div>{}", repeat("&")));
    ask("references that are none", &format!("<div>{}", repeat("&notit")));
    ask("a long number", &format!("<div>&#{};", repeat("9")));
    ask("references that grow", &format!("<div>{}", repeat("&nGt;")));
}
