//! Parts that this build lacks. Cargo features of this package stand for them; `make demo` turns them off.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::failed;

/// The next step.
pub(crate) const NEXT: &str =
    "`make build` builds target/release/oroshi with all features (`cargo build --release -p oroshi`)";

/// This build was made without a feature of the package `oroshi`. Build it with the feature.
#[derive(Debug, thiserror::Error)]
#[error("{what} is not in this build, which was made without the feature `{feature}`")]
pub(crate) struct Absent {
    /// The command that needs the feature, as typed.
    pub(crate) what: String,
    /// The feature.
    pub(crate) feature: &'static str,
}

/// Not in this build: `make build` makes the whole command
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Flags of the subcommand, whatever they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _rest: Vec<OsString>,
}

/// Says that this build lacks a subcommand, whose feature has the same name. Returns the exit code of wrong usage.
pub(crate) fn subcommand(name: &'static str) -> ExitCode {
    subcommand_of(name, name)
}

/// Says that this build lacks a subcommand, and which feature has it. Returns the exit code of wrong usage.
pub(crate) fn subcommand_of(name: &str, feature: &'static str) -> ExitCode {
    failed(&Absent { what: format!("`oroshi {name}`"), feature }, 2, Some(NEXT))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::Cli;

    #[test]
    fn a_subcommand_that_is_absent_takes_any_flags_and_names_its_feature() {
        let parse = |line: &str| Cli::try_parse_from(["oroshi"].into_iter().chain(line.split(' ')));
        for line in
            ["gate --config gate.toml", "push -config hub.yml --check", "fetch - --output a", "scenario from-har a.har"]
        {
            assert!(parse(line).is_ok(), "{line}");
        }
        let help = parse("start --help").unwrap_err();
        assert_eq!(help.kind(), clap::error::ErrorKind::DisplayHelp);
        assert!(help.to_string().contains("Not in this build"), "{help}");
        let absent = Absent { what: "`oroshi gate`".to_owned(), feature: "gate" };
        let text = crate::explanation(&absent, Some(NEXT));
        assert!(text.starts_with("error: `oroshi gate` is not in this build") && text.contains("the feature `gate`\n"));
        assert!(text.contains("\n  next: `make build` "), "{text}");
    }
}
