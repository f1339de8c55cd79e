//! The keys of an experiment's load, which are long flags of `oroshi bench`. The parser of the command line knows them
//! and their values.

use clap::builder::ValueHint;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Args as _, Command, FromArgMatches};
use oroshi_bench::Part;
use oroshi_experiment::{Form, LoadKeys, LoadValues};
use oroshi_words::{Mistake, Naming};

use crate::agents_load::{self, Found};
use crate::bench::{AgentsArgs, LoadArgs, SubscribeArgs, meaningless};
use crate::script_load::{Loader, ReadLoad, ScriptLoadArgs};

/// The parser of the command line.
#[derive(Debug)]
pub(super) struct Flags {
    /// Loads the script of a load.
    pub(super) script: Loader,
}

impl LoadKeys for Flags {
    fn names(&self) -> Vec<String> {
        parser().get_arguments().filter_map(Arg::get_long).map(str::to_owned).collect()
    }

    fn form(&self, key: &str) -> Option<Form> {
        let parser = parser();
        let flag = flag(&parser, key)?;
        let several = matches!(flag.get_action(), ArgAction::Append);
        Some(match flag.get_value_hint() {
            _ if !flag.get_action().takes_values() => Form::Switch,
            ValueHint::AnyPath => Form::Path { several },
            _ => Form::Text { several },
        })
    }

    fn exclude_each_other(&self, a: &str, b: &str) -> bool {
        let parser = parser();
        let (Some(a), Some(b)) = (flag(&parser, a), flag(&parser, b)) else { return false };
        let one_way = |a, b: &Arg| parser.get_arg_conflicts_with(a).iter().any(|other| other.get_id() == b.get_id());
        one_way(a, b) || one_way(b, a)
    }

    fn read(&self, given: &[(&str, Vec<String>)]) -> Result<LoadValues, Vec<Mistake>> {
        let (args, subscribe, scenario, (agents, matches)) =
            parse(given).map_err(|error| vec![refused(&error, given)])?;
        let foreign = if subscribe.is_asked_for() { meaningless(&args) } else { Vec::new() };
        let ReadLoad { mut draft, share, script, mut problems } = scenario.read(args, Naming::Keys, self.script);
        if scenario.file.is_some() && subscribe.is_asked_for() {
            problems.add("--script", "its users send requests: leave it out, or leave out `mode`");
        }
        for flag in foreign {
            problems.add(flag, "it is about requests and their answers: leave it out, or leave out `mode`");
        }
        if subscribe.is_asked_for() && share.is_some() {
            problems.add("--rate", "it is a share of what set-ups can do: with `mode`, expected messages per second");
        }
        let agents = agents_load::read(&agents, &matches, &mut problems);
        // How many users share themselves among agents, the script may say.
        draft.part = agents.as_ref().filter(|_| script.is_none()).map(|agents| Part { index: 0, of: agents.count });
        let agents = agents.map(|Found { load, words, .. }| (load, words));
        let subscribe = subscribe.read(draft.clone(), &mut problems).filter(|_| subscribe.is_asked_for());
        if problems.found.is_empty() {
            Ok(LoadValues { draft, share, subscribe, script, agents })
        } else {
            Err(problems.found)
        }
    }
}

fn parser() -> Command {
    let parser = Command::new("load").no_binary_name(true).disable_help_flag(true);
    AgentsArgs::augment_args(ScriptLoadArgs::augment_args(SubscribeArgs::augment_args(LoadArgs::augment_args(parser))))
}

fn flag<'p>(parser: &'p Command, key: &str) -> Option<&'p Arg> {
    parser.get_arguments().find(|flag| flag.get_long() == Some(key))
}

/// The flags of a load by subject, those of agents with all as they were parsed.
type Parsed = (LoadArgs, SubscribeArgs, ScriptLoadArgs, (AgentsArgs, ArgMatches));

