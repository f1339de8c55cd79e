//! Turns flags and the configuration into a plan; reports every mistake at once.

use std::path::{Path, PathBuf};

use oroshi_config::{ConfigError, Mistakes, Node, Table, text_of, toml, yaml};
use oroshi_push::{Draft, Listener, Plan, Serves};
use oroshi_words::mistake::add_checked;
use oroshi_words::{Kind, Mistake};

use super::{Args, Error, kuiperbelt, native, template};
use crate::log::Level;

/// kuiperbelt's default configuration.
const USUAL: &str = "config.yml";

/// A plan with the facts about its origin.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) plan: Plan,
    pub(super) level: Level,
    /// The file that was read, if any.
    pub(super) file: Option<PathBuf>,
    /// Whether the file or the command line says where to listen.
    pub(super) listens: bool,
    /// Keys and flags that are ignored, as in kuiperbelt.
    pub(super) overlooked: Vec<String>,
}

/// The two languages of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    /// oroshi's own, in TOML.
    Native,
    /// kuiperbelt's, in YAML.
    Kuiperbelt,
}

/// Reads the command line and the file. `inherits`: there are inherited sockets.
pub(super) fn read(args: &Args, inherits: bool) -> Result<Reading, Error> {
    let mut usage = Vec::new();
    let level = Level::parse(&args.log_level).unwrap_or_else(|why| {
        usage.push(format!("--log-level: {why}"));
        Level::Info
    });
    let listener = listener(args, &mut usage);
    let file = args.config.clone().or_else(|| Some(PathBuf::from(USUAL)).filter(|usual| usual.exists()));
    let language = file.as_deref().map_or(Ok(Language::Native), language);
    let language = language.map_err(|why| usage.push(why));
    let Ok(language) = language else { return Err(Error::Usage(usage)) };
    if !usage.is_empty() {
        return Err(Error::Usage(usage));
    }
    let (node, odd) = match &file {
        None => (Node::default(), Vec::new()),
        Some(file) => {
            let text = text_of(file)?;
            parse(&text, language).map_err(|mistakes| ConfigError::mistakes(file, mistakes))?
        }
    };
    let mistakes = Mistakes::default();
    let root = Table::root(&node, &mistakes);
    let folder = file.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
    let mut draft = match language {
        Language::Native => native::read(root, folder),
        Language::Kuiperbelt => kuiperbelt::read(root),
    };
    let mut mistakes = mistakes.into_vec();
    // kuiperbelt starts despite unknown keys, repeated keys, and keys that are no texts.
    let mut overlooked = Vec::new();
    if draft.compat_ekbo && language == Language::Kuiperbelt {
        (overlooked, mistakes) = mistakes.into_iter().partition(|mistake| mistake.kind == Kind::Unknown);
        overlooked.extend(odd);
        overlooked.sort();
    } else {
        mistakes.extend(odd);
    }
    let mut overlooked: Vec<String> = overlooked.iter().map(Mistake::to_string).collect();
    match &args.gops_addr {
        None => {}
        Some(_) if draft.compat_ekbo => {
            overlooked.push("-gops-addr: oroshi push has no such agent: use /metrics and /status".to_owned());
        }
        Some(address) => {
            return Err(Error::Usage(vec![format!(
                "--gops-addr {address}: oroshi push has no such agent, but /metrics and /status: leave it out, or set \
                 `compat: ekbo` in kuiperbelt's configuration, which overlooks it"
            )]));
        }
    }
    let named = |key: &str| node.line_of(key) > 0;
    let listens = listener.is_some() || ["listen", "port", "sock"].into_iter().any(named);
    if let Some(listener) = listener {
        // It replaces the file's listeners, and what belongs to them.
        (draft.listeners, draft.tls) = (vec![listener], None);
    } else if inherits && !listens {
        // kuiperbelt's default port.
        draft.listeners.clear();
    }
    match planned(draft, inherits, &node, language, &mut mistakes) {
        Some(plan) => Ok(Reading { plan, level, file, listens, overlooked }),
        None => match file {
            Some(file) => Err(ConfigError::mistakes(&file, mistakes).into()),
            None => Err(Error::Usage(mistakes.iter().map(in_flags).collect())),
        },
    }
}

/// Checks a draft; `None` if there is any mistake, in it or before.
fn planned(
    mut draft: Draft,
    inherits: bool,
    node: &Node,
    language: Language,
    mistakes: &mut Vec<Mistake>,
) -> Option<Plan> {
    draft.inherits = inherits;
    let planned = draft.plan();
    let plan = match planned {
        Ok(plan) => Some(plan),
        Err(problems) => {
            add_checked(mistakes, problems.into_iter().map(|problem| node.place(in_the_file(problem, language))));
            None
        }
    };
    mistakes.sort();
    plan.filter(|_| mistakes.is_empty())
}

/// Returns the outermost key.
fn top(key: &str) -> &str {
    key.split(['.', '[']).next().unwrap_or(key)
}

/// The mistakes in a draft, with the keys of the file's language.
fn in_the_file(mistake: Mistake, language: Language) -> Mistake {
    match language {
        Language::Native => mistake,
        Language::Kuiperbelt => mistake.renamed(kuiperbelt::name_of),
    }
}

/// Describes a mistake without a file.
fn in_flags(mistake: &Mistake) -> String {
    match top(&mistake.key) {
        "listen" => {
            "nowhere to listen: give --port 9180 or --sock PATH, a --config FILE, or start this under oroshi start or \
                     systemd, which hand down sockets in SERVER_STARTER_PORT or LISTEN_FDS (neither is set)"
                .to_owned()
        }
        _ => mistake.to_string(),
    }
}

/// Returns the listeners that the command line names.
fn listener(args: &Args, usage: &mut Vec<String>) -> Option<Listener> {
    let address = match (&args.port, &args.sock) {
        (None, None) => return None,
        (Some(port), Some(sock)) => {
            usage.push(format!("--port {port}, --sock {sock}: both are given: expected one of them"));
            return None;
        }
        (Some(port), None) => match kuiperbelt::port(port) {
            Ok(port) => format!(":{port}"),
            Err(why) => {
                usage.push(format!("--port: {why}"));
                return None;
            }
        },
        (None, Some(sock)) => format!("unix:{sock}"),
    };
    Some(Listener { address, serves: Serves::Everything })
}

fn language(file: &Path) -> Result<Language, String> {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => Ok(Language::Native),
        Some("yml" | "yaml") => Ok(Language::Kuiperbelt),
        _ => Err(format!(
            "--config: the name of `{}` does not tell its language: expected .toml, or .yml or .yaml for kuiperbelt's",
            file.display()
        )),
    }
}

/// Reads a file into a tree, with its odd keys.
fn parse(text: &str, language: Language) -> Result<(Node, Vec<Mistake>), Vec<Mistake>> {
    match language {
        Language::Native => toml::parse(text).map(|node| (node, Vec::new())),
        Language::Kuiperbelt => {
            let filled = template::fill(text, |name| std::env::var(name).ok())?;
            yaml::parse(&filled).map_err(|mistake| vec![mistake])
        }
    }
}
