//! The frame of every page: head, style, sections, tables, footer.

use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("page.css");

/// The browser must not load anything, whatever the page contains.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";

/// A page.
pub(crate) struct Page {
    /// The title in the browser's tab.
    pub(crate) title: String,
    /// The kind of page, above the headline.
    pub(crate) kind: String,
    /// The headline with its details.
    pub(crate) header: Markup,
    /// The main part.
    pub(crate) sections: Vec<Section>,
    /// The origin, below everything.
    pub(crate) footer: Markup,
}

/// A part of a page.
pub(crate) struct Section {
    /// The anchor in the page's address.
    pub(crate) id: &'static str,
    /// Its heading.
    pub(crate) title: &'static str,
    /// Its content.
    pub(crate) body: Markup,
}

impl Page {
    /// Renders the whole page.
    pub(crate) fn render(self) -> String {
        let Self { title, kind, header, sections, footer } = self;
        let markup = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta http-equiv="Content-Security-Policy" content=(POLICY);
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="generator" content=(concat!("oroshi ", env!("CARGO_PKG_VERSION")));
                    title { (title) }
                    // Otherwise browsers ask the page's server for one.
                    link rel="icon" href="data:,";
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    main {
                        header {
                            p.kind { (kind) }
                            (header)
                        }
                        nav aria-label="Parts of this page" {
                            @for section in &sections {
                                a href={ "#" (section.id) } { (section.title) }
                            }
                        }
                        @for section in &sections {
                            section id=(section.id) {
                                h2 { (section.title) }
                                (section.body)
                            }
                        }
                        footer { (footer) }
                    }
                }
            }
        };
        markup.into_string()
    }
}

/// A cell of a table.
pub(crate) type Cell = Markup;

/// Makes a cell of text.
pub(crate) fn cell(text: impl AsRef<str>) -> Cell {
    html! { (text.as_ref()) }
}

/// Renders a table that scrolls sideways on narrow pages. The first column names the row.
pub(crate) fn table<R: AsRef<[Cell]>>(label: &str, head: &[&str], rows: impl IntoIterator<Item = R>) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(label) {
            table {
                thead { tr { @for name in head { th scope="col" { (name) } } } }
                tbody {
                    @for row in rows {
                        tr {
                            @for (i, cell) in row.as_ref().iter().enumerate() {
                                @if i == 0 { th scope="row" { (cell) } } @else { td { (cell) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Renders content that the reader can unfold.
pub(crate) fn folded(summary: &str, body: &Markup) -> Markup {
    html! { details { summary { (summary) } (body) } }
}

/// Renders names with their values. Omits names without a value.
pub(crate) fn facts<'a>(facts: impl IntoIterator<Item = (&'a str, Option<String>)>) -> Markup {
    html! {
        dl.facts {
            @for (name, text) in facts {
                @if let Some(text) = text { div { dt { (name) } dd { (text) } } }
            }
        }
    }
}

/// Renders a command for copying.
pub(crate) fn command(words: &[String]) -> Markup {
    html! { pre.command { code { (shell_line(words)) } } }
}

/// Renders warnings about the figures.
pub(crate) fn warnings(warnings: &[String]) -> Markup {
    html! {
        @if !warnings.is_empty() {
            ul.warnings {
                @for warning in warnings { li { (warning) } }
            }
        }
    }
}

/// Renders a large figure: the number, with a smaller unit.
pub(crate) fn big(text: &str) -> Markup {
    let (number, unit) = text.rsplit_once(crate::figure::NBSP).unwrap_or((text, ""));
    html! { span.number { (number) } @if !unit.is_empty() { " " span.unit { (unit) } } }
}

/// Quotes words as a shell command line.
pub(crate) fn shell_line(words: &[String]) -> String {
    words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ")
}

fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_survives_the_shell() {
        let line = |words: &[&str]| shell_line(&words.iter().map(|&w| w.to_owned()).collect::<Vec<_>>());
        assert_eq!(line(&["oroshi", "bench", "-H", "A: b", "http://h/?a&b"]), "oroshi bench -H 'A: b' 'http://h/?a&b'");
        assert_eq!(line(&["it's", ""]), r"'it'\''s' ''");
        let words = ["a b", "$HOME", "`x`", "it's", "", "\\", "ünï"].map(str::to_owned);
        let echoed = std::process::Command::new("sh")
            .args(["-c", &format!("printf '[%s]\n' {}", shell_line(&words))])
            .output()
            .unwrap();
        let expected: String = words.iter().map(|word| format!("[{word}]\n")).collect();
        assert_eq!(String::from_utf8(echoed.stdout).unwrap(), expected);
    }

    #[test]
    fn what_others_wrote_is_text() {
        let hostile = "<script>alert(1)</script>\"'&";
        let page = Page {
            title: hostile.into(),
            kind: hostile.into(),
            header: html! { h1 { (hostile) } (big(hostile)) },
            sections: vec![Section {
                id: "a",
                title: "A",
                body: html! {
                    (table(hostile, &[hostile], [[cell(hostile)]])) (facts([("b", Some(hostile.into()))]))
                    (command(&[hostile.into()])) (warnings(&[hostile.into()])) (folded(hostile, &cell(hostile)))
                },
            }],
            footer: html! {},
        };
        let text = page.render();
        assert!(!text.contains("<script"), "{text}");
        assert!(text.matches("&lt;script&gt;").count() >= 10, "{text}");
        assert!(!text.contains("\"'&\""), "an attribute ends where it should");
    }
}
