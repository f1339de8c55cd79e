//! A load's keys: the long flags of `oroshi bench`, or a program and the figures in its output.

use std::sync::Arc;
use std::time::Duration;

use oroshi_bench::{Draft, Load as Rhythm, push};
use oroshi_config::{Field, Table};
use oroshi_lab::Metric;
use oroshi_lab::metric::Unit;
use oroshi_lab::plan::{AgentsLoad, Command, Figure, Load, Subscribe};
use oroshi_lab::template::{self, Values};
use oroshi_net::tls::Roots;
use oroshi_net::{ClientTlsOptions, Endpoint};
use oroshi_words::hidden;
use oroshi_words::units;
use regex_lite::Regex;

use crate::keys::{self, LoadKeys, LoadValues};
use crate::rules;
use crate::server::{Templates, TextContext, find_program, shown, timeout, variables, words};
use crate::words::{load_words, script_words, subscribe_words};

/// The assumed duration of a script's run, for estimates.
const SCRIPT_DURATION: Duration = Duration::from_secs(10);
/// The key that names the machine a load runs on.
const MACHINE: &str = "machine";
/// The warm-up of a quick run.
const QUICK_WARMUP: Duration = Duration::from_millis(100);
/// Keys of a load program, beside those that it shares with our own load.
const COMMAND_KEYS: [&str; 6] = ["command", "figures", "requests", "burst", "timeout", "env"];
/// Keys among them without a meaning for our own load.
const COMMAND_ONLY: [&str; 3] = ["figures", "burst", "env"];
/// Flags that a program may use as `{{connections}}` and `{{duration}}`; our own load uses them to warm the server up.
const SHARED_KEYS: [&str; 3] = ["connections", "duration", "warmup"];

/// A load as described in the file.
#[derive(Clone, Debug)]
pub(crate) struct DescribedLoad {
    pub(crate) load: Load,
    /// A description for reports.
    pub(crate) words: String,
    /// The rate, as a share of the slowest variant's capacity.
    pub(crate) share: Option<f64>,
    /// Whether it is an open loop.
    pub(crate) open: bool,
    /// The duration of a run with its warm-up, as far as known.
    pub(crate) run: Duration,
    /// The agents that carry it out.
    pub(crate) agents: Option<Arc<dyn AgentsLoad>>,
    /// Why it cannot run here.
    pub(crate) lacks: Option<String>,
}

/// A key of a load.
#[derive(Clone, Debug)]
pub(crate) struct Entry<'d> {
    pub(crate) key: String,
    pub(crate) value: Field<'d>,
    /// Whether the variant has it, rather than `[load]`.
    own: bool,
}

/// The keys of a variant's load.
#[derive(Debug)]
pub(crate) struct Keys<'d> {
    /// Those that describe the load itself.
    entries: Vec<Entry<'d>>,
    /// The machine that it runs on.
    machine: Option<Field<'d>>,
}

