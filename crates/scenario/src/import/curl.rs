//! curl's command lines: what their flags make of a request.

mod flags;

use std::borrow::Cow;
use std::io;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use url::Url;

use self::flags::{Does, long, short, takes_value};
use super::call::{Body, Call, Part};
use super::script::Script;
use super::shell::{self, Line};
use super::{FILE_BYTES, ImportError, MOST_HEADERS, MOST_REQUESTS, Options, flow};

/// Reads a file that a command names.
pub type Files<'f> = &'f dyn Fn(&str) -> io::Result<Vec<u8>>;

/// Command lines, as they came.
#[derive(Clone, Copy, Debug)]
pub enum Commands<'t> {
    /// Text with any number of commands, as a shell reads it.
    Text(&'t str),
    /// The words of a command that a shell has read. Another word `curl` begins another command.
    Words(&'t [String]),
}

/// Plans the script of commands.
///
/// # Errors
/// A command is not understood, or a file that it names cannot be read.
pub(super) fn plan(commands: Commands<'_>, options: &Options, files: Files<'_>) -> Result<Script, ImportError> {
    let lines = match commands {
        Commands::Text(text) if text.len() > FILE_BYTES => {
            let (got, most) = (format!("{} bytes", text.len()), format!("{FILE_BYTES} bytes"));
            return Err(ImportError::TooLarge { what: "text of commands", got, most });
        }
        Commands::Text(text) => {
            let lines = shell::split(text.trim_start_matches('\u{feff}'))?;
            lines.into_iter().map(|line| (Some(line.number), line)).collect::<Vec<_>>()
        }
        Commands::Words(words) => {
            let (mut lines, mut rest) = (Vec::new(), words);
            while let [_, ..] = rest {
                let end = rest.iter().skip(1).position(|word| word == "curl").map_or(rest.len(), |at| at + 1);
                lines.push((None, Line { number: 1, words: rest[..end].to_vec() }));
                rest = &rest[end..];
            }
            lines
        }
    };
    let mut calls = Vec::new();
    let mut flags: Vec<String> = Vec::new();
    for (number, line) in lines {
        let mut reader = Command { files, flags: &mut flags, calls: &mut calls, request: Request::default() };
        reader.read(&line.words).map_err(|what| ImportError::Command { line: number, what })?;
    }
    let Some(first) = calls.first() else {
        return Err(ImportError::Nothing(
            "there is no command: expected one such as curl 'http://localhost:8080/'".into(),
        ));
    };
    let mut script = Script::new(flow::origin(&first.url));
    script.calls = calls;
    script.about.push("The commands say no status: add expect = 200, or a check, where a response matters.".into());
    if !flags.is_empty() {
        script.about.push(format!("Add to the command: {}.", flags.join(" ")));
    }
    if options.assets == super::Assets::Page {
        script
            .about
            .push("To load a page's files too: local page = user:html(user:get(...)), then user:assets(page).".into());
    }
    Ok(script)
}

/// A request in progress.
#[derive(Default)]
struct Request {
    method: Option<String>,
    urls: Vec<String>,
    headers: Vec<(String, String)>,
    removed: Vec<String>,
    data: Option<Vec<u8>>,
    is_json: bool,
    get: bool,
    head: bool,
    follow: bool,
    most_redirects: Option<u32>,
    timeout: Option<f64>,
    parts: Vec<Part>,
    cookies: Vec<(String, String)>,
    query: Vec<String>,
    user: Option<String>,
}

struct Command<'a> {
    files: Files<'a>,
    flags: &'a mut Vec<String>,
    calls: &'a mut Vec<Call>,
    request: Request,
}

