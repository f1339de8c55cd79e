//! A server's keys: those of a `[[server]]`, and of a `[[variant]]` with its own server.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use oroshi_config::{Field, Table};
use oroshi_lab::plan::{Ready, Server, Stop};
use oroshi_lab::template::{self, Values};
use oroshi_words::{nearest, units};
use regex_lite::Regex;

use crate::keys::LoadKeys;
use crate::machine::{Machine, Program};
use crate::network::{Machines, Process};
use crate::point::Point;
use crate::rules;

/// The context for reading texts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextContext<'s> {
    pub(crate) machine: &'s Machine,
    /// The base of relative paths: the file's folder. `None`: the experiment is built in.
    pub(crate) folder: Option<&'s Path>,
    /// Names with the same value in every text, for checking texts: `oroshi`, CPUs.
    pub(crate) always: &'s Values,
    /// The current point of the sweep.
    pub(crate) point: &'s Point,
    /// The machines that processes may run on.
    pub(crate) machines: &'s Machines,
    /// The parser of a load's keys.
    pub(crate) keys: &'s dyn LoadKeys,
}

/// A server as described in the file.
#[derive(Clone, Debug)]
pub(crate) struct DescribedServer {
    /// The server. Without a [`Ready::Answers`] of its own, the variants' URLs are added later.
    pub(crate) server: Server,
    /// Why it cannot start here.
    pub(crate) lacks: Option<String>,
    /// Other requirements.
    pub(crate) requires: Vec<String>,
    /// Names that URLs may use, each with a sample value; `None`: its listeners are invalid.
    pub(crate) names: Option<Values>,
}

impl DescribedServer {
    /// Returns a server of which only the name is known.
    pub(crate) fn unknown(name: &str) -> Self {
        Self { server: Server::new(name, Vec::new(), Vec::new()), lacks: None, requires: Vec::new(), names: None }
    }
}

/// The keys that describe a server.
const KEYS: [&str; 11] = [
    "start",
    "machine",
    "env",
    "folder",
    "files",
    "setup",
    "teardown",
    "ready",
    "ready-timeout",
    "stop",
    "stop-timeout",
];

/// Reads the server's keys of a table; `None` if it has none. `shared`: files that all servers have, unless they have
/// their own.
pub(crate) fn describe<'d>(
    table: &Table<'d>,
    shared: Option<&Field<'d>>,
    name: &str,
    around: TextContext<'_>,
) -> Option<DescribedServer> {
    let given: Vec<_> = KEYS.iter().filter_map(|key| table.get(key)).collect();
    if given.is_empty() {
        return None;
    }
    let start = match table.get("start") {
        Some(start) => words(&start).unwrap_or_default(),
        None => {
            table.wrong("`start` is missing: expected the command that starts the server");
            Vec::new()
        }
    };
    let mut texts = Templates::default();
    if let Some(value) = table.get("start") {
        texts.add(&value, &start);
    }
    let env = table.get("env").map(|value| variables(&value, &mut texts)).unwrap_or_default();
    let mut written = Vec::new();
    for value in table.get("files").iter().chain(shared) {
        files(value, around, &mut texts, &mut written);
    }
    let setup = table.get("setup").map(|value| commands(&value, &mut texts)).unwrap_or_default();
    let teardown = table.get("teardown").map(|value| commands(&value, &mut texts)).unwrap_or_default();
    let names = texts.names(around);
    // Collected before `ready`: the server does not listen at a port or socket that only `ready` names.
    let ready = table.get("ready").and_then(|value| ready(&value, &mut texts));
    texts.check(&names);
    let names = (!start.is_empty()).then_some(names);
    let mut server = Server {
        machine: around.machines.of(Process::Server, table.get("machine").as_ref()),
        env,
        folder: table.get("folder").and_then(|value| folder(&value, around)),
        files: written,
        setup,
        teardown,
        stop: table.read("stop", read_stop).unwrap_or_default(),
        ..Server::new(name, start, Vec::new())
    };
    server.ready = ready.unwrap_or(server.ready);
    let time = |key, usual| table.get(key).and_then(|value| timeout(&value)).unwrap_or(usual);
    server.ready_timeout = time("ready-timeout", server.ready_timeout);
    server.stop_timeout = time("stop-timeout", server.stop_timeout);
    let lacks = find_program(&mut server.start, &server.env, around.machine);
    Some(DescribedServer { server, lacks, requires: requires(table), names })
}