impl<'d> Keys<'d> {
    /// Merges shared keys with a variant's own. A variant's own key replaces a shared one, and shared keys that it
    /// excludes.
    pub(crate) fn merge(shared: Option<&Table<'d>>, own: Option<&Table<'d>>, keys: &dyn LoadKeys) -> Self {
        let entries = |table: Option<&Table<'d>>, own| {
            let fields = table.into_iter().flat_map(Table::fields);
            fields.map(|(key, value)| Entry { key: key.to_owned(), value, own }).collect::<Vec<_>>()
        };
        let (mut shared, mut own) = (entries(shared, false), entries(own, true));
        let machine = [&mut shared, &mut own].into_iter().filter_map(|entries| {
            let place = entries.iter().position(|entry| entry.key == MACHINE)?;
            Some(entries.remove(place).value)
        });
        let machine = machine.last();
        let has = |entries: &[Entry<'_>], keys: &[&str]| entries.iter().any(|e| keys.contains(&e.key.as_str()));
        // Shared keys such as `figures` may concern the programs, even if each variant has its own command.
        let other_kind = has(&own, &["command"]) && !has(&shared, &["command"]) && !has(&shared, &COMMAND_ONLY);
        let gives_way = |inherited: &Entry<'_>| {
            let replaced =
                own.iter().any(|o| o.key == inherited.key || keys.exclude_each_other(&o.key, &inherited.key));
            // The shared timeout is for our own requests, not for a program's duration.
            let other_timeout = inherited.key == "timeout" && other_kind;
            replaced || other_timeout
        };
        let entries = shared.into_iter().filter(|entry| !gives_way(entry)).chain(own.iter().cloned()).collect();
        Self { entries, machine }
    }

    /// Returns the value that names the load's machine.
    pub(crate) fn machine(&self) -> Option<&Field<'d>> {
        self.machine.as_ref()
    }

    /// Returns the value that names the agents that carry it out.
    pub(crate) fn agents(&self) -> Option<&Field<'d>> {
        self.get("agents")
    }

    /// Returns the values of keys that are URLs.
    pub(crate) fn urls(&self) -> impl Iterator<Item = &Field<'d>> {
        keys::URLS.iter().filter_map(|key| self.get(key))
    }

    fn get(&self, key: &str) -> Option<&Field<'d>> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// Reads the keys. `names` are the names that a program's words may hold, `urls` the targets. `longest`: the
    /// maximum duration of a run, for a quick run.
    pub(crate) fn read(
        &self,
        variant: &Table<'d>,
        urls: &[Endpoint],
        names: Option<&Values>,
        around: TextContext<'_>,
        longest: Option<Duration>,
    ) -> Option<DescribedLoad> {
        match self.get("command") {
            Some(command) => self.command(command, variant, urls, names, around, longest),
            None => self.bench(variant, urls, names, around, longest),
        }
    }

    /// Reads our own load.
    fn bench(
        &self,
        variant: &Table<'d>,
        urls: &[Endpoint],
        names: Option<&Values>,
        around: TextContext<'_>,
        longest: Option<Duration>,
    ) -> Option<DescribedLoad> {
        let (foreign, flags): (Vec<_>, Vec<_>) =
            self.entries.iter().partition(|e| COMMAND_ONLY.contains(&e.key.as_str()));
        for entry in foreign {
            entry.value.wrong(format!("`{}` is for a load that is a program: give its `command` as well", entry.key));
        }
        let LoadValues { draft, share, subscribe, script, agents } = keys::draft(&flags, names, around)?;
        let (agents, on_agents) = agents.map_or((None, String::new()), |(agents, what)| (Some(agents), what));
        if let Some(script) = script {
            // Its length is the user's or the script's, in a quick run too.
            keys::check(&draft, urls, &flags, variant);
            return Some(DescribedLoad {
                words: script_words(&draft, &script.name(), self.get("users").is_some()) + &on_agents,
                share: None,
                open: draft.load != Rhythm::Closed,
                run: draft.warmup + draft.duration.unwrap_or(SCRIPT_DURATION),
                load: Load::Script(Box::new(draft), script),
                agents,
                lacks: None,
            });
        }
        let draft = self.timed(draft, longest);
        if let Some(subscribe) = subscribe {
            let draft = push::Draft { base: draft, ..subscribe };
            keys::check_subscribe(&draft, urls, &flags, variant);
            let url = |key| self.get(key).and_then(Field::text).map(str::to_owned);
            return Some(DescribedLoad {
                words: subscribe_words(&draft) + &on_agents,
                share: None,
                open: draft.base.load != Rhythm::Closed,
                run: draft.base.warmup + draft.base.duration.unwrap_or_default(),
                load: Load::Subscribe(Box::new(Subscribe {
                    publish: url("publish"),
                    publish_to: url("publish-to"),
                    draft,
                })),
                agents,
                lacks: None,
            });
        }
        keys::check(&draft, urls, &flags, variant);
        Some(DescribedLoad {
            words: load_words(&draft, share) + &on_agents,
            share,
            open: share.is_some() || draft.load != Rhythm::Closed,
            run: draft.warmup + draft.duration.unwrap_or_default(),
            load: Load::Bench(Box::new(draft)),
            agents,
            lacks: None,
        })
    }

    /// Returns a draft with its duration.
    fn timed(&self, draft: Draft, longest: Option<Duration>) -> Draft {
        let mut draft = rules::timed(draft, self.get("warmup").is_some());
        let asked = draft.duration.unwrap_or_default();
        if let Some(longest) = longest {
            (draft.free_duration, draft.free_warmup) = (false, false);
            draft.warmup = draft.warmup.min(QUICK_WARMUP);
            if let Rhythm::Open { stages, .. } = &mut draft.load
                && asked > longest
            {
                // All stages in a shorter time.
                let share = longest.as_secs_f64() / asked.as_secs_f64();
                stages.iter_mut().for_each(|stage| stage.duration = stage.duration.mul_f64(share));
            }
        }
        draft.duration = Some(longest.map_or(asked, |longest| asked.min(longest)));
        draft
    }

    /// Reads a load program.
    fn command(
        &self,
        command: &Field<'d>,
        variant: &Table<'d>,
        urls: &[Endpoint],
        names: Option<&Values>,
        around: TextContext<'_>,
        longest: Option<Duration>,
    ) -> Option<DescribedLoad> {
        for entry in &self.entries {
            let key = entry.key.as_str();
            if COMMAND_KEYS.contains(&key) || SHARED_KEYS.contains(&key) {
                continue;
            }
            if around.keys.form(key).is_some() {
                let place = if entry.own { "" } else { ", and this key into the loads of the other variants" };
                entry.value.wrong(format!("the program in `command` does not follow it: put it into its words{place}"));
            } else {
                keys::unknown(entry, &COMMAND_KEYS, around.keys);
            }
        }
        let shared: Vec<&Entry<'_>> = self.entries.iter().filter(|e| SHARED_KEYS.contains(&e.key.as_str())).collect();
        let draft = self.timed(keys::draft(&shared, names, around)?.draft, longest);
        let warmup = warmup(&draft);
        if let Some(warmup) = &warmup {
            keys::check(warmup, urls, &shared, variant);
        }
        let seconds = draft.duration.unwrap_or_default().as_secs_f64().ceil();
        let mut numbers = Values::default();
        numbers.set("connections", draft.connections.to_string());
        // Many programs accept whole seconds only.
        numbers.set("duration", seconds.to_string());
        let fill = |text: String| template::fill_some(&text, &numbers).unwrap_or(text);

        let mut words: Vec<String> = words(command)?.into_iter().map(fill).collect();
        let mut texts = Templates::default();
        texts.add(command, &words);
        let env = self.get("env").map(|value| variables(value, &mut texts)).unwrap_or_default();
        let env: Vec<(String, String)> = env.into_iter().map(|(name, text)| (name, fill(text))).collect();
        if let Some(names) = names {
            let mut known = names.clone();
            for (name, text) in [("connections", "1"), ("duration", "1"), ("url", "http://localhost/")] {
                known.set(name, text);
            }
            texts.check(&known);
        }
        let timeout = self.get("timeout").and_then(timeout);
        let lacks = find_program(&mut words, &env, around.machine);
        let mut in_words = shown(&hidden::program(words.clone()));
        if let Some(time) = warmup.as_ref().and_then(|warmup| warmup.duration) {
            in_words += &format!(", after {} of warm-up", units::length(time.as_secs_f64()));
        }
        Some(DescribedLoad {
            words: in_words,
            share: None,
            open: false,
            run: draft.warmup + Duration::from_secs_f64(seconds),
            agents: None,
            lacks,
            load: Load::Command(Command {
                words,
                env,
                figures: self.get("figures").map(figures).unwrap_or_default(),
                requests: self.get("requests").and_then(pattern),
                burst: self.burst(),
                warmup: warmup.map(Box::new),
                timeout: timeout.unwrap_or(Duration::from_secs_f64(seconds * 3.0) + Duration::from_secs(30)),
            }),
        })
    }

    /// Returns how many requests a program sends at the same moment, if it works in bursts.
    fn burst(&self) -> Option<u64> {
        let value = self.get("burst")?;
        if self.get("requests").is_none() {
            value.wrong(
                "expected a pattern for `requests` as well, the number of requests answered: the others of a \
                         burst failed",
            );
        }
        value.read(|text| match units::parse_count(text)? {
            0 => Err("it is 0: expected how many requests the program sends at the same moment".to_owned()),
            burst => Ok(burst),
        })
    }

    /// Reports a program whose output lacks the primary metric.
    pub(crate) fn must_tell(&self, metric: Metric) {
        let Some(command) = self.get("command") else { return };
        // Existing but invalid figures have been reported.
        let has = |metric: Metric| {
            let figures = self.get("figures").filter(|value| value.is_table()).and_then(Field::table);
            figures.is_some_and(|table| table.fields().any(|(name, _)| name == metric.name()))
        };
        let wanted = match metric {
            Metric::Memory => return,
            Metric::Cpu | Metric::LoadCpu if self.get("requests").is_some() || has(Metric::Rps) => return,
            Metric::Cpu | Metric::LoadCpu => "a pattern for `requests`, the number of requests answered".to_owned(),
            metric if has(metric) => return,
            metric => format!("`figures.{metric}`, a pattern for it"),
        };
        command.wrong(format!("{metric} is compared first, and nothing finds it in the output: expected {wanted}"));
    }
}

