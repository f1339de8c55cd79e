//! HAR 1.2, as Chromium, Firefox and Safari write it: what a script needs of it.

use std::collections::HashMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use url::Url;

use super::call::find;
use super::{FILE_BYTES, ImportError, MOST_ENTRIES, MOST_HEADERS};

/// The largest response body in which values are looked for, bytes.
const ANSWER_BYTES: usize = 2 << 20;

/// A recording, its entries in the order of time.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) entries: Vec<Entry>,
    /// The titles of pages by their ids.
    pub(super) titles: HashMap<String, String>,
    /// The browser, if it is named.
    pub(super) browser: Option<String>,
}

/// A request's bytes, and their content type.
pub(super) type RequestBody = (Vec<u8>, Option<String>);

/// A request and its response.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) page: Option<String>,
    /// Milliseconds since 1970.
    pub(super) began: f64,
    /// Milliseconds.
    pub(super) took: f64,
    pub(super) method: String,
    pub(super) url: Url,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Option<RequestBody>,
    /// Whether a file's content is missing in the recording.
    pub(super) cut: bool,
    /// 0: there is no response.
    pub(super) status: u16,
    /// Where a redirect leads.
    pub(super) location: Option<String>,
    /// The response's type.
    pub(super) kind: String,
    pub(super) answer: Option<String>,
    /// The browser's own word for what it fetched: `document`, `image`, ...
    pub(super) resource: Option<String>,
}

#[derive(Deserialize)]
struct File {
    log: Log,
}

#[derive(Deserialize)]
struct Log {
    #[serde(default)]
    pages: Vec<PageRow>,
    entries: Vec<EntryRow>,
    browser: Option<Program>,
    creator: Option<Program>,
}

#[derive(Deserialize)]
struct Program {
    name: Option<String>,
}

#[derive(Deserialize)]
struct PageRow {
    id: Option<String>,
    title: Option<String>,
}

#[derive(Deserialize)]
struct EntryRow {
    pageref: Option<String>,
    #[serde(rename = "startedDateTime")]
    started: Option<String>,
    time: Option<f64>,
    request: RequestRow,
    response: Option<ResponseRow>,
    #[serde(rename = "_resourceType")]
    resource: Option<String>,
}

#[derive(Deserialize)]
struct RequestRow {
    method: String,
    url: String,
    #[serde(default)]
    headers: Vec<Pair>,
    #[serde(rename = "postData")]
    post: Option<Post>,
}

#[derive(Deserialize)]
struct Pair {
    name: String,
    #[serde(default)]
    value: Option<String>,
}

#[derive(Deserialize)]
struct Post {
    #[serde(rename = "mimeType")]
    kind: Option<String>,
    text: Option<String>,
    encoding: Option<String>,
    params: Option<Vec<Parameter>>,
}

#[derive(Deserialize)]
struct Parameter {
    name: String,
    value: Option<String>,
    #[serde(rename = "fileName")]
    file: Option<String>,
}

#[derive(Deserialize)]
struct ResponseRow {
    status: Option<f64>,
    #[serde(default)]
    headers: Vec<Pair>,
    #[serde(rename = "redirectURL")]
    redirect: Option<String>,
    content: Option<Content>,
}

#[derive(Deserialize)]
struct Content {
    #[serde(rename = "mimeType")]
    kind: Option<String>,
    text: Option<String>,
    encoding: Option<String>,
}

/// Reads a recording.
///
/// # Errors
/// It is too large, or no HAR; an entry has no usable method, URL or time.
pub(super) fn read(text: &str) -> Result<Recording, ImportError> {
    if text.len() > FILE_BYTES {
        let (got, most) = (format!("{} bytes", text.len()), format!("{FILE_BYTES} bytes"));
        return Err(ImportError::TooLarge { what: "recording", got, most });
    }
    let file: File = serde_json::from_str(text.trim_start_matches('\u{feff}')).map_err(|error| {
        let what = error.to_string();
        let what = what.split(" at line ").next().unwrap_or_default().to_owned();
        ImportError::Json { line: error.line(), column: error.column(), what }
    })?;
    let log = file.log;
    if log.entries.len() > MOST_ENTRIES {
        let (got, most) = (format!("{} entries", log.entries.len()), MOST_ENTRIES.to_string());
        return Err(ImportError::TooLarge { what: "recording", got, most });
    }
    let mut entries = Vec::with_capacity(log.entries.len());
    let mut before = 0.0;
    for (index, row) in log.entries.into_iter().enumerate() {
        let entry = entry(row, before)
            .map_err(|what| ImportError::Entry { entry: index + 1, what: what.replace(char::is_control, " ") })?;
        if let Some(entry) = entry {
            before = entry.began;
            entries.push(entry);
        }
    }
    // Browsers sort entries by their end, or not at all.
    entries.sort_by(|one, other| one.began.total_cmp(&other.began));
    let titles = log.pages.into_iter().filter_map(|page| Some((page.id?, page.title.unwrap_or_default())));
    let browser = log.browser.or(log.creator).and_then(|program| program.name);
    Ok(Recording { entries, titles: titles.collect(), browser })
}

