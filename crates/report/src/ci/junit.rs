//! JUnit's XML: a suite of test cases.

use std::fmt::Write as _;

/// A suite.
#[derive(Clone, Debug, Default)]
pub struct Suite {
    /// Its name.
    pub name: String,
    /// Its duration, seconds.
    pub seconds: f64,
    /// Facts, each with its name.
    pub properties: Vec<(&'static str, String)>,
    /// The cases.
    pub cases: Vec<Case>,
}

/// A test case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// The outcome in words.
    pub words: String,
}

/// How a test case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As it should.
    Passed,
    /// Not as it should.
    Failed,
    /// It says nothing.
    Skipped,
    /// Something went wrong before there was an answer.
    Error,
}

/// Writes a suite.
#[must_use]
pub fn write(suite: &Suite) -> String {
    let counted = |outcome| suite.cases.iter().filter(|case| case.outcome == outcome).count();
    let (failures, errors) = (counted(Outcome::Failed), counted(Outcome::Error));
    let (tests, skipped) = (suite.cases.len(), counted(Outcome::Skipped));
    let counts = format!("tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\"");
    let (name, seconds) = (xml(&suite.name), suite.seconds);
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"oroshi\" {counts} time=\"{seconds:.3}\">\n\
         <testsuite name=\"{name}\" {counts} time=\"{seconds:.3}\">\n<properties>\n"
    );
    // Writing to a `String` does not fail.
    for (property, value) in &suite.properties {
        let _ = writeln!(text, "<property name=\"{property}\" value=\"{}\"/>", xml(value));
    }
    text.push_str("</properties>\n");
    for case in &suite.cases {
        let words = xml(&case.words);
        let body = match case.outcome {
            Outcome::Passed => format!("<system-out>{words}</system-out>"),
            Outcome::Failed => format!("<failure message=\"{words}\">{words}</failure>"),
            Outcome::Skipped => format!("<skipped message=\"{words}\"/>"),
            Outcome::Error => format!("<error message=\"{words}\">{words}</error>"),
        };
        let case = xml(&case.name);
        let _ = writeln!(text, "<testcase classname=\"oroshi.{name}\" name=\"{case}\" time=\"0\">{body}</testcase>");
    }
    text + "</testsuite>\n</testsuites>\n"
}

/// Text for an element or an attribute. XML 1.0 has no control characters, escaped or not.
fn xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push_str("&#10;"),
            '\t' => escaped.push_str("&#9;"),
            char if char.is_control() || matches!(char, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            char => escaped.push(char),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xml_is_well_formed_whatever_the_text() {
        assert_eq!(xml("a<b>&\"c\"\n\t\0\u{1b}é"), "a&lt;b&gt;&amp;&quot;c&quot;&#10;&#9;\u{fffd}\u{fffd}é");
    }
}
