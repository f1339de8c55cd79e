//! Turns a file into an experiment: reads everything, reports every mistake at once, and fills in defaults.

use std::path::Path;
use std::time::Duration;

use oroshi_config::document::did_you_mean;
use oroshi_config::toml::{self, BrokenLines};
use oroshi_config::{Field, Mistakes, Node, Table};
use oroshi_lab::Metric;
use oroshi_lab::plan::{Cell, Experiment, Load, Ready, Sweep, Variant};
use oroshi_lab::result::Skipped;
use oroshi_lab::template::Values;
use oroshi_net::Endpoint;
use oroshi_words::{Mistake, nearest};

use crate::keys::LoadKeys;
use crate::load::{self, Keys};
use crate::machine::Machine;
use crate::network::{Machines, Process};
use crate::point::Point;
use crate::secrets::without_secrets;
use crate::server::{self, TextContext, requires, tried};
use crate::top::{self, Cpus};

/// An experiment's file.
#[derive(Clone, Copy, Debug)]
pub struct Source<'s> {
    /// The short name, as in the file's name.
    pub name: &'s str,
    /// The file's text.
    pub text: &'s str,
    /// The file's folder; `None`: the experiment is built in.
    pub folder: Option<&'s Path>,
}

/// Options from the command line.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// A quick run in under a minute: short runs, few blocks, servers started once.
    pub quick: bool,
    /// The only variants to run: names, groups, or GROUP/NAME. Empty: all.
    pub only: Vec<String>,
    /// The approximate maximum of its duration, which overrides the file.
    pub max_time: Option<Duration>,
    /// The seed for the order of the runs, which overrides the file.
    pub seed: Option<u64>,
    /// The command that runs it again.
    pub rerun: Vec<String>,
}

/// The result of reading a file.
#[derive(Clone, Debug)]
pub struct ParsedExperiment {
    /// The experiment, without a cell if every variant is skipped.
    pub experiment: Experiment,
    /// The shortest duration of a block, per cell.
    pub blocks: Vec<Duration>,
}

/// Why there is no experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExperimentError {
    /// Mistakes in the file.
    File(Vec<Mistake>),
    /// The mistake in `--only`.
    Only(String),
}

/// The least and the most blocks of a quick run.
const QUICK_BLOCKS: (usize, usize) = (5, 10);
/// The duration of a quick run, for all of it and for its least number of blocks.
const QUICK_TIME: Duration = Duration::from_secs(45);
const QUICK_RUNS: Duration = Duration::from_secs(30);
/// The shortest run, and the warm-up and pauses of each run.
const QUICK_RUN: Duration = Duration::from_millis(300);
const QUICK_STEP: Duration = Duration::from_millis(100);
const QUICK_REST: Duration = Duration::from_millis(150);