impl Command<'_> {
    fn read(&mut self, words: &[String]) -> Result<(), String> {
        let [program, rest @ ..] = words else { return Ok(()) };
        if program != "curl" && !program.ends_with("/curl") && program != "curl.exe" {
            return Err(format!(
                "`{}` is no curl command: expected `curl URL ...`; quote a URL that has & in it",
                shown(program)
            ));
        }
        let mut rest = rest.iter();
        while let Some(word) = rest.next() {
            if word == "--" {
                for url in rest.by_ref() {
                    self.request.urls.push(url.clone());
                }
            } else if let Some(name) = word.strip_prefix("--") {
                let (does, is_off) = long(name)?;
                let value = if takes_value(does) { Some(value_of(&mut rest, word)?) } else { None };
                if !is_off {
                    self.set(does, word, value.unwrap_or_default())?;
                }
            } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
                for (at, letter) in letters.char_indices() {
                    let flag = format!("-{letter}");
                    let does = short(letter)?;
                    if !takes_value(does) {
                        self.set(does, &flag, "")?;
                        continue;
                    }
                    let attached = &word[1 + at + letter.len_utf8()..];
                    let value = if attached.is_empty() { value_of(&mut rest, &flag)? } else { attached };
                    self.set(does, &flag, value)?;
                    break;
                }
            } else {
                self.request.urls.push(word.clone());
            }
        }
        self.finish()
    }

    fn set(&mut self, does: Does, flag: &str, value: &str) -> Result<(), String> {
        let request = &mut self.request;
        match does {
            Does::Method => request.method = Some(value.to_owned()),
            Does::Header => self.header(value)?,
            Does::Data | Does::DataBinary => {
                let bytes = match value.strip_prefix('@') {
                    Some(path) => {
                        let mut bytes = self.file(flag, path)?;
                        if does == Does::Data {
                            bytes.retain(|byte| !b"\r\n\0".contains(byte));
                        }
                        bytes
                    }
                    None => value.as_bytes().to_vec(),
                };
                self.add(b"&", &bytes);
            }
            Does::DataRaw => self.add(b"&", value.as_bytes()),
            Does::DataUrlencode => {
                let text = self.urlencoded(flag, value)?;
                self.add(b"&", text.as_bytes());
            }
            Does::Json => {
                request.is_json = true;
                let bytes = match value.strip_prefix('@') {
                    Some(path) => self.file(flag, path)?,
                    None => value.as_bytes().to_vec(),
                };
                self.add(b"", &bytes);
            }
            Does::Get => request.get = true,
            Does::Form | Does::FormString => {
                let part = self.part(flag, value, does == Does::FormString)?;
                self.request.parts.push(part);
            }
            Does::Cookie => self.cookies(flag, value)?,
            Does::User => request.user = Some(value.to_owned()),
            Does::Bearer => request.headers.push(("Authorization".into(), format!("Bearer {value}"))),
            Does::Agent => set(&mut request.headers, "User-Agent", value),
            Does::Referer => set(&mut request.headers, "Referer", value.split(";auto").next().unwrap_or_default()),
            Does::Follow => request.follow = true,
            Does::Head => request.head = true,
            Does::Url => request.urls.push(value.to_owned()),
            Does::UrlQuery => {
                let text = match value.strip_prefix('+') {
                    Some(raw) => raw.to_owned(),
                    None => self.urlencoded(flag, value)?,
                };
                self.request.query.push(text);
            }
            Does::MaxTime => {
                let seconds = value.parse::<f64>().ok().filter(|seconds| (0.0..1e6).contains(seconds));
                let seconds =
                    seconds.ok_or_else(|| format!("{flag} is `{}`: expected seconds such as 2.5", shown(value)))?;
                request.timeout = (seconds > 0.0).then_some(seconds);
            }
            Does::MaxRedirects => {
                let number =
                    value.parse::<i64>().map_err(|_| format!("{flag} is `{}`: expected a number", shown(value)))?;
                request.most_redirects = Some(u32::try_from(number).unwrap_or(100).min(100));
            }
            Does::Next => self.finish()?,
            Does::Nothing | Does::NothingWithValue => {}
            Does::Flag(ours) => self.note(ours.to_owned()),
            Does::FlagWithValue(ours) => self.note(format!("{ours} {}", shown(value))),
            Does::Refused(what) => return Err(format!("{flag}: {what}")),
        }
        Ok(())
    }

    fn note(&mut self, flag: String) {
        if !self.flags.contains(&flag) && self.flags.len() < 10 {
            self.flags.push(flag);
        }
    }

    fn file(&self, flag: &str, path: &str) -> Result<Vec<u8>, String> {
        if path == "-" {
            return Err(format!("{flag} reads standard input: expected a file, or the text itself"));
        }
        (self.files)(path).map_err(|why| format!("{flag}: {} cannot be read: {why}", shown(path)))
    }

    fn add(&mut self, between: &[u8], bytes: &[u8]) {
        match &mut self.request.data {
            Some(data) => {
                data.extend_from_slice(between);
                data.extend_from_slice(bytes);
            }
            None => self.request.data = Some(bytes.to_vec()),
        }
    }

    fn header(&mut self, text: &str) -> Result<(), String> {
        if self.request.headers.len() == MOST_HEADERS {
            return Err(format!("there are more than {MOST_HEADERS} headers: expected at most so many"));
        }
        if let Some(path) = text.strip_prefix('@') {
            return Err(format!("-H reads the file {}: write its headers as -H 'NAME: VALUE'", shown(path)));
        }
        let (name, value) = match (text.split_once(':'), text.strip_suffix(';')) {
            (Some((name, value)), _) => (name.trim(), value.trim()),
            (None, Some(name)) => {
                self.request.headers.push((name.trim().to_owned(), String::new()));
                return Ok(());
            }
            (None, None) => return Err(format!("-H is `{}`: expected 'NAME: VALUE'", shown(text))),
        };
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        // HTTP/2 has names that begin with a colon; browsers copy some of them.
        if name.is_empty() {
            return Ok(());
        }
        if !name.bytes().all(is_token) || value.contains(['\r', '\n', '\0']) {
            return Err(format!(
                "-H is `{}`: expected a name of letters, digits and dashes, and one line",
                shown(text)
            ));
        }
        if value.is_empty() {
            self.request.removed.push(name.to_ascii_lowercase());
        } else if name.eq_ignore_ascii_case("cookie") {
            self.cookies("-H Cookie", value)?;
        } else {
            self.request.headers.push((name.to_owned(), value.to_owned()));
        }
        Ok(())
    }

    fn cookies(&mut self, flag: &str, text: &str) -> Result<(), String> {
        if !text.contains('=') {
            return Err(format!("{flag} is the file {}: write its cookies as {flag} 'NAME=VALUE; ...'", shown(text)));
        }
        for pair in text.split(';').map(str::trim).filter(|pair| !pair.is_empty()) {
            if self.request.cookies.len() == MOST_HEADERS {
                return Err(format!("{flag} has more than {MOST_HEADERS} cookies: expected at most so many"));
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            set(&mut self.request.cookies, name.trim(), value.trim());
        }
        Ok(())
    }

    /// Encodes what `--data-urlencode` takes: `text`, `=text`, `name=text`, `@file`, `name@file`.
    fn urlencoded(&self, flag: &str, value: &str) -> Result<String, String> {
        let (name, content) = match value.find(['=', '@']) {
            Some(at) if value[at..].starts_with('@') => {
                let bytes = self.file(flag, &value[at + 1..])?;
                let text =
                    String::from_utf8(bytes).map_err(|_| format!("{flag}: the file is not UTF-8: expected text"))?;
                (&value[..at], text)
            }
            Some(at) => (&value[..at], value[at + 1..].to_owned()),
            None => ("", value.to_owned()),
        };
        let encoded: String = url::form_urlencoded::byte_serialize(content.as_bytes()).collect();
        Ok(if name.is_empty() { encoded } else { format!("{name}={encoded}") })
    }

    fn part(&self, flag: &str, text: &str, is_literal: bool) -> Result<Part, String> {
        let wrong = || format!("{flag} is `{}`: expected NAME=VALUE or NAME=@FILE", shown(text));
        let (name, value) = text.split_once('=').ok_or_else(wrong)?;
        let mut part = Part { name: name.to_owned(), filename: None, kind: None, body: Vec::new() };
        if is_literal {
            part.body = value.as_bytes().to_vec();
            return Ok(part);
        }
        let quoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let (value, parameters) = match quoted {
            Some(value) => (value, ""),
            None => value.split_once(";").filter(|(_, rest)| rest.contains('=')).unwrap_or((value, "")),
        };
        for parameter in parameters.split(';').filter(|parameter| !parameter.trim().is_empty()) {
            let (name, value) = parameter.split_once('=').ok_or_else(wrong)?;
            let value = value.trim_matches('"').to_owned();
            match name.trim() {
                "type" => part.kind = Some(value),
                "filename" => part.filename = Some(value),
                other => return Err(format!("{flag}: `{}` is unknown: expected type or filename", shown(other))),
            }
        }
        let path = value.strip_prefix(['@', '<']);
        part.body = match path {
            Some(path) => self.file(flag, path.trim_matches('"'))?,
            None => value.as_bytes().to_vec(),
        };
        if value.starts_with('@') {
            let name = path.unwrap_or_default().trim_matches('"').rsplit('/').next().unwrap_or_default();
            part.filename.get_or_insert(name.to_owned());
        }
        Ok(part)
    }

    /// Ends a request: at the end of the command, or at `--next`.
    fn finish(&mut self) -> Result<(), String> {
        let request = std::mem::take(&mut self.request);
        if request.urls.is_empty() {
            return Err("the command has no URL: expected one such as http://localhost:8080/".to_owned());
        }
        for text in &request.urls {
            if self.calls.len() == MOST_REQUESTS {
                return Err(format!("there are more than {MOST_REQUESTS} requests: expected at most so many"));
            }
            self.calls.push(request.call(text)?);
        }
        Ok(())
    }
}