/// Returns our own load that warms up before a program. Its responses are discarded, so it does not verify
/// certificates.
fn warmup(draft: &Draft) -> Option<Draft> {
    let tls = ClientTlsOptions { roots: Roots::Insecure, ..draft.tls.clone() };
    let warmup = Draft { duration: Some(draft.warmup), warmup: Duration::ZERO, tls, ..draft.clone() };
    (!draft.warmup.is_zero()).then_some(warmup)
}

fn figures(value: &Field<'_>) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (name, value) in value.table().iter().flat_map(Table::fields) {
        let metric = name.parse::<Metric>().map_err(|error| value.wrong(error.to_string())).ok();
        if !value.is_table() {
            let usual = metric.map_or(1.0, |metric| usual_scale(metric.unit()));
            figures.extend(metric.zip(pattern(&value)).map(|(metric, pattern)| Figure {
                metric,
                pattern,
                scale: usual,
            }));
            continue;
        }
        let Some(table) = value.table() else { continue };
        let (found, unit) = (table.get("pattern"), table.get("unit"));
        table.finish();
        if found.is_none() {
            table.wrong("`pattern` is missing: expected a regular expression whose first group is the number");
        }
        let Some(metric) = metric else { continue };
        let scale = match unit {
            Some(unit) => unit.read(|text| scale(metric.unit(), text)),
            None => Some(usual_scale(metric.unit())),
        };
        let pattern = found.as_ref().and_then(pattern);
        figures.extend(pattern.zip(scale).map(|(pattern, scale)| Figure { metric, pattern, scale }));
    }
    figures
}