/// Reads a file. `keys` is the parser of a load's keys.
///
/// # Errors
/// All mistakes.
pub fn read(
    source: Source<'_>,
    options: &RunOptions,
    machine: &Machine,
    keys: &dyn LoadKeys,
) -> Result<ParsedExperiment, ExperimentError> {
    let document = Document::parse(source.text);
    let file = File::new(&document, source, machine, keys);
    let title = file.root.required("title", "what it is about, in a line").unwrap_or_default();
    let question = file.root.text("question").unwrap_or_default();
    let metrics = file.root.get("metrics").map(|value| top::metrics(&value));
    let mut rules = top::rules(&file.root);
    let points = Point::all(&document.root, file.sweep.as_ref());
    let mut parts = file.parts(&points, None);
    file.finish(&points);
    let is_sound = || document.is_sound() && points.iter().all(|point| point.mistakes.is_empty());
    if !parts.variants.is_empty() && is_sound() {
        unknown_only(&options.only, &parts)?;
    }
    parts.keep(&options.only);
    let open = parts.variants.iter().any(|variant| variant.load.open);
    let mut usual = if open { vec![Metric::P99, Metric::Cpu] } else { vec![Metric::Rps, Metric::Cpu] };
    let metrics = metrics.filter(|metrics| !metrics.is_empty());
    let scripted = parts.variants.iter().any(|variant| matches!(variant.load.load, Load::Script(..)));
    let score_if_any = metrics.is_none() && scripted;
    if scripted {
        usual.insert(0, Metric::Score);
    }
    let metrics = metrics.unwrap_or(usual);
    parts.variants.iter().for_each(|variant| variant.keys.must_tell(metrics[0]));
    // A requirement may be a command. An invalid file runs none, and a valid one runs only those of selected variants.
    if is_sound() {
        parts.look(machine);
    }
    if options.quick {
        let runs = parts.variants.iter().filter(|v| v.lacks.is_none()).count().max(1) * QUICK_BLOCKS.0;
        let longest = (QUICK_RUNS / runs as u32).saturating_sub(QUICK_REST).max(QUICK_RUN);
        // A round length, so that servers with latencies of some tenths of a second complete a whole number of
        // requests.
        let longest = longest - Duration::from_nanos((longest.as_nanos() % QUICK_STEP.as_nanos()) as u64);
        parts = file.parts(&points, Some(longest));
        parts.keep(&options.only);
        if is_sound() {
            parts.look(machine);
        }
        rules.min_blocks = rules.min_blocks.min(QUICK_BLOCKS.0);
        rules.max_blocks = rules.max_blocks.min(QUICK_BLOCKS.1).max(rules.min_blocks);
        rules.max_time = Some(rules.max_time.map_or(QUICK_TIME, |time| time.min(QUICK_TIME)));
        rules.blocks_per_start = None;
    }
    rules.max_time = options.max_time.or(rules.max_time);
    rules.seed = options.seed.unwrap_or(rules.seed);
    let (cells, blocks, skipped) = parts.cells();
    let experiment = Experiment {
        name: short(source.name),
        title,
        question,
        source: Some(without_secrets(source.text, &document.root)),
        rerun: options.rerun.clone(),
        quick: options.quick,
        metrics,
        score_if_any,
        rules,
        server_cpus: file.cpus.server.clone(),
        load_cpus: file.cpus.load.clone(),
        network: file.machines.network.clone(),
        sweep: file.sweep.clone(),
        cells,
        skipped,
    };
    drop(file);
    match document.mistakes(points) {
        mistakes if mistakes.is_empty() => Ok(ParsedExperiment { experiment, blocks }),
        mistakes => Err(ExperimentError::File(mistakes)),
    }
}

/// A file's tree, and the mistakes of keys that are read once.
struct Document {
    root: Node,
    broken: BrokenLines,
    found: Mistakes,
}

impl Document {
    fn parse(text: &str) -> Self {
        let (root, broken) = toml::parse_recoverable(text);
        Self { root, broken, found: Mistakes::typed() }
    }

    fn is_sound(&self) -> bool {
        self.broken.is_empty() && self.found.is_empty()
    }

    /// Returns all mistakes in the order of lines. Each key is read once per point, and reported for the first point at
    /// which it is wrong.
    fn mistakes(self, points: Vec<Point>) -> Vec<Mistake> {
        let mut all = self.found.into_vec();
        for point in points {
            let place = |mistake: &Mistake| (mistake.line, mistake.key.clone());
            let known: Vec<_> = all.iter().map(place).collect();
            all.extend(point.mistakes.into_vec().into_iter().filter(|mistake| !known.contains(&place(mistake))));
        }
        self.broken.and(all)
    }
}

/// Returns a name that is valid for a folder.
fn short(name: &str) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    name.chars().map(fit).collect()
}

/// The parts of a file that are read once for all points of the sweep.
struct File<'d> {
    root: Table<'d>,
    machine: &'d Machine,
    keys: &'d dyn LoadKeys,
    folder: Option<&'d Path>,
    cpus: Cpus,
    machines: Machines,
    always: Values,
    sweep: Option<Sweep>,
    sweep_name: Option<Field<'d>>,
}

/// The tables that are read once for each point of the sweep.
struct Tables<'d> {
    /// The index of the point in the sweep.
    at: Option<usize>,
    load: Option<Table<'d>>,
    /// The files in every server's folder.
    files: Option<Field<'d>>,
    servers: Vec<Table<'d>>,
    variants: Vec<Table<'d>>,
}

impl<'d> Tables<'d> {
    fn of(point: &'d Point, at: Option<usize>) -> Self {
        let root = Table::root(&point.root, &point.mistakes);
        let tables = |key| root.get(key).map(|value| value.tables()).unwrap_or_default();
        Self {
            at,
            load: root.table("load"),
            files: root.get("files"),
            servers: tables("server"),
            variants: tables("variant"),
        }
    }
}