/// Checks an entry; `None`: it went to no server.
fn entry(row: EntryRow, before: f64) -> Result<Option<Entry>, String> {
    let request = row.request;
    let shown = |text: &str| text.chars().take(80).collect::<String>();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if request.method.is_empty() || request.method.len() > 40 || !request.method.bytes().all(is_token) {
        return Err(format!("request.method is `{}`: expected one such as GET", shown(&request.method)));
    }
    if request.headers.len() > MOST_HEADERS {
        let count = request.headers.len();
        return Err(format!("request.headers has {count} headers: expected at most {MOST_HEADERS}"));
    }
    let local =
        ["data:", "blob:", "about:", "file:", "chrome", "moz-extension:", "safari-", "resource:", "javascript:"];
    if local.iter().any(|scheme| request.url.get(..scheme.len()).is_some_and(|text| text.eq_ignore_ascii_case(scheme)))
    {
        return Ok(None);
    }
    let url = Url::parse(&request.url)
        .map_err(|why| format!("request.url is `{}`: {why}; expected an absolute URL", shown(&request.url)))?;
    if !["http", "https", "ws", "wss"].contains(&url.scheme()) {
        return Ok(None);
    }
    let began = match &row.started {
        None => before,
        Some(text) => unix_ms(text).ok_or_else(|| {
            format!("startedDateTime is `{}`: expected a time such as 2026-05-21T10:15:00.123Z", shown(text))
        })?,
    };
    let headers = pairs(request.headers);
    let (body, cut) = body(request.post, &headers);
    let mut response = row.response;
    let status = response.as_ref().and_then(|response| response.status).unwrap_or(0.0);
    let answered = response.take();
    let (mut location, mut kind, mut answer) = (None, String::new(), None);
    if let Some(response) = answered {
        let fields = pairs(response.headers);
        location =
            response.redirect.filter(|url| !url.is_empty()).or_else(|| find(&fields, "Location").map(str::to_owned));
        let content_type = find(&fields, "Content-Type").map(str::to_owned);
        if let Some(content) = response.content {
            kind = content_type.or(content.kind).unwrap_or_default();
            answer = content.text.filter(|text| text.len() <= ANSWER_BYTES);
            if content.encoding.as_deref() == Some("base64") {
                let decode = |text: String| String::from_utf8(BASE64_STANDARD.decode(text).ok()?).ok();
                answer = answer.and_then(decode);
            }
        } else {
            kind = content_type.unwrap_or_default();
        }
    }
    Ok(Some(Entry {
        page: row.pageref,
        began,
        took: row.time.filter(|took| (0.0..1e9).contains(took)).unwrap_or(0.0),
        method: request.method,
        url,
        headers,
        body,
        cut,
        status: if (100.0..1000.0).contains(&status) { status as u16 } else { 0 },
        location,
        kind: super::call::essence(&kind),
        answer,
        resource: row.resource.map(|resource| resource.to_ascii_lowercase()),
    }))
}

fn pairs(rows: Vec<Pair>) -> Vec<(String, String)> {
    rows.into_iter().map(|pair| (pair.name, pair.value.unwrap_or_default())).collect()
}

/// Returns the request's body with its type, and whether the recording lacks files of it.
fn body(post: Option<Post>, headers: &[(String, String)]) -> (Option<RequestBody>, bool) {
    let Some(post) = post else { return (None, false) };
    // The header has the boundary of a multipart body, which some browsers leave out of `mimeType`.
    let kind = find(headers, "Content-Type").map(str::to_owned).or(post.kind);
    let text = post.text.filter(|text| !text.is_empty()).map(|text| match post.encoding.as_deref() {
        Some("base64") => BASE64_STANDARD.decode(&text).unwrap_or(text.into_bytes()),
        _ => text.into_bytes(),
    });
    if let Some(text) = text {
        return (Some((text, kind)), false);
    }
    let params = post.params.unwrap_or_default();
    if params.is_empty() {
        return (None, false);
    }
    let essence = kind.as_deref().map(super::call::essence);
    if essence.as_deref() == Some("multipart/form-data") {
        let cut = params.iter().any(|parameter| parameter.file.is_some());
        let mut text = String::new();
        for parameter in &params {
            let file = parameter.file.as_ref().map(|file| format!("; filename=\"{}\"", file.replace('"', "%22")));
            text += &format!(
                "--oroshi\r\nContent-Disposition: form-data; name=\"{}\"{}\r\n\r\n{}\r\n",
                parameter.name.replace('"', "%22"),
                file.unwrap_or_default(),
                parameter.value.as_deref().unwrap_or_default()
            );
        }
        text += "--oroshi--\r\n";
        return (Some((text.into_bytes(), Some("multipart/form-data; boundary=oroshi".into()))), cut);
    }
    let mut form = url::form_urlencoded::Serializer::new(String::new());
    for parameter in &params {
        // Chromium leaves parameters encoded, others decode them.
        let decode = |text: &str| {
            oroshi_words::query::pairs(&format!("{text}=")).next().and_then(Result::ok).map(|pair| pair.0.into_owned())
        };
        let value = parameter.value.as_deref().unwrap_or_default();
        let decoded = if value.contains('%') { decode(value) } else { None };
        form.append_pair(&parameter.name, decoded.as_deref().unwrap_or(value));
    }
    (Some((form.finish().into_bytes(), kind)), false)
}

