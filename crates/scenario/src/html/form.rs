//! Forms: what a browser would submit (HTML, section 4.10.21).

use std::collections::HashMap;
use std::ops::Range;

use url::Url;

use super::page::{ALL, CONTENT};
use super::scan::{Element, Found};
use super::{HtmlError, Limits, Page, text};

/// All that decides which fields a form has.
const PARTS: &str =
    "base, form, fieldset, legend, input, button, select, datalist, optgroup, option, textarea, template";

/// How a form's fields travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// In the query of `action`, which they replace.
    Get,
    /// In the body, coded as [`Form::encoding`] says.
    Post,
}

/// How a form's fields are coded in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// `application/x-www-form-urlencoded`.
    Urlencoded,
    /// `multipart/form-data`.
    Multipart,
    /// `text/plain`.
    Plain,
}

/// A form as a browser would submit it if the user pressed Enter in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// Where it goes, resolved against the page's base, without a fragment.
    pub action: Url,
    /// How its fields travel.
    pub method: Method,
    /// How a body is coded.
    pub encoding: Encoding,
    /// The successful fields in the page's order, with the default button's if that has a name.
    pub fields: Vec<(String, String)>,
}

impl Page {
    /// Returns the first form that matches; `None` if nothing does.
    ///
    /// Fields are those of a browser whose user changed nothing: inputs by their type, checked boxes, selected or first
    /// options, text areas, and the first submit button, which Enter presses (its `formaction` and `formmethod` count
    /// too). Line breaks in values are CR LF. Disabled fields are left out. Files have empty names.
    ///
    /// Fails if the element is no form, or has more than [`Limits::fields`](super::Limits::fields) fields.
    pub fn form(&self, css: &str) -> Result<Option<Form>, HtmlError> {
        let answers = self.ask_all([(css, CONTENT), (PARTS, ALL)])?;
        let [(forms, form), (parts, part)] = answers.as_slice() else { return Ok(None) };
        let Some(form) = forms.first(*form) else { return Ok(None) };
        if form.name() != "form" {
            return Err(HtmlError::NoForm { css: css.to_owned(), element: form.name() });
        }
        Reader::new(css, form, parts, *part, self.limits())?.read(self).map(Some)
    }
}

/// A part of the page, with its name.
struct Part<'a> {
    name: String,
    element: Element<'a>,
    at: Range<usize>,
}

impl Part<'_> {
    fn contains(&self, other: &Self) -> bool {
        self.at.start < other.at.start && other.at.start < self.at.end
    }

    fn is(&self, name: &str) -> bool {
        self.name == name
    }
}

/// Returns where the first legend of the fieldset `parts[n]` is, not counting those of fieldsets inside.
fn first_legend(parts: &[Part<'_>], n: usize) -> Option<Range<usize>> {
    let mut next = n + 1;
    while let Some(part) = parts.get(next).filter(|part| parts[n].contains(part)) {
        match part.name.as_str() {
            "legend" => return Some(part.at.clone()),
            "fieldset" => next += parts[next..].partition_point(|other| other.at.start < part.at.end),
            _ => next += 1,
        }
    }
    None
}

struct Reader<'a> {
    css: &'a str,
    form: Element<'a>,
    parts: Vec<Part<'a>>,
    /// Places in the page whose controls are not submitted.
    barred: Vec<Range<usize>>,
    /// None for a radio button that a later one of its group unchecked.
    fields: Vec<Option<(String, String)>>,
    /// The fields of checked radio buttons by name.
    radios: HashMap<String, usize>,
    /// Bytes of content that may still be read for the values of options.
    budget: usize,
    limits: &'a Limits,
}

