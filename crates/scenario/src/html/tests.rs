//! Pages and passes: answers, limits, hostile pages.

use std::rc::Rc;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

pub(super) fn page(html: &str) -> Page {
    page_with(html.as_bytes(), None, Limits::default()).unwrap()
}

pub(super) fn page_with(html: &[u8], content_type: Option<&str>, limits: Limits) -> Result<Page, HtmlError> {
    let body = Bytes::copy_from_slice(html);
    Page::new(body, content_type, "http://shop.test/list/?page=2#top", Learned::shared(), limits)
}

const SHOP: &str = "<!doctype html><html><head><title>The &lt;shop&gt;</title>\
    <script id=state type=application/json> {\"a\": \"<b>\"} </script></head><body>\
    <H1 Class=Title DATA-X=\"a &amp; b\" data-x=second hidden>Lamps\n &amp; <em>lights</em><!-- not this --></H1>\
    <ul id=list><li class='item new'>One</li><li class=item>Two <b>2</b></li><li class=item>Three</ul>\
    <p>first<p>second<input name=csrf value='&quot;t&quot;'></body></html>";

#[test]
fn a_page_answers() {
    let page = page(SHOP);
    let text = |css| page.text(css).unwrap();
    assert_eq!(text("h1").as_deref(), Some("Lamps & lights"));
    assert_eq!(text("title").as_deref(), Some("The <shop>"));
    assert_eq!(text("#state").as_deref(), Some("{\"a\": \"<b>\"}"));
    assert_eq!(text("ul > li.item:nth-child(2)").as_deref(), Some("Two 2"));
    assert_eq!(text("input").as_deref(), Some(""));
    assert_eq!(text("h7"), None);
    assert_eq!(text("p").as_deref(), Some("first"));
    assert_eq!(page.inner("p").unwrap().unwrap(), "first");
    assert_eq!(page.attr("h1", "data-x").unwrap().as_deref(), Some("a & b"));
    assert_eq!(page.attr("h1", "DATA-X").unwrap().as_deref(), Some("a & b"));
    assert_eq!(page.attr("h1", "hidden").unwrap().as_deref(), Some(""));
    assert_eq!(page.attr("h1", "id").unwrap(), None);
    assert_eq!(page.attr("h7", "id").unwrap(), None);
    assert_eq!(page.attr("input[name=csrf]", "value").unwrap().as_deref(), Some("\"t\""));
    assert!(page.has("body input").unwrap() && !page.has("ul input").unwrap());
    assert_eq!(page.count("li").unwrap(), 3);
    assert_eq!(page.count("h7").unwrap(), 0);
    assert_eq!(page.inner("li:nth-child(2)").unwrap().unwrap(), "Two <b>2</b>");
    assert_eq!(page.inner("h7").unwrap(), None);
    assert_eq!(page.url(), "http://shop.test/list/?page=2#top");
}