/// Reads `2026-05-21T10:15:00.123+02:00` as milliseconds since 1970 (RFC 3339).
fn unix_ms(text: &str) -> Option<f64> {
    let text = text.trim();
    let (date, rest) = text.split_at_checked(10)?;
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let zone_at = rest.find(['Z', 'z', '+', '-']).unwrap_or(rest.len());
    let (time, zone) = rest.split_at(zone_at);
    let numbers = |text: &str, by: char| {
        let digits = |part: &str| {
            (!part.is_empty() && part.len() <= 4 && part.bytes().all(|b| b.is_ascii_digit()))
                .then(|| part.parse::<i64>().ok())?
        };
        text.split(by).map(digits).collect::<Option<Vec<_>>>()
    };
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let ([year, month, day], [hour, minute, second]) =
        (numbers(date, '-')?[..].try_into().ok()?, numbers(clock, ':')?[..].try_into().ok()?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    if fraction.is_empty() || fraction.len() > 12 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let fraction: f64 = format!("0.{fraction}").parse().ok()?;
    let offset = match zone {
        "" | "Z" | "z" => 0,
        _ => {
            let [hours, minutes]: [i64; 2] = match numbers(&zone[1..], ':')?[..] {
                [together] if zone.len() == 5 => [together / 100, together % 100],
                [hours, minutes] => [hours, minutes],
                _ => return None,
            };
            (hours * 60 + minutes) * if zone.starts_with('-') { -60 } else { 60 }
        }
    };
    let days = oroshi_words::date::days_since_1970(year, month, day);
    Some(((days * 86_400 + hour * 3600 + minute * 60 + second - offset) as f64 + fraction) * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_browsers_are_read() {
        let second = 1_779_358_500_000.0;
        for (text, expected) in [
            ("2026-05-21T10:15:00.125Z", second + 125.0),
            ("2026-05-21T12:15:00.125+02:00", second + 125.0),
            ("2026-05-21T05:45:00-04:30", second),
            ("2026-05-21T12:15:00+0200", second),
            ("1970-01-01T00:00:00Z", 0.0),
            ("2000-02-29T00:00:00.5Z", 951_782_400_500.0),
        ] {
            assert_eq!(unix_ms(text), Some(expected), "{text}");
        }
        for text in [
            "",
            "2026-05-21",
            "2026-13-21T10:15:00Z",
            "2026-05-21T10:15Z",
            "2026-05-21T10:15:00.Z",
            "2026-05-21T10:15:00+é",
        ] {
            assert_eq!(unix_ms(text), None, "{text}");
        }
    }

    #[test]
    fn mistakes_name_the_line_or_the_entry() {
        let said = |text: &str| read(text).unwrap_err().to_string();
        assert_eq!(
            said("{\n  \"log\": 7}"),
            "line 2, column 10: invalid type: integer `7`, expected struct Log; expected a HAR 1.2 recording, as browsers save it"
        );
        assert!(said("").starts_with("line 1, column 0: EOF"), "{}", said(""));
        assert!(said("{}").contains("missing field `log`"));
        let entry = |request: &str, more: &str| {
            said(&format!(
                r#"{{"log":{{"entries":[{{"request":{{"method":"GET","url":"data:,"}}}},{{"request":{request}{more}}}]}}}}"#
            ))
        };
        let names = [r#"{"name":"a"}"#; 201].join(",");
        let many = format!(r#"{{"method":"GET","url":"http://a/","headers":[{names}]}}"#);
        assert_eq!(entry(&many, ""), "entry 2: request.headers has 201 headers: expected at most 200");
        let good = r#"{"method":"GET","url":"http://a/"}"#;
        assert_eq!(
            entry(r#"{"method":"GET","url":"/a"}"#, ""),
            "entry 2: request.url is `/a`: relative URL without a base; expected an absolute URL"
        );
        assert_eq!(
            entry(r#"{"method":"G T","url":"http://a/"}"#, ""),
            "entry 2: request.method is `G T`: expected one such as GET"
        );
        assert_eq!(
            entry(good, r#","startedDateTime":"now""#),
            "entry 2: startedDateTime is `now`: expected a time such as 2026-05-21T10:15:00.123Z"
        );
    }
}
