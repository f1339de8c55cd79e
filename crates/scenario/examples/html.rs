//! Prints how long a page of 20 KB takes with three selectors: `cargo run --release -p oroshi-scenario --example html`.

use std::hint::black_box;
use std::time::Instant;

use bytes::Bytes;
use oroshi_scenario::html::{HtmlError, Learned, Limits, Page};

/// Pages that are measured, one by one: the median survives a busy machine.
const PAGES: usize = 5_000;

/// Makes a shop's page: a head with styles and scripts, navigation, a list of items with forms, a footer.
fn page() -> String {
    let mut html = HEAD.to_owned();
    for n in 0..12 {
        html +=
            &format!("<li class=\"nav-item\"><a href=\"/category/{n}?sort=new&amp;page=1\">Category {n}</a></li>\n");
    }
    html += "</ul></nav></header>\n<!-- list -->\n<main id=\"main\"><h1 class=\"title\">Lamps &amp; lights</h1>\n";
    html += "<ul class=\"items\">\n";
    for n in 1.. {
        if html.len() > 19 << 10 {
            break;
        }
        html += &ITEM.replace("{n}", &n.to_string());
    }
    html += FOOT;
    while html.len() < 20 << 10 {
        html.push('\n');
    }
    html
}

const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Shop &mdash; Lamps</title>
<link rel="stylesheet" href="/assets/site-4f2a.css">
<link rel="icon" href="/favicon.svg">
<script src="/assets/site-91bc.js" defer></script>
<meta name="csrf" content="7f9c2ba4e88f827d">
<style>.item { display: grid } .item > img { width: 8rem }</style>
</head>
<body>
<header class="top"><a class="logo" href="/">Shop</a>
<nav><ul>
"#;
const ITEM: &str = r#"<li class="item" id="item-{n}" data-id="{n}">
  <img src="/images/{n}.jpg" alt="Lamp {n}" width="120">
  <h2><a href="/items/{n}">Lamp no. {n}</a></h2>
  <p class="text">A lamp for the desk, the shelf or the floor. <b>New</b> this week; it has a switch, a cable of two
  metres &amp; a warm light.</p>
  <span class="price">&euro;{n}.90</span>
  <form action="/cart" method="post"><input type="hidden" name="item" value="{n}"><button>Buy</button></form>
</li>
"#;
const FOOT: &str = r#"</ul>
<form id="login" action="/login" method="post"><input type="hidden" name="csrf" value="7f9c2ba4e88f827d">
<input name="name"><input type="password" name="password"><button>Log in</button></form>
</main>
<footer><p>Written for a measurement. All lamps are <i>fictitious</i>.</p></footer>
</body>
</html>
"#;

/// Returns the median time of a page, microseconds.
fn median(mut one: impl FnMut()) -> f64 {
    let mut times: Vec<_> = (0..PAGES)
        .map(|_| {
            let begin = Instant::now();
            one();
            begin.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[PAGES / 2].as_secs_f64() * 1e6
}

#[expect(clippy::print_stdout, reason = "an example prints")]
fn main() {
    let body = Bytes::from(page());
    println!("page: {} bytes; median times of a page that answers:", body.len());
    let measure = |what: &str, ask: fn(&Page) -> Result<(), HtmlError>| {
        let learned = Learned::shared();
        let time = median(|| {
            let (learned, limits) = (learned.clone(), Limits::default());
            let page = Page::new(body.clone(), Some("text/html"), "http://127.0.0.1/", learned, limits);
            page.and_then(|page| ask(&page)).expect("a page within limits");
        });
        println!("{what}: {time:.1} us");
    };
    measure("three selectors", |page| {
        black_box(page.text("h1")?);
        black_box(page.attr("form#login input[name=csrf]", "value")?);
        black_box(page.count("li.item")?);
        Ok(())
    });
    measure("text of h1 alone", |page| page.text("h1").map(|text| drop(black_box(text))));
    measure("all of li.item", |page| page.all("li.item").map(|all| drop(black_box(all))));
    measure("form#login", |page| page.form("form#login").map(|form| drop(black_box(form))));
    measure("resources", |page| page.resources(100, false).map(|list| drop(black_box(list))));
}