impl<'a> Reader<'a> {
    fn new(
        css: &'a str,
        form: Element<'a>,
        found: &'a Found,
        query: usize,
        limits: &'a Limits,
    ) -> Result<Self, HtmlError> {
        let parts: Vec<_> =
            found.all(query)?.map(|element| Part { name: element.name(), at: element.at(), element }).collect();
        let mut barred = Vec::new();
        for (n, part) in parts.iter().enumerate() {
            match part.name.as_str() {
                "datalist" | "template" => barred.push(part.at.clone()),
                "fieldset" if part.element.has_attribute("disabled") => {
                    // The first legend of a disabled fieldset stays enabled.
                    match first_legend(&parts, n) {
                        Some(legend) => barred.extend([part.at.start..legend.start, legend.end..part.at.end]),
                        None => barred.push(part.at.clone()),
                    }
                }
                _ => {}
            }
        }
        // Sorted and joined, so that a page full of nested ones costs no more than one search for each control.
        barred.sort_by_key(|range| range.start);
        barred.dedup_by(|next, last| {
            let joins = next.start <= last.end;
            if joins {
                last.end = last.end.max(next.end);
            }
            joins
        });
        Ok(Self {
            css,
            form,
            parts,
            barred,
            fields: Vec::new(),
            radios: HashMap::new(),
            budget: limits.total_bytes,
            limits,
        })
    }

