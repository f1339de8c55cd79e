//! Prints how long a page of 20 KB takes with three selectors: `cargo run --release -p oroshi-scenario --example html`.

use std::hint::black_box;
use std::time::Instant;

use bytes::Bytes;
use oroshi_scenario::html::{Learned, Limits, Page};

/// Pages that are measured, one by one: the median survives a busy machine.
const PAGES: usize = 5_000;

/// Makes a shop's page: a head with styles and scripts, navigation, a list of items with forms, a footer.
fn page() -> String {
    let mut html = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Shop &mdash; Lamps</title>\n\
         <link rel=\"stylesheet\" href=\"/assets/site-4f2a.css\">\n<link rel=\"icon\" href=\"/favicon.svg\">\n\
         <script src=\"/assets/site-91bc.js\" defer></script>\n<meta name=\"csrf\" content=\"7f9c2ba4e88f827d\">\n\
         <style>.item { display: grid } .item > img { width: 8rem }</style>\n</head>\n<body>\n\
         <header class=\"top\"><a class=\"logo\" href=\"/\">Shop</a>\n<nav><ul>\n",
    );
    for n in 0..12 {
        html +=
            &format!("<li class=\"nav-item\"><a href=\"/category/{n}?sort=new&amp;page=1\">Category {n}</a></li>\n");
    }
    html += "</ul></nav></header>\n<!-- list -->\n<main id=\"main\"><h1 class=\"title\">Lamps &amp; lights</h1>\n<ul class=\"items\">\n";
    let mut n = 0;
    while html.len() < 19 << 10 {
        n += 1;
        html += &format!(
            "<li class=\"item\" id=\"item-{n}\" data-id=\"{n}\">\n  <img src=\"/images/{n}.jpg\" alt=\"Lamp {n}\" width=\"120\">\n  \
             <h2><a href=\"/items/{n}\">Lamp no. {n}</a></h2>\n  <p class=\"text\">A lamp for the desk, the shelf or the \
             floor. <b>New</b> this week; it has a switch, a cable of two metres &amp; a warm light.</p>\n  \
             <span class=\"price\">&euro;{n}.90</span>\n  <form action=\"/cart\" method=\"post\"><input type=\"hidden\" \
             name=\"item\" value=\"{n}\"><button type=\"submit\">Buy</button></form>\n</li>\n"
        );
    }
    html += "</ul>\n<form id=\"login\" action=\"/login\" method=\"post\"><input type=\"hidden\" name=\"csrf\" \
             value=\"7f9c2ba4e88f827d\"><input name=\"name\"><input type=\"password\" name=\"password\"></form>\n</main>\n\
             <footer><p>Written for a measurement. All lamps are <i>fictitious</i>.</p></footer>\n</body>\n</html>\n";
    while html.len() < 20 << 10 {
        html.push('\n');
    }
    html
}

/// Returns the median time of a page, microseconds.
fn measure(mut one: impl FnMut()) -> f64 {
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
    println!("page: {} bytes", body.len());
    let learned = Learned::shared();
    let page = || {
        Page::new(body.clone(), Some("text/html"), "http://127.0.0.1/", learned.clone(), Limits::default())
            .expect("small")
    };
    let learning = || {
        let page = page();
        black_box(page.text("h1").expect("a selector"));
        black_box(page.attr("form#login input[name=csrf]", "value").expect("a selector"));
        black_box(page.count("li.item").expect("a selector"));
    };
    println!("three selectors, learned: {:.1} us", measure(learning));
    let learned = Learned::shared();
    let page = || {
        Page::new(body.clone(), Some("text/html"), "http://127.0.0.1/", learned.clone(), Limits::default())
            .expect("small")
    };
    println!("form: {:.1} us", measure(|| drop(black_box(page().form("#login")))));
    println!("resources: {:.1} us", measure(|| drop(black_box(page().resources(100, false)))));
    let learned = Learned::shared();
    let page = || {
        Page::new(body.clone(), Some("text/html"), "http://127.0.0.1/", learned.clone(), Limits::default())
            .expect("small")
    };
    println!("all items: {:.1} us", measure(|| drop(black_box(page().all("li.item")))));
    let learned = Learned::shared();
    let page = || {
        Page::new(body.clone(), Some("text/html"), "http://127.0.0.1/", learned.clone(), Limits::default())
            .expect("small")
    };
    println!("h1 alone: {:.1} us", measure(|| drop(black_box(page().text("h1")))));
}