#[test]
fn all_matches_come_with_everything() {
    let all = page(SHOP).all("h1, li:not(.new), li b").unwrap();
    let names: Vec<_> = all.iter().map(|found| (found.name.as_str(), found.text.as_str())).collect();
    assert_eq!(names, [("h1", "Lamps & lights"), ("li", "Two 2"), ("b", "2"), ("li", "Three")]);
    let attributes = [("class", "Title"), ("data-x", "a & b"), ("hidden", "")];
    assert_eq!(all[0].attributes, attributes.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert_eq!(all[0].inner, "Lamps\n &amp; <em>lights</em><!-- not this -->");
    assert_eq!(all[1].inner, "Two <b>2</b>");
    assert_eq!(page(SHOP).all("h7").unwrap(), []);
}

#[test]
fn pages_in_other_charsets_are_read_as_utf_8() {
    let html = b"<h1 title=\x93\xfa>\x93\xfa\x96\x7b</h1>";
    let page = page_with(html, Some("text/html; charset=Shift_JIS"), Limits::default()).unwrap();
    assert_eq!(page.text("h1").unwrap().unwrap(), "日本");
    assert_eq!(page.attr("[title=日]", "title").unwrap().unwrap(), "日");
    assert_eq!(page.inner("h1").unwrap().unwrap(), "日本");
    let page = page_with(b"<p>\xff<b>", None, Limits::default()).unwrap();
    assert_eq!(page.text("p").unwrap().unwrap(), "\u{fffd}");
    assert_eq!(page.inner("p").unwrap().unwrap(), &b"\xff<b>"[..]);
}

#[test]
fn a_wrong_selector_is_an_error_every_time() {
    let page = page(SHOP);
    for _ in 0..2 {
        assert!(page.text("a +").unwrap_err().to_string().starts_with("selector `a +`: "));
        assert!(page.all("h1 ~ p").unwrap_err().to_string().contains("`~`"));
    }
    assert_eq!(page.count("li").unwrap(), 3);
}

/// Counts the passes over pages by what they answer: an answer kept by the page costs none.
#[test]
fn learned_selectors_are_answered_by_the_first_question() {
    let learned = Learned::shared();
    let page = |html: &str| {
        Page::new(Bytes::copy_from_slice(html.as_bytes()), None, "http://a/", learned.clone(), Limits::default())
            .unwrap()
    };
    let first = page(SHOP);
    assert!(first.has("li").unwrap());
    assert_eq!(first.passes(), 1);
    assert_eq!(first.count("li").unwrap(), 3);
    assert_eq!(first.text("h1").unwrap().unwrap(), "Lamps & lights");
    assert_eq!(first.passes(), 3);
    assert!(first.has("h1").unwrap());
    assert_eq!(first.attr("h1", "class").unwrap().unwrap(), "Title");
    assert_eq!(first.passes(), 3, "a larger answer covers a smaller one");
    let second = page("<h1>x</h1><li>y");
    assert_eq!(second.text("h1").unwrap().unwrap(), "x");
    assert_eq!((second.count("li").unwrap(), second.has("li").unwrap()), (1, true));
    assert_eq!(second.passes(), 1);
}

#[test]
fn what_pages_no_longer_need_is_forgotten_and_the_set_is_bounded() {
    let learned = Learned::shared();
    let page =
        || Page::new(Bytes::from_static(b"<a><b>"), None, "http://a/", learned.clone(), Limits::default()).unwrap();
    for n in 0..100 {
        page().has(&format!("#n{n}")).unwrap();
    }
    assert!(learned.borrow().len() <= 33);
    for _ in 0..40 {
        page().has("a").unwrap();
    }
    assert_eq!(learned.borrow().len(), 1);
}

#[test]
fn a_page_keeps_a_bounded_number_of_answers() {
    let page = page(SHOP);
    for n in 0..2_000 {
        assert_eq!(page.count(&format!("li:nth-child({n})")).unwrap(), u64::from((1..=3).contains(&n)));
    }
    assert!(page.answers() <= 300);
}

#[test]
fn limits_are_errors_that_name_them() {
    let with = |limits: Limits, html: &str| page_with(html.as_bytes(), None, limits);
    let limits = Limits { page_bytes: 10, ..Limits::default() };
    assert_eq!(with(limits, "<p>12345678").unwrap_err(), HtmlError::PageBytes { max: 10 });
    let limits = Limits { matches: 2, ..Limits::default() };
    let page = with(limits, "<p>1</p><p>2</p><p>3</p>").unwrap();
    assert_eq!(
        page.all("p").unwrap_err().to_string(),
        "more than 2 elements match `p`; use a narrower selector, or count them"
    );
    assert_eq!((page.count("p").unwrap(), page.all("p:first-child").unwrap().len()), (3, 1));
    let limits = Limits { text_bytes: 3, ..Limits::default() };
    let page = with(limits, "<p>1234</p><b>123</b>").unwrap();
    assert_eq!(page.text("p").unwrap_err(), HtmlError::TextBytes { css: "p".into(), max: 3 });
    assert_eq!((page.text("b").unwrap().unwrap(), page.inner("p").unwrap().unwrap()), ("123".into(), "1234".into()));
    let limits = Limits { attributes: 2, ..Limits::default() };
    let page = with(limits, "<p a b c=1>").unwrap();
    assert_eq!(page.all("p").unwrap_err(), HtmlError::Attributes { css: "p".into(), max: 2 });
    assert_eq!(page.attr("p", "c").unwrap().unwrap(), "1");
    let limits = Limits { total_bytes: 20, ..Limits::default() };
    let page = with(limits, "<p><p><i>12345</i><i a=12345>12345</i>").unwrap();
    assert_eq!(page.all("i").unwrap_err(), HtmlError::TotalBytes { css: "i".into(), max: 20 });
    assert_eq!(page.all("i:first-child").unwrap().len(), 1);
}

#[test]
fn deep_pages_and_endless_tags_are_errors_where_they_matter() {
    let error = page(&"<div>".repeat(100_000)).count("div").unwrap_err();
    assert_eq!(error, HtmlError::ParserBytes { max: 2 << 20 });
    let error = page(&format!("<div {}>", "a ".repeat(2 << 20))).count("div").unwrap_err();
    assert_eq!(error, HtmlError::ParserBytes { max: 2 << 20 });
    let deep = page(&format!("{}x{}", "<div>".repeat(4_000), "</div>".repeat(4_000)));
    assert_eq!((deep.count("div").unwrap(), deep.text("div").unwrap().unwrap()), (4_000, "x".into()));
    let names: String = (0..1_001).map(|n| format!("<x{n}></x{n}>")).collect();
    let error = page(&names).count("p:nth-of-type(2)").unwrap_err();
    assert_eq!(error, HtmlError::ElementNames { max: 1_000 });
    assert_eq!(page(&names).count("*").unwrap(), 1_001);
}

/// An element's name, text, inner HTML and place.
type Described = (String, String, Bytes, std::ops::Range<usize>);

/// Describes all that a pass found.
fn described(queries: &[Query], pieces: &[&[u8]]) -> Vec<(u64, Vec<Described>)> {
    let mut scan = Scan::new(queries, Limits::default());
    pieces.iter().for_each(|piece| scan.feed(piece));
    let found = scan.finish().unwrap();
    let describe = |query: usize| {
        let all = found.all(query).unwrap();
        let all = all.map(|element| (element.name(), element.text().unwrap(), element.inner(), element.at()));
        (found.count(query), all.collect())
    };
    (0..queries.len()).map(describe).collect()
}

fn query(css: &str, which: Which, content: bool) -> Query {
    Query { selector: Selector::new(css).unwrap(), want: Want { which, content } }
}

#[test]
fn a_pass_stops_when_the_first_matches_are_there() {
    let queries = [query("h1", Which::First, true), query("title", Which::First, false)];
    let mut scan = Scan::new(&queries, Limits { parser_bytes: 1 << 14, ..Limits::default() });
    scan.feed(b"<title>x</title><h1>a <b>b</b></h1>");
    (0..10_000).for_each(|_| scan.feed(b"<div>"));
    let found = scan.finish().expect("what comes later is not read");
    assert_eq!(found.first(0).unwrap().text().unwrap(), "a b");
    assert_eq!((found.first(1).unwrap().name(), found.count(1)), ("title".into(), 1));
    assert_eq!(Scan::new(&[], Limits::default()).finish().map(drop), Ok(()));
}

#[test]
fn one_found_answers_many_queries_about_the_same_element() {
    let queries = [query("p", Which::All, true), query(".a", Which::First, true), query("p b", Which::Count, false)];
    let html: &[u8] = b"<p>1<p class=a>2 <b>3</b></p></p><p>4 <b>5</b> <b>6";
    let [p, a, b] = &described(&queries, &[html])[..] else { panic!("three answers") };
    let texts = |list: &[Described]| -> Vec<String> { list.iter().map(|found| found.1.clone()).collect() };
    assert_eq!((p.0, texts(&p.1)), (3, vec!["1".into(), "2 3".into(), "4 5 6".into()]));
    assert_eq!((a.0, texts(&a.1)), (1, vec!["2 3".into()]));
    assert_eq!((b.0, b.1.len()), (3, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn pieces_make_no_difference(
        html in "(a|b| |<|>|</|<div|<p |class=a|='|\"|</div>|<br>|<!--|-->|<script>|</script>|<p>|</p>|<li>|</li>|\
                 &amp;|é|<ul>|</ul>){0,20}",
        cuts in proptest::collection::vec(0usize..100, 0..6),
    ) {
        let queries = [
            query("p", Which::All, true), query("div", Which::Count, true), query(".a", Which::All, false),
            query("li", Which::First, true), query("li:nth-of-type(2)", Which::All, true),
        ];
        let bytes = html.as_bytes();
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        let whole = described(&queries, &[bytes]);
        prop_assert_eq!(&described(&queries, &pieces), &whole);
        for (_, list) in whole {
            for (name, _, inner, at) in list {
                // The kept bytes are those of the page.
                let tag = format!("<{name}");
                prop_assert!(html[at.start..].to_ascii_lowercase().starts_with(&tag));
                prop_assert!(bytes[at].windows(inner.len().max(1)).any(|part| inner.is_empty() || part == inner));
            }
        }
    }

    #[test]
    fn any_bytes_are_a_page(
        body in proptest::collection::vec(any::<u8>(), 0..400),
        css in "[a-z*.#>:()\\[\\]='\" ,+~-]{0,12}",
    ) {
        let page = page_with(&body, None, Limits::default()).unwrap();
        let _ = (page.text("*"), page.all(&css), page.form("form"), page.resources(10, true));
    }
}

#[test]
fn learned_sets_are_shared_by_reference() {
    let learned = Learned::shared();
    let page = Page::new(Bytes::new(), None, "", learned.clone(), Limits::default()).unwrap();
    assert!(!page.has("p").unwrap());
    assert_eq!((Rc::strong_count(&learned), learned.borrow().len()), (2, 1));
    assert!(matches!(page.resources(1, false), Err(HtmlError::Url { .. })));
}