    fn read(mut self, page: &Page) -> Result<Form, HtmlError> {
        let parts = std::mem::take(&mut self.parts);
        let base = parts.iter().filter(|part| part.is("base")).find_map(|part| part.element.attribute("href"));
        let (document, base) = page.base(base.as_deref())?;
        let id = self.form.attribute("id").filter(|id| !id.is_empty());
        let own = self.form.at();
        let mut button = None;
        let mut n = 0;
        while n < parts.len() {
            let part = &parts[n];
            n += 1;
            let belongs = match part.element.attribute("form") {
                Some(form) => id.as_deref() == Some(&form),
                None => own.contains(&part.at.start),
            };
            if !belongs || part.element.has_attribute("disabled") || self.is_barred(part.at.start) {
                continue;
            }
            match part.name.as_str() {
                "input" => self.input(&part.element, &mut button)?,
                "button" => {
                    let kind = part.element.attribute("type").unwrap_or_default();
                    if !["button", "reset"].iter().any(|other| kind.eq_ignore_ascii_case(other)) {
                        self.submit_button(&part.element, &mut button)?;
                    }
                }
                "select" => {
                    let options = parts[n..].iter().take_while(|other| part.contains(other)).count();
                    self.select(&part.element, &parts[n..n + options])?;
                    n += options;
                }
                "textarea" => {
                    let value = line_breaks(&text::verbatim(&part.element.inner()));
                    self.push(&part.element, || value)?;
                }
                _ => {}
            }
        }
        let of = |form: &str, of_button: &str| {
            let of_button = button.and_then(|button: Element<'_>| button.attribute(of_button));
            of_button.or_else(|| self.form.attribute(form)).unwrap_or_default()
        };
        let method = match of("method", "formmethod").to_ascii_lowercase().as_str() {
            "post" => Method::Post,
            _ => Method::Get,
        };
        let encoding = match of("enctype", "formenctype").to_ascii_lowercase().as_str() {
            "multipart/form-data" => Encoding::Multipart,
            "text/plain" => Encoding::Plain,
            _ => Encoding::Urlencoded,
        };
        // An empty action is the page itself, whatever its base.
        let action = of("action", "formaction");
        let mut action = match action.trim() {
            "" => document,
            action => {
                base.join(action).map_err(|error| HtmlError::Url { url: action.to_owned(), why: error.to_string() })?
            }
        };
        action.set_fragment(None);
        Ok(Form { action, method, encoding, fields: self.fields.into_iter().flatten().collect() })
    }

    fn is_barred(&self, at: usize) -> bool {
        let after = self.barred.partition_point(|range| range.start <= at);
        after > 0 && at < self.barred[after - 1].end
    }

    fn input(&mut self, element: &Element<'a>, button: &mut Option<Element<'a>>) -> Result<(), HtmlError> {
        let value = || element.attribute("value");
        let number = |name, otherwise: f64| {
            element
                .attribute(name)
                .and_then(|value| value.trim().parse().ok())
                .filter(|n: &f64| n.is_finite())
                .unwrap_or(otherwise)
        };
        match element.attribute("type").unwrap_or_default().to_ascii_lowercase().as_str() {
            "submit" | "image" => self.submit_button(element, button),
            "button" | "reset" => Ok(()),
            kind @ ("checkbox" | "radio") => {
                if !element.has_attribute("checked") {
                    return Ok(());
                }
                if kind == "radio" {
                    self.uncheck_others(element);
                }
                self.push(element, || value().unwrap_or_else(|| "on".to_owned()))
            }
            "hidden" => match element.attribute("name") {
                Some(name) if name.eq_ignore_ascii_case("_charset_") => self.push(element, || "UTF-8".to_owned()),
                _ => self.push(element, || line_breaks(&value().unwrap_or_default())),
            },
            "file" => self.push(element, String::new),
            "color" => self.push(element, || value().unwrap_or_else(|| "#000000".to_owned())),
            "range" => self.push(element, || {
                let (min, max) = (number("min", 0.0), number("max", 100.0));
                value().unwrap_or_else(|| if max < min { min } else { min + (max - min) / 2.0 }.to_string())
            }),
            "email" | "url" => self.push(element, || one_line(&value().unwrap_or_default()).trim().to_owned()),
            _ => self.push(element, || one_line(&value().unwrap_or_default())),
        }
    }

    /// Of the checked radio buttons of one name, a browser keeps the last one checked.
    fn uncheck_others(&mut self, radio: &Element<'a>) {
        if let Some(name) = radio.attribute("name").filter(|name| !name.is_empty())
            && let Some(earlier) = self.radios.insert(name, self.fields.len())
        {
            self.fields[earlier] = None;
        }
    }

    /// The first submit button is pressed.
    fn submit_button(&mut self, element: &Element<'a>, button: &mut Option<Element<'a>>) -> Result<(), HtmlError> {
        if button.is_some() {
            return Ok(());
        }
        *button = Some(*element);
        let is_image = element.attribute("type").is_some_and(|kind| kind.eq_ignore_ascii_case("image"));
        if is_image && element.name() == "input" {
            let name = element.attribute("name").filter(|name| !name.is_empty());
            let prefix = name.map(|name| name + ".").unwrap_or_default();
            self.field(prefix.clone() + "x", "0".to_owned())?;
            return self.field(prefix + "y", "0".to_owned());
        }
        self.push(element, || element.attribute("value").unwrap_or_default())
    }

    fn select(&mut self, select: &Element<'a>, options: &[Part<'a>]) -> Result<(), HtmlError> {
        let multiple = select.has_attribute("multiple");
        let rows = select.attribute("size").and_then(|size| size.trim().parse().ok()).unwrap_or(1u32);
        let mut group: Option<&Part<'_>> = None;
        let (mut first, mut selected) = (None, Vec::new());
        for part in options {
            if part.is("optgroup") {
                group = Some(part);
            }
            if !part.is("option") {
                continue;
            }
            let disabled = part.element.has_attribute("disabled")
                || group.is_some_and(|group| group.element.has_attribute("disabled") && group.contains(part));
            if part.element.has_attribute("selected") {
                if !multiple {
                    selected.clear();
                }
                selected.push((part, disabled));
            } else if !disabled && first.is_none() {
                first = Some((part, false));
            }
        }
        if selected.is_empty() && !multiple && rows <= 1 {
            selected.extend(first);
        }
        for (option, _) in selected.into_iter().filter(|(_, disabled)| !disabled) {
            let value = match option.element.attribute("value") {
                Some(value) => value,
                None => self.text(&option.element)?,
            };
            self.push(select, || value)?;
        }
        Ok(())
    }