/// Parses a regular expression with a group for the number.
fn pattern(value: &Field<'_>) -> Option<Regex> {
    value.read(|text| {
        let pattern = Regex::new(text).map_err(|error| format!("`{text}` is no regular expression: {error}"))?;
        match pattern.captures_len() {
            0 | 1 => {
                Err(format!("`{text}` has no group: expected one around the number, as in 'Requests/sec:\\s+(\\S+)'"))
            }
            _ => Ok(pattern),
        }
    })
}

/// Returns the scale of a number without a unit: seconds, as everywhere here.
fn usual_scale(unit: Unit) -> f64 {
    if unit == Unit::Nanoseconds { 1e9 } else { 1.0 }
}

fn scale(unit: Unit, text: &str) -> Result<f64, String> {
    const TIMES: [(&str, f64); 4] = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    const SIZES: [(&str, f64); 4] = [("B", 1.0), ("KiB", 1024.0), ("MiB", 1_048_576.0), ("GiB", 1_073_741_824.0)];
    const RATES: [(&str, f64); 3] = [("/s", 1.0), ("k/s", 1e3), ("/min", 1.0 / 60.0)];
    let units: &[(&str, f64)] = match unit {
        Unit::Nanoseconds => &TIMES,
        Unit::Bytes => &SIZES,
        Unit::PerSecond => &RATES,
        Unit::Points => &[("points", 1.0)],
    };
    units.iter().find(|unit| unit.0 == text).map(|unit| unit.1).ok_or_else(|| {
        let names: Vec<&str> = units.iter().map(|unit| unit.0).collect();
        format!("`{text}` is no unit of it: expected one of {}", names.join(", "))
    })
}
