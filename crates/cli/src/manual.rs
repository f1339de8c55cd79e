//! `oroshi completions` and `oroshi man`: the flags as shells and manual readers want them, made from the definitions
//! that make the help.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, CommandFactory, ValueEnum, ValueHint};
use clap_complete::aot::{Bash, Fish, Zsh, generate};
use clap_mangen::Man;

use crate::{Cli, CommandError};

const COMPLETIONS: &str = "\
Examples:
  oroshi completions bash > ~/.local/share/bash-completion/completions/oroshi
  oroshi completions zsh > \"${fpath[1]}/_oroshi\"
  oroshi completions fish > ~/.config/fish/completions/oroshi.fish
      a new shell completes `oroshi bench --st` from then on

Exit codes: 0 done; 1 the script could not be printed.";

const MAN: &str = "\
Examples:
  oroshi man ~/.local/share/man/man1
      man oroshi-bench

Exit codes: 0 done; 1 a page could not be written.";

/// Print a script that lets a shell complete oroshi's subcommands and flags
#[derive(Debug, clap::Args)]
#[command(after_help = COMPLETIONS)]
pub(crate) struct CompletionsArgs {
    /// Print the script for this shell
    shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Write the manual pages of oroshi and its subcommands
#[derive(Debug, clap::Args)]
#[command(after_help = MAN)]
pub(crate) struct ManArgs {
    /// Write them into this directory, which is made if it is missing: oroshi.1, oroshi-bench.1 and so on
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    directory: PathBuf,
}

/// Nothing, or a part, could be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The reader of standard output has gone, or its disk is full.
    #[error("cannot print the script")]
    Print(#[source] io::Error),
    /// Name a directory that can be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The page or the directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl CommandError for Error {
    fn exit_code(&self) -> u8 {
        1
    }

    fn next_step(&self) -> Option<&'static str> {
        None
    }
}

/// Prints the script for a shell.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<ExitCode, Error> {
    let mut script = Vec::new();
    let mut command = shown(&Cli::command());
    match args.shell {
        Shell::Bash => generate(Bash, &mut command, "oroshi", &mut script),
        Shell::Zsh => generate(Zsh, &mut command, "oroshi", &mut script),
        Shell::Fish => generate(Fish, &mut command, "oroshi", &mut script),
    }
    io::stdout().lock().write_all(&script).map_err(Error::Print)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the pages.
pub(crate) fn man(args: &ManArgs) -> Result<ExitCode, Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| Error::Write { path, source }
    };
    fs::create_dir_all(&args.directory).map_err(failed(&args.directory))?;
    for (name, page) in pages() {
        let path = args.directory.join(format!("{name}.1"));
        fs::write(&path, page).map_err(failed(&path))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns each page's name, such as `oroshi-lab-run`, and its text in roff.
fn pages() -> Vec<(String, Vec<u8>)> {
    let mut root = shown(&Cli::command());
    // Hands the flags of every command on to the subcommands.
    root.build();
    let mut pages = Vec::new();
    add_pages(&root, "oroshi", &mut pages);
    pages
}

fn add_pages(command: &Command, name: &str, pages: &mut Vec<(String, Vec<u8>)>) {
    // Lines of subcommands in a page name the pages of these.
    let command = command.clone().name(name.to_owned()).display_name(name.to_owned());
    let command = command.bin_name(name.replace('-', " ")).disable_help_subcommand(true);
    let mut page = Vec::new();
    let man = Man::new(command.clone()).title(name.to_uppercase()).manual("oroshi");
    man.render(&mut page).expect("writing to memory does not fail");
    pages.push((name.to_owned(), page));
    for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
        add_pages(subcommand, &format!("{name}-{}", subcommand.get_name()), pages);
    }
}

/// Returns a command without the subcommands that its help hides.
fn shown(command: &Command) -> Command {
    let mut shown = Command::new(command.get_name().to_owned())
        .disable_help_flag(true)
        .disable_version_flag(true)
        .propagate_version(true)
        .args(command.get_arguments().cloned())
        .subcommands(command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()).map(of_its_name));
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        shown = shown.version(version.to_owned());
    }
    shown
}

/// Returns a subcommand that goes by its own name. `--version` needs the name of the whole command there.
fn of_its_name(subcommand: &Command) -> Command {
    let name = subcommand.get_name().to_owned();
    subcommand.clone().display_name(name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::{Command as Process, Stdio};

    use oroshi_testkit::skipped;

    use super::*;

    /// Every command that the help shows has a page with all its flags, and no other has one.
    #[test]
    fn each_command_has_a_page_with_its_flags() {
        let pages = pages();
        let names: BTreeSet<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.len(), pages.len());
        for (name, flags) in [
            ("oroshi-bench", &["streams", "fail\\-if"][..]),
            ("oroshi-lab-run", &["quick"]),
            ("oroshi-gate", &["config"]),
        ] {
            let (_, page) = pages.iter().find(|(page, _)| page == name).unwrap_or_else(|| panic!("{name}: {names:?}"));
            let page = String::from_utf8_lossy(page);
            for flag in flags {
                assert!(page.contains(&format!("\\-\\-{flag}\\fR")), "{name} lacks --{flag}:\n{page}");
            }
        }
        assert!(names.contains("oroshi") && !names.iter().any(|name| name.contains("keep") || name.contains("help")));
    }

    /// groff, which `man` calls, has nothing to say about a page.
    #[test]
    fn groff_reads_each_page() {
        for (name, page) in pages() {
            let mut command = Process::new("groff");
            command.args(["-man", "-Tascii", "-P-cbou", "-ww", "-b"]).stdin(Stdio::piped());
            let Ok(mut groff) = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() else {
                return skipped("groff_reads_each_page", "groff is not installed");
            };
            let mut stdin = groff.stdin.take().unwrap();
            let writing = std::thread::spawn(move || stdin.write_all(&page));
            let read = groff.wait_with_output().unwrap();
            writing.join().unwrap().unwrap();
            let said = String::from_utf8_lossy(&read.stderr);
            let shown = String::from_utf8_lossy(&read.stdout);
            assert!(read.status.success() && said.is_empty(), "{name}: {said}");
            assert!(shown.contains("SYNOPSIS") && shown.contains("--help"), "{name}: {shown}");
        }
    }

    /// bash itself completes with the script.
    #[test]
    fn bash_completes_subcommands_and_flags() {
        let mut script = Vec::new();
        generate(Bash, &mut shown(&Cli::command()), "oroshi", &mut script);
        let mut ask = String::from_utf8(script).unwrap();
        ask += "\nasked() { COMP_WORDS=(\"$@\") COMP_CWORD=$(($# - 1)) COMPREPLY=(); \
                _oroshi oroshi \"${@: -1}\" \"${@: -2:1}\"; echo \"${COMPREPLY[*]}\"; }\n\
                asked oroshi ''\nasked oroshi be\nasked oroshi bench --str\nasked oroshi lab ru\n";
        let Ok(said) = Process::new("bash").args(["--norc", "-c", &ask]).output() else {
            return skipped("bash_completes_subcommands_and_flags", "bash is not installed");
        };
        let said = String::from_utf8(said.stdout).unwrap();
        let [all, rest @ ..] = &*said.lines().collect::<Vec<_>>() else { panic!("nothing was said") };
        assert!(["bench", "compare", "gate", "man"].iter().all(|name| all.split(' ').any(|said| said == *name)));
        assert!(!all.contains("keep"), "{all}");
        assert_eq!(rest, ["bench", "--streams", "run"]);
    }
}