    /// Returns an option's text. Options nest on hostile pages, so that each has the text of all others.
    fn text(&mut self, option: &Element<'a>) -> Result<String, HtmlError> {
        let over = || HtmlError::TotalBytes { css: self.css.to_owned(), max: self.limits.total_bytes };
        self.budget -= option.inner_within(self.budget).ok_or_else(over)?.len();
        option.text()
    }

    /// Adds the control's field, if it has a name.
    fn push(&mut self, element: &Element<'a>, value: impl FnOnce() -> String) -> Result<(), HtmlError> {
        match element.attribute("name") {
            Some(name) if !name.is_empty() => self.field(name, value()),
            _ => Ok(()),
        }
    }

    fn field(&mut self, name: String, value: String) -> Result<(), HtmlError> {
        if self.fields.len() == self.limits.fields {
            return Err(HtmlError::Fields { css: self.css.to_owned(), max: self.limits.fields });
        }
        self.fields.push(Some((name, value)));
        Ok(())
    }
}

/// Writes each line break as CR LF.
fn line_breaks(value: &str) -> String {
    value.replace("\r\n", "\n").replace('\r', "\n").replace('\n', "\r\n")
}

fn one_line(value: &str) -> String {
    value.replace(['\r', '\n'], "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::tests::{page, page_with};

    fn form(html: &str) -> Form {
        page(html).form("form").unwrap().expect("a form")
    }

    fn fields(html: &str) -> Vec<(String, String)> {
        form(&format!("<form>{html}</form>")).fields
    }

    fn pairs<const N: usize>(list: [(&str, &str); N]) -> Vec<(String, String)> {
        list.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    }

    #[test]
    fn inputs_by_their_type() {
        let html = "<input name=a value='1 &amp; 2'><input name=b><input value=nameless><input name='' value=x>\
            <input type=HIDDEN name=c value='x&#10;y'><input type=password name=d value='p\nq'>\
            <input type=checkbox name=e checked><input type=checkbox name=f value=1>\
            <input type=checkbox name=e value=2 checked=''>\
            <input type=file name=g value=/etc/passwd><input type=color name=h><input type=range name=i>\
            <input type=range name=j min=10 max=5><input type=hidden name=_charset_ value=z>\
            <input type=reset name=k value=v><input type=button name=l value=v><input type=email name=m value=' a@b '>";
        let want = [
            ("a", "1 & 2"),
            ("b", ""),
            ("c", "x\r\ny"),
            ("d", "pq"),
            ("e", "on"),
            ("e", "2"),
            ("g", ""),
            ("h", "#000000"),
            ("i", "50"),
            ("j", "10"),
            ("_charset_", "UTF-8"),
            ("m", "a@b"),
        ];
        assert_eq!(fields(html), pairs(want));
    }

    #[test]
    fn of_radio_buttons_the_last_checked_counts() {
        let html = "<input type=hidden name=r value=0><input type=radio name=r value=1 checked>\
            <input type=radio name=r value=2><input type=radio name=r value=3 checked><input type=radio name=s value=4>\
            <input name=t>";
        assert_eq!(fields(html), pairs([("r", "0"), ("r", "3"), ("t", "")]));
    }

    #[test]
    fn selects_give_selected_or_first_options() {
        let html = "<select name=a><option value=1>one<option selected>  two\n 2 <option>three</select>\
            <select name=b><option disabled>x<option value=y>y</select>\
            <select name=c multiple><option selected>p<option>q<option selected value=''>r</select>\
            <select name=d multiple><option>p</select><select name=e size=3><option>p</select><select name=f></select>\
            <select name=g><optgroup disabled><option>p</optgroup><option>q</select>\
            <select name=h><option selected disabled>p<option>q</select>\
            <select name=i><option selected>p<option selected>q</select>";
        let want = [("a", "two 2"), ("b", "y"), ("c", "p"), ("c", ""), ("g", "q"), ("i", "q")];
        assert_eq!(fields(html), pairs(want));
    }

    #[test]
    fn text_areas_keep_white_space() {
        let html = "<textarea name=a>\n\n x\n<b>&lt;\r\n</textarea><textarea name=b></textarea>";
        assert_eq!(fields(html), pairs([("a", "\r\n x\r\n<b><\r\n"), ("b", "")]));
    }

    #[test]
    fn the_first_submit_button_is_pressed() {
        let html = "<button type=button name=x>x</button><input type=submit name=y value=Y disabled>\
            <button name=go value=1>Go</button><input type=submit name=z value=Z>";
        assert_eq!(fields(html), pairs([("go", "1")]));
        assert_eq!(fields("<input type=image name=i src=x>"), pairs([("i.x", "0"), ("i.y", "0")]));
        assert_eq!(fields("<input type=image>"), pairs([("x", "0"), ("y", "0")]));
        let form =
            form("<form action=/a><button formaction=/b formmethod=POST formenctype=text/plain>x</button></form>");
        assert_eq!((form.action.path(), form.method, form.encoding), ("/b", Method::Post, Encoding::Plain));
    }

    #[test]
    fn what_is_disabled_or_elsewhere_is_left_out() {
        let html = "<input name=a disabled><fieldset disabled><legend><input name=b></legend><legend><input name=c>\
            </legend><input name=d></fieldset><fieldset disabled><fieldset><legend><input name=e></legend></fieldset>\
            <input name=f><legend><input name=g></legend></fieldset><fieldset><input name=h></fieldset>\
            <datalist><input name=i></datalist><template><input name=j></template><input name=k>";
        assert_eq!(fields(html), pairs([("b", ""), ("g", ""), ("h", ""), ("k", "")]));
        let html = "<input name=a form=f><input name=z><form id=f><input name=b><input name=c form=other></form>\
            <input name=d form=f><form id=other><input name=e></form>";
        let form = page(html).form("#f").unwrap().unwrap();
        assert_eq!(form.fields, pairs([("a", ""), ("b", ""), ("d", "")]));
    }

    #[test]
    fn the_action_is_resolved() {
        let action = |html: &str| {
            let form = form(html);
            (form.action.to_string(), form.method)
        };
        assert_eq!(action("<form></form>"), ("http://shop.test/list/?page=2".to_owned(), Method::Get));
        assert_eq!(
            action("<form action='login?a=1&amp;b#c' method=POST></form>"),
            ("http://shop.test/list/login?a=1&b".to_owned(), Method::Post)
        );
        assert_eq!(
            action("<base href=/x/><base href=/y/><form action=go method=nonsense></form>"),
            ("http://shop.test/x/go".to_owned(), Method::Get)
        );
        assert_eq!(action("<base href=/x/><form action=''></form>").0, "http://shop.test/list/?page=2");
        assert_eq!(action("<base href='mailto:x'><form action=a></form>").0, "http://shop.test/list/a");
        let form = form("<form enctype=Multipart/Form-Data method=post></form>");
        assert_eq!(form.encoding, Encoding::Multipart);
    }

    #[test]
    fn mistakes_say_what_was_found() {
        assert_eq!(page("<p>").form("form").unwrap(), None);
        let error = page("<div class=f><form></form></div>").form(".f").unwrap_err();
        assert_eq!(error.to_string(), "`.f` matches <div>; expected a <form>");
        let error = page("<form action='http://[x'></form>").form("form").unwrap_err();
        assert!(error.to_string().starts_with("`http://[x` is not a URL: "), "{error}");
        let limits = Limits { fields: 2, ..Limits::default() };
        let html = "<form><input name=a><input name=b><input name=c></form>";
        let error = page_with(html.as_bytes(), None, limits).unwrap().form("form").unwrap_err();
        assert_eq!(error, HtmlError::Fields { css: "form".into(), max: 2 });
    }

    #[test]
    fn nested_fieldsets_cost_little() {
        for html in ["<fieldset disabled>", "<select name=a>", "<option>", "<fieldset disabled><legend>", "<datalist>"]
        {
            let html = format!("<form>{}<input name=a>", html.repeat(4_000));
            let _ = page(&html).form("form");
        }
    }
}