/// Parses keys as if they were typed: `--header=A: b`.
fn parse(given: &[(&str, Vec<String>)]) -> Result<Parsed, clap::Error> {
    let parser = parser();
    let mut words = Vec::new();
    for (key, values) in given {
        let is_switch = flag(&parser, key).is_some_and(|flag| !flag.get_action().takes_values());
        match (is_switch, &values[..]) {
            (true, [on]) if on == "true" => words.push(format!("--{key}")),
            (true, _) => {}
            (false, values) => words.extend(values.iter().map(|value| format!("--{key}={value}"))),
        }
    }
    let matches = parser.try_get_matches_from(words)?;
    Ok((
        LoadArgs::from_arg_matches(&matches)?,
        SubscribeArgs::from_arg_matches(&matches)?,
        ScriptLoadArgs::from_arg_matches(&matches)?,
        (AgentsArgs::from_arg_matches(&matches)?, matches),
    ))
}

/// Converts an error of the parser. Blames the first key without which there would be no error.
fn refused(error: &clap::Error, given: &[(&str, Vec<String>)]) -> Mistake {
    let without = |i: usize| [&given[..i], &given[i + 1..]].concat();
    let to_blame = (0..given.len()).find(|&i| parse(&without(i)).is_ok());
    let key = to_blame.and_then(|i| given.get(i)).map_or("", |given| given.0);
    Mistake::new(
        key,
        match (error.kind(), error.get(ContextKind::InvalidArg)) {
            (ErrorKind::MissingRequiredArgument, Some(ContextValue::Strings(missing))) => {
                let missing: Vec<String> = missing.iter().map(|missing| Naming::Keys.of(&name_of(missing))).collect();
                format!("it wants {} as well", missing.join(" and "))
            }
            (kind, _) => kind.as_str().unwrap_or("it is not understood").to_owned(),
        },
    )
}

/// Returns the name of a flag that the parser shows with its value: `--key <FILE>`.
fn name_of(shown: &str) -> String {
    let mut parser = parser();
    // The parser shows the value only after it is built.
    parser.build();
    let name = parser.get_arguments().find(|flag| flag.to_string() == shown).and_then(Arg::get_long);
    name.unwrap_or(shown).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script_load::fake;

    const FLAGS: Flags = Flags { script: fake::load };

    fn given<'k>(keys: &[(&'k str, &str)]) -> Vec<(&'k str, Vec<String>)> {
        keys.iter().map(|(key, value)| (*key, vec![(*value).to_owned()])).collect()
    }

    #[test]
    fn keys_are_flags_and_their_mistakes_name_keys() {
        assert!(FLAGS.names().contains(&"publish-to".to_owned()));
        assert_eq!(FLAGS.form("close"), Some(Form::Switch));
        assert_eq!(FLAGS.form("header"), Some(Form::Text { several: true }));
        assert_eq!(FLAGS.form("cacert"), Some(Form::Path { several: true }));
        assert_eq!((FLAGS.form("body-file"), FLAGS.form("format")), (Some(Form::Path { several: false }), None));
        assert!(FLAGS.exclude_each_other("close", "requests-per-connection"));
        let typed = FLAGS.read(&given(&[("connections", "7"), ("close", "true"), ("insecure", "false")])).unwrap();
        assert_eq!((typed.draft.connections, typed.draft.requests_per_connection), (7, Some(1)));
        let typed = FLAGS.read(&given(&[("script", "shop.lua"), ("users", "20")])).unwrap();
        assert_eq!((typed.draft.connections, typed.script.unwrap().name()), (20, "shop.lua users".into()));
        assert_eq!(FLAGS.form("script"), Some(Form::Path { several: false }));
        assert!(FLAGS.exclude_each_other("users", "connections"));
        let wrong = |keys: &[(&str, &str)]| {
            let mistakes = FLAGS.read(&given(keys)).unwrap_err();
            mistakes.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(wrong(&[("hold", "1"), ("cert", "c.pem")]), ["cert: it wants `key` as well"]);
        let arrivals = "arrivals: it is about an open loop: give a `rate` or `stages` as well";
        assert_eq!(wrong(&[("arrivals", "constant")]), [arrivals]);
        assert_eq!(wrong(&[("users", "2")]), ["users: it wants `script` as well"]);
        let foreign = wrong(&[("script", "x.lua"), ("mode", "ws"), ("pipeline", "2")]);
        assert!(foreign.iter().any(|line| line.starts_with("script: its users send requests")), "{foreign:?}");
        assert_eq!(wrong(&[("connections", "x"), ("threads", "y")]).len(), 2);
    }
}