impl Request {
    fn call(&self, text: &str) -> Result<Call, String> {
        const CLIENT: [&str; 6] = [
            "host",
            "content-length",
            "connection",
            "accept-encoding",
            "transfer-encoding",
            "upgrade-insecure-requests",
        ];
        let written = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let mut url = Url::parse(&written).map_err(|why| format!("the URL is `{}`: {why}", shown(text)))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("the URL is `{}`: expected http://... or https://...", shown(text)));
        }
        let mut user = self.user.clone();
        if !url.username().is_empty() {
            let decode = |text: &str| oroshi_words::query::segment(text).map_or(text.to_owned(), Cow::into_owned);
            user = Some(format!("{}:{}", decode(url.username()), decode(url.password().unwrap_or_default())));
        }
        let _ = (url.set_username(""), url.set_password(None));
        url.set_fragment(None);
        let mut query: Vec<String> =
            url.query().filter(|query| !query.is_empty()).map(str::to_owned).into_iter().collect();
        query.extend(self.query.iter().cloned());
        let is_form = !self.parts.is_empty();
        if is_form && self.data.is_some() {
            return Err("-F and -d are both the body: expected one of them".to_owned());
        }
        if self.get
            && let Some(data) = &self.data
        {
            query.push(
                String::from_utf8(data.clone()).map_err(|_| "the data of -G is not UTF-8: expected text".to_owned())?,
            );
        }
        url.set_query(Some(query.join("&")).filter(|query| !query.is_empty()).as_deref());
        let has_body = !self.get && self.data.is_some() || is_form;
        let method = match &self.method {
            Some(method) => method.clone(),
            None if self.head => "HEAD".into(),
            None if has_body => "POST".into(),
            None => "GET".into(),
        };
        if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
            return Err(format!("-X is `{}`: expected a method such as PUT", shown(&method)));
        }
        let mut call = Call::new(method, url);
        let given = self.headers.iter().filter(|(name, value)| {
            let name = name.to_ascii_lowercase();
            // A host of its own names the virtual server at an address.
            let is_own = name == "host" && call.url.host_str() != Some(value.split(':').next().unwrap_or_default());
            let is_clients = CLIENT.contains(&&*name) && !is_own || name == "accept" && value == "*/*";
            !is_clients && !name.starts_with("sec-")
        });
        call.headers = given.cloned().collect();
        let lacks = |name: &str| call.header(name).is_none() && !self.removed.iter().any(|removed| removed == name);
        if let Some(user) = user.filter(|_| lacks("authorization")) {
            let pair = if user.contains(':') { user } else { format!("{user}:") };
            call.headers.push(("Authorization".into(), format!("Basic {}", BASE64_STANDARD.encode(pair))));
        }
        if self.is_json && call.header("accept").is_none() {
            call.headers.push(("Accept".into(), "application/json".into()));
        }
        if is_form {
            call.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("content-type"));
            call.body = multipart(&self.parts)?;
        } else if has_body {
            let implied = if self.is_json { "application/json" } else { "application/x-www-form-urlencoded" };
            let kind = call.header("content-type").unwrap_or(implied).to_owned();
            call.set_body(self.data.clone().unwrap_or_default(), Some(&kind));
        }
        call.redirects = match (self.follow, self.most_redirects) {
            (false, _) => Some(0),
            (true, most) => most,
        };
        call.timeout = self.timeout;
        call.cookies = self.cookies.clone();
        Ok(call)
    }
}

/// Makes parts a body.
fn multipart(parts: &[Part]) -> Result<Body, String> {
    for (index, part) in parts.iter().enumerate() {
        if parts[..index].iter().any(|known| known.name == part.name) {
            let name = shown(&part.name);
            return Err(format!(
                "-F has several parts `{name}`, and `multipart` of a script has one of a name: rename one"
            ));
        }
    }
    let copy = |part: &Part| Part {
        name: part.name.clone(),
        filename: part.filename.clone(),
        kind: part.kind.clone(),
        body: part.body.clone(),
    };
    Ok(Body::Multipart(parts.iter().map(copy).collect()))
}

fn set(fields: &mut Vec<(String, String)>, name: &str, value: &str) {
    fields.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
    fields.push((name.to_owned(), value.to_owned()));
}

fn value_of<'w>(rest: &mut std::slice::Iter<'w, String>, flag: &str) -> Result<&'w str, String> {
    rest.next().map(String::as_str).ok_or_else(|| format!("{flag} ends the command: expected its value"))
}

/// Words for a message, bounded.
fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(80).map(|char| if char.is_control() { ' ' } else { char }).collect();
    if text.chars().nth(80).is_some() {
        short.push_str("...");
    }
    short
}
