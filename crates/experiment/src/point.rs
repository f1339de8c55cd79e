//! The points of a sweep: the file with one value in place of the sweep's name.

use std::cell::Cell;

use oroshi_config::{Mistakes, Node};
use oroshi_lab::plan::Sweep;
use oroshi_lab::template::{self, Values};

/// The keys whose texts may hold the sweep's name.
const SWEPT: [&str; 4] = ["load", "files", "server", "variant"];

/// A point of the sweep, or the only one without a sweep.
#[derive(Debug)]
pub(crate) struct Point {
    /// The file's tree at this point.
    pub(crate) root: Node,
    /// The mistakes in it.
    pub(crate) mistakes: Mistakes,
    name: String,
    values: Values,
    is_met: Cell<bool>,
}

impl Point {
    /// Returns the points of a file.
    pub(crate) fn all(root: &Node, sweep: Option<&Sweep>) -> Vec<Self> {
        match sweep {
            None => vec![Self::new(root, "", "")],
            Some(sweep) => sweep.values.iter().map(|value| Self::new(root, &sweep.name, value)).collect(),
        }
    }

    fn new(root: &Node, name: &str, value: &str) -> Self {
        let mut values = Values::default();
        values.set(name, value);
        let (mistakes, is_met) = (Mistakes::typed(), Cell::new(false));
        let point = Self { root: Node::default(), mistakes, name: name.to_owned(), values, is_met };
        let mut root = root.clone();
        root.each_text_of(&SWEPT, &mut |text| *text = point.fill(text));
        Self { root, ..point }
    }

    /// Replaces the sweep's name by the point's value. Invalid braces stay, and the text's reader reports them.
    pub(crate) fn fill(&self, text: &str) -> String {
        match template::names(text) {
            Ok(names) if names.contains(&self.name.as_str()) => {
                self.is_met.set(true);
                template::fill_some(text, &self.values).unwrap_or_else(|_| text.to_owned())
            }
            _ => text.to_owned(),
        }
    }

    /// Whether any text held the sweep's name.
    pub(crate) fn is_met(&self) -> bool {
        self.is_met.get()
    }
}

#[cfg(test)]
mod tests {
    use oroshi_config::toml;

    use super::*;

    #[test]
    fn the_value_takes_the_place_of_the_name_in_loads_servers_and_variants() {
        let text = "title = \"{{n}}\"\n[load]\nheader = [\"a {{ n }} {{m}}\"]\n[[server]]\nenv.\"{{n}}\" = \"{{n\"\n";
        let root = toml::parse(text).unwrap();
        let sweep = Sweep { name: "n".into(), label: "n".into(), values: vec!["1".into(), "2".into()] };
        let points = Point::all(&root, Some(&sweep));
        let header = |point: &Point| {
            point.root.get("load").unwrap().get("header").unwrap().elements()[0].as_text().unwrap().to_owned()
        };
        assert_eq!(points.iter().map(header).collect::<Vec<_>>(), ["a 1 {{m}}", "a 2 {{m}}"]);
        let point = &points[0];
        assert_eq!(point.root.get("title"), root.get("title"), "nothing else is swept");
        assert_eq!(point.root.get("server"), root.get("server"), "neither keys nor broken braces");
        assert!(point.is_met() && !Point::new(&root, "x", "1").is_met());
        let [only] = &Point::all(&root, None)[..] else { panic!("without a sweep there is one point") };
        assert_eq!(only.root, root);
        assert!(!only.is_met());
    }
}