impl<'d> File<'d> {
    fn new(document: &'d Document, source: Source<'d>, machine: &'d Machine, keys: &'d dyn LoadKeys) -> Self {
        let root = Table::root(&document.root, &document.found);
        let sweep_table = root.table("sweep");
        let (sweep, sweep_name) = match &sweep_table {
            Some(table) => (top::sweep(table), table.get("name")),
            None => (None, None),
        };
        let cpus = top::cpus(&root, machine);
        let mut always = Values::default();
        always.set("oroshi", "/oroshi");
        for (name, cpus) in [("cpus.server", &cpus.server), ("cpus.load", &cpus.load)] {
            if let Some(cpus) = cpus {
                always.set(name, cpus.to_string());
            }
        }
        let machines = Machines::read(&root);
        machines.provide(&mut always);
        // These are read at each point.
        let [_, _, _, is_missing] = ["load", "files", "server", "variant"].map(|key| root.get(key).is_none());
        if is_missing {
            root.wrong("there is no [[variant]]: expected at least one set-up to measure");
        }
        Self { machine, keys, folder: source.folder, cpus, machines, always, sweep, sweep_name, root }
    }

    /// Reads servers and variants at every point of the sweep. `longest`: the maximum duration of a run.
    fn parts<'p>(&self, points: &'p [Point], longest: Option<Duration>) -> Parts<'p> {
        let mut parts = Parts::default();
        for (at, point) in points.iter().enumerate() {
            let tables = Tables::of(point, self.sweep.is_some().then_some(at));
            let around = TextContext {
                machine: self.machine,
                folder: self.folder,
                always: &self.always,
                machines: &self.machines,
                point,
                keys: self.keys,
            };
            self.read(&tables, around, longest, &mut parts);
        }
        parts
    }

    fn read<'p>(&self, tables: &Tables<'p>, around: TextContext<'_>, longest: Option<Duration>, parts: &mut Parts<'p>) {
        let first = parts.servers.len();
        for table in &tables.servers {
            let name = name(table);
            let requires = requires(table);
            let described = server::describe(table, tables.files.as_ref(), &name, around);
            if described.is_none() {
                table.wrong("`start` is missing: expected the command that starts the server");
            }
            table.finish_with(|key| (key == "url" || key == "load").then(|| "it belongs into a [[variant]]".into()));
            if parts.servers[first..].iter().any(|server| server.server.name == name) {
                table.wrong(format!("there is another [[server]] named `{name}`: give each its own name"));
            }
            // An invalid server still exists, so its variants are not reported.
            let mut described = described.unwrap_or_else(|| server::DescribedServer::unknown(&name));
            described.requires = requires;
            parts.servers.push(described);
        }
        for table in &tables.variants {
            self.variant(table, tables, first, around, longest, parts);
        }
    }

    /// Reads a variant. `first`: the index of this point's first server.
    fn variant<'p>(
        &self,
        table: &Table<'p>,
        Tables { at: point, load: shared_load, files: shared_files, .. }: &Tables<'p>,
        first: usize,
        around: TextContext<'_>,
        longest: Option<Duration>,
        parts: &mut Parts<'p>,
    ) {
        let point = *point;
        let name = name(table);
        let group = table.text("group").unwrap_or_default();
        let full_name = if group.is_empty() { name.clone() } else { format!("{group} / {name}") };
        let requires = requires(table);
        let shared = table.get("server");
        let inline = server::describe(table, shared_files.as_ref(), &full_name, around);
        let server = server_of(shared.as_ref(), inline, first, parts);
        // An invalid server has been reported already.
        let names = match server {
            Some(index) => parts.servers[index].names.clone(),
            None if shared.is_some() => None,
            None => {
                self.machines.check_external(table);
                Some(self.always.clone())
            }
        };
        let url = table.get("url");
        if url.is_none() {
            table.wrong("`url` is missing: expected where requests go, as in \"http://127.0.0.1:{{port}}/\"");
        }
        let urls = url.as_ref().and_then(Field::texts).unwrap_or_default();
        let endpoints = url.as_ref().zip(names.as_ref()).map(|(value, names)| endpoints(value, &urls, names));
        let own = table.table("load");
        let keys = Keys::merge(shared_load.as_ref(), own.as_ref(), self.keys);
        let machine = self.machines.of(Process::Load, keys.machine());
        let server_machine = server.and_then(|index| parts.servers[index].server.machine);
        if let Some(names) = &names {
            let urls = url.iter().chain(keys.urls());
            urls.for_each(|url| self.machines.check_url(url, names, server_machine, machine));
        }
        keys.agents().into_iter().for_each(|agents| self.machines.check_agents(agents));
        table.finish_with(|key| self.is_of_load(key).then(|| format!("it belongs into the load: load.{key}")));
        if parts.variants.iter().any(|v| (v.point, &v.group, &v.name) == (point, &group, &name)) {
            table.wrong(format!("there is another variant named `{full_name}`: give each its own name, or group"));
        }
        let Some(mut load) = keys.read(table, &endpoints.unwrap_or_default(), names.as_ref(), around, longest) else {
            return;
        };
        load.words += &self.machines.elsewhere(machine);
        let same_cell = |v: &&Candidate<'_>| v.point == point && v.group == group;
        if let Some(other) = parts.variants.iter().find(same_cell)
            && other.load.share != load.share
        {
            let name = &other.name;
            table.wrong(format!(
                "its rate is another share than that of `{name}`: latency is compared at the same rate"
            ));
        }
        let lacks = None;
        parts.variants.push(Candidate {
            point,
            group,
            name,
            full_name,
            server,
            urls,
            load,
            keys,
            requires,
            lacks,
            machine,
        });
    }

    /// Whether a load may have this key.
    fn is_of_load(&self, key: &str) -> bool {
        self.keys.form(key).is_some()
    }

    /// Reports mistakes of the file as a whole.
    fn finish(&self, points: &[Point]) {
        let elsewhere = |key: &str| match key {
            _ if self.is_of_load(key) => Some("it belongs into [load]".to_owned()),
            "start" | "url" | "ready" | "stop" | "machine" => {
                Some("it belongs into a [[server]] or a [[variant]]".to_owned())
            }
            _ => None,
        };
        self.root.finish_with(elsewhere);
        if let (Some(name), Some(sweep)) = (&self.sweep_name, &self.sweep)
            && !points.iter().any(Point::is_met)
        {
            let name_ = &sweep.name;
            name.wrong(format!(
                "`{{{{{name_}}}}}` stands nowhere: expected it where the value belongs, as in \
                                connections = \"{{{{{name_}}}}}\""
            ));
        }
    }
}