/// Returns the requirements of a table.
pub(crate) fn requires(table: &Table<'_>) -> Vec<String> {
    table.texts("requires")
}

/// Returns why a command's program was not found, with these variables. Replaces the name by the path if the program is
/// outside the search path.
pub(crate) fn find_program(words: &mut [String], env: &[(String, String)], machine: &Machine) -> Option<String> {
    let program = words.first_mut().filter(|program| !program.contains('/') && !program.contains("{{"))?;
    let path = env.iter().rev().find(|variable| variable.0 == "PATH").map(|variable| variable.1.as_str());
    match machine.program(program, path) {
        Program::InPath => None,
        Program::At(path) => {
            *program = path.to_string_lossy().into_owned();
            None
        }
        Program::Missing => Some(format!("{program} is not installed")),
    }
}

/// Reads a command: a text, split like a shell, or its words.
pub(crate) fn words(value: &Field<'_>) -> Option<Vec<String>> {
    let words = if value.is_list() { value.texts()? } else { value.read(rules::words)? };
    if words.first().is_none_or(|program| program.trim().is_empty()) {
        value.wrong("the command is empty: expected a program and its arguments");
        return None;
    }
    Some(words)
}

/// Returns a command for people: quoted where a shell needs it, except for braces.
pub(crate) fn shown(words: &[String]) -> String {
    let quoted = |word: &String| match shell_words::quote(&word.replace(['{', '}'], "")) {
        plain if plain.starts_with('\'') => shell_words::quote(word).into_owned(),
        _ => word.clone(),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Reads the environment variables of a process.
pub(crate) fn variables<'d>(value: &Field<'d>, texts: &mut Templates<'d>) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    for (name, value) in value.table().iter().flat_map(Table::fields) {
        if name.is_empty() || name.contains(['=', '\0']) {
            value.wrong(format!("`{name}` is no name of a variable"));
        } else if let Some(text) = value.text().map(str::to_owned) {
            texts.add(&value, [&text]);
            variables.push((name.to_owned(), text));
        }
    }
    variables
}

/// Reads one or several commands, each as a text or as words.
fn commands<'d>(value: &Field<'d>, texts: &mut Templates<'d>) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for command in value.each() {
        if let Some(words) = words(&command) {
            texts.add(&command, &words);
            found.push(words);
        }
    }
    found
}

/// Adds the files of a table that are not there yet.
fn files<'d>(value: &Field<'d>, around: TextContext<'_>, texts: &mut Templates<'d>, files: &mut Vec<(String, String)>) {
    let own = files.len();
    for (path, value) in value.table().iter().flat_map(Table::fields) {
        let inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
        if path.is_empty() || !inside {
            value.wrong(format!(
                "`{path}` leads out of the server's folder: expected a relative path, as in conf/app.conf"
            ));
        }
        if files[..own].iter().any(|(there, _)| *there == path) {
            continue;
        }
        let content = match value.is_table() {
            true => value.table().and_then(|table| template_file(&table, around)),
            false => value.text().map(str::to_owned),
        };
        if let Some(content) = content {
            texts.add(&value, [&content]);
            files.push((path.to_owned(), content));
        }
    }
}

fn template_file(table: &Table<'_>, around: TextContext<'_>) -> Option<String> {
    let value = table.get("template");
    table.finish();
    let Some(value) = value else {
        table.wrong("`template` is missing: expected the path of a file, or the content as a text");
        return None;
    };
    let path = beside(&value, around)?;
    match std::fs::read_to_string(&path) {
        Ok(text) => Some(around.point.fill(&text)),
        Err(error) => {
            value.wrong(format!("{} cannot be read: {error}", path.display()));
            None
        }
    }
}

/// Returns a path relative to the experiment's file.
pub(crate) fn beside(value: &Field<'_>, around: TextContext<'_>) -> Option<PathBuf> {
    let path = PathBuf::from(value.text()?);
    if path.is_relative() && around.folder.is_none() {
        value.wrong("a built-in experiment has no folder: expected an absolute path");
        return None;
    }
    Some(around.folder.map(|folder| folder.join(&path)).unwrap_or(path))
}

fn folder(value: &Field<'_>, around: TextContext<'_>) -> Option<PathBuf> {
    let path = beside(value, around)?;
    match path.canonicalize() {
        Ok(path) if path.is_dir() => Some(path),
        _ => {
            value.wrong(format!("{} is no folder: make it, or correct the path", path.display()));
            None
        }
    }
}

fn ready<'d>(value: &Field<'d>, texts: &mut Templates<'d>) -> Option<Ready> {
    if !value.is_table() {
        let urls = value.texts()?;
        texts.add(value, &urls);
        return Some(Ready::Answers(urls));
    }
    let table = value.table()?;
    let line = table.get("line");
    table.finish();
    if line.is_none() {
        table.wrong("`line` is missing: expected a regular expression for a line that the server writes");
    }
    line?.read(Regex::new).map(Ready::Line)
}

/// Reads a time that is not zero.
pub(crate) fn timeout(value: &Field<'_>) -> Option<Duration> {
    value.read(|text| match units::parse_time(text)? {
        Duration::ZERO => Err("it is 0: expected a time such as 10s".to_owned()),
        time => Ok(time),
    })
}

fn read_stop(text: &str) -> Result<Stop, String> {
    const SIGNALS: [(&str, Stop); 7] = [
        ("TERM", Stop::Term),
        ("INT", Stop::Int),
        ("QUIT", Stop::Quit),
        ("HUP", Stop::Hup),
        ("USR1", Stop::Usr1),
        ("USR2", Stop::Usr2),
        ("KILL", Stop::Kill),
    ];
    let upper = text.to_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    SIGNALS.iter().find(|signal| signal.0 == name).map(|signal| signal.1).ok_or_else(|| {
        let names = SIGNALS.map(|signal| signal.0);
        let near = nearest(name, names).map(|near| format!(" (did you mean {near}?)")).unwrap_or_default();
        format!("`{text}` is no signal that ends a server{near}: expected one of {}", names.join(", "))
    })
}

/// Texts with placeholders, collected for a check once all names are known.
#[derive(Debug, Default)]
pub(crate) struct Templates<'d>(Vec<(Field<'d>, String)>);

impl<'d> Templates<'d> {
    pub(crate) fn add<'a>(&mut self, value: &Field<'d>, texts: impl IntoIterator<Item = &'a String>) {
        self.0.extend(texts.into_iter().map(|text| (value.clone(), text.clone())));
    }

    /// Returns the names that a server with these texts knows: each port and socket in them is its own.
    fn names(&self, around: TextContext<'_>) -> Values {
        let mut values = around.always.clone();
        values.set("dir", "/dir");
        let names: BTreeSet<&str> =
            self.0.iter().flat_map(|text| template::names(&text.1).unwrap_or_default()).collect();
        for name in names.into_iter().filter(|name| template::is_place(name)) {
            values.set(name, if name.starts_with("port") { "1" } else { "/socket" });
        }
        values
    }

    /// Checks the texts.
    pub(crate) fn check(&self, names: &Values) {
        for (value, text) in &self.0 {
            tried(value, text, names);
        }
    }
}

/// Returns a text with sample values in place of the names; reports its mistakes.
pub(crate) fn tried(value: &Field<'_>, text: &str, names: &Values) -> Option<String> {
    template::fill(text, names).map_err(|error| value.wrong(error.to_string())).ok()
}