/// The parts from which cells are made.
#[derive(Debug, Default)]
struct Parts<'d> {
    servers: Vec<server::DescribedServer>,
    variants: Vec<Candidate<'d>>,
}

/// A variant at one point of the sweep.
#[derive(Debug)]
struct Candidate<'d> {
    point: Option<usize>,
    group: String,
    name: String,
    full_name: String,
    server: Option<usize>,
    urls: Vec<String>,
    load: load::DescribedLoad,
    keys: Keys<'d>,
    requires: Vec<String>,
    /// The machine of the load.
    machine: Option<usize>,
    /// The missing requirement, set by [`look`](Parts::look).
    lacks: Option<String>,
}

impl Candidate<'_> {
    /// Whether a selection matches: by name, by group, or as `GROUP / NAME`.
    fn is_called(&self, wanted: &str) -> bool {
        let both = wanted.split_once('/').map(|(group, name)| (group.trim(), name.trim()));
        self.name == wanted || self.group == wanted || both == Some((&self.group, &self.name))
    }
}

impl Parts<'_> {
    /// Removes variants that were not selected.
    fn keep(&mut self, only: &[String]) {
        if !only.is_empty() {
            self.variants.retain(|variant| only.iter().any(|wanted| variant.is_called(wanted)));
        }
    }

    /// Finds missing requirements on this machine.
    fn look(&mut self, machine: &Machine) {
        for variant in &mut self.variants {
            let server = variant.server.map(|index| &self.servers[index]);
            let mut required = variant.requires.iter().chain(server.into_iter().flat_map(|server| &server.requires));
            variant.lacks = required
                .find_map(|requirement| machine.lacks(requirement))
                .or_else(|| server.and_then(|server| server.lacks.clone()))
                .or_else(|| variant.load.lacks.clone());
        }
    }

    /// Returns the cells, the duration of a block of each, and the skipped variants.
    fn cells(self) -> (Vec<Cell>, Vec<Duration>, Vec<Skipped>) {
        let (mut cells, mut blocks, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
        let mut places: Vec<(&str, Option<usize>)> = Vec::new();
        for variant in &self.variants {
            if let Some(why) = &variant.lacks {
                let this = Skipped { name: variant.full_name.clone(), why: why.clone() };
                if !skipped.contains(&this) {
                    skipped.push(this);
                }
            } else if !places.contains(&(&variant.group, variant.point)) {
                places.push((&variant.group, variant.point));
            }
        }
        // All points of a group, then the next group.
        let groups: Vec<&str> = places.iter().map(|place| place.0).collect();
        places.sort_by_key(|place| (groups.iter().position(|group| *group == place.0), place.1));
        for (group, point) in places {
            let members =
                || self.variants.iter().filter(move |v| v.group == group && v.point == point && v.lacks.is_none());
            cells.push(self.cell(group, point, members()));
            blocks.push(members().map(|variant| variant.load.run).sum());
        }
        (cells, blocks, skipped)
    }

    fn cell<'v>(&self, group: &str, point: Option<usize>, members: impl Iterator<Item = &'v Candidate<'v>>) -> Cell {
        let mut cell =
            Cell { group: group.to_owned(), point, servers: Vec::new(), variants: Vec::new(), rate_share: None };
        let mut known: Vec<usize> = Vec::new();
        for member in members {
            let server = member.server.map(|index| match known.iter().position(|known| *known == index) {
                Some(place) => place,
                None => {
                    known.push(index);
                    cell.servers.push(self.servers[index].server.clone());
                    known.len() - 1
                }
            });
            cell.rate_share = member.load.share;
            cell.variants.push(Variant {
                name: member.name.clone(),
                server,
                urls: member.urls.clone(),
                load: member.load.load.clone(),
                load_words: member.load.words.clone(),
                machine: member.machine,
                agents: member.load.agents.clone(),
            });
        }
        // By default a server is ready when all URLs of its variants answer.
        for (index, server) in cell.servers.iter_mut().enumerate() {
            if let Ready::Answers(urls) = &mut server.ready
                && urls.is_empty()
            {
                for url in cell.variants.iter().filter(|v| v.server == Some(index)).flat_map(asked) {
                    if !urls.contains(url) {
                        urls.push(url.clone());
                    }
                }
            }
        }
        cell
    }
}

/// Returns the index of a variant's server: the one that `shared` names, or the one that the variant describes.
/// `first`: the index of this point's first server.
fn server_of(
    shared: Option<&Field<'_>>,
    inline: Option<server::DescribedServer>,
    first: usize,
    parts: &mut Parts<'_>,
) -> Option<usize> {
    match (shared, inline) {
        (Some(value), Some(_)) => {
            value.wrong("a server is named, and one is described: leave one out");
            None
        }
        (Some(value), None) => value.text().and_then(|wanted| {
            let servers = &parts.servers[first..];
            let found = servers.iter().position(|server| server.server.name == wanted);
            if found.is_none() {
                let near = nearest(wanted, servers.iter().map(|server| server.server.name.as_str()));
                let near = near.map(|near| format!("did you mean `{near}`?"));
                let hint = near.unwrap_or_else(|| "describe it in a [[server]]".into());
                value.wrong(format!("there is no [[server]] named `{wanted}`: {hint}"));
            }
            found.map(|index| first + index)
        }),
        (None, Some(described)) => {
            parts.servers.push(described);
            Some(parts.servers.len() - 1)
        }
        (None, None) => None,
    }
}

/// Returns the URLs by which a variant's server proves that it is ready. A URL for subscriptions need not answer before
/// the first message; a URL for messages answers at once.
fn asked(variant: &Variant) -> &[String] {
    match &variant.load {
        Load::Subscribe(load) => load.publish.as_ref().map_or(&variant.urls, std::slice::from_ref),
        _ => &variant.urls,
    }
}

/// Reports a selected name that matches nothing.
fn unknown_only(only: &[String], parts: &Parts<'_>) -> Result<(), ExperimentError> {
    let unknown = only.iter().find(|wanted| !parts.variants.iter().any(|variant| variant.is_called(wanted)));
    let Some(wanted) = unknown else { return Ok(()) };
    let mut names: Vec<&str> = Vec::new();
    for variant in &parts.variants {
        for name in [&variant.name, &variant.group, &variant.full_name] {
            if !name.is_empty() && !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
    }
    let hint = did_you_mean(wanted, &names);
    Err(ExperimentError::Only(format!("--only: no variant and no group is called `{wanted}`: {hint}")))
}

fn name(table: &Table<'_>) -> String {
    let name = table.required("name", "a name for it").unwrap_or_default();
    if let (true, Some(value)) = (name.trim().is_empty() || name.contains(char::is_control), table.get("name")) {
        value.wrong("expected a name of letters that can be seen");
    }
    name
}

/// Returns the URLs with sample values in place of the names.
fn endpoints(value: &Field<'_>, urls: &[String], names: &Values) -> Vec<Endpoint> {
    if urls.is_empty() {
        value.wrong("there is no URL here: expected at least one");
    }
    let endpoint = |url: &String| {
        let filled = tried(value, url, names)?;
        let found = filled.parse::<Endpoint>();
        found.map_err(|error| value.wrong(error.to_string().replace(&filled, url))).ok()
    };
    let found: Vec<Endpoint> = urls.iter().filter_map(endpoint).collect();
    // If one is missing, nothing can be said about all.
    if found.len() == urls.len() { found } else { Vec::new() }
}
