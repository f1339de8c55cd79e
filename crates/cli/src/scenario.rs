//! `oroshi scenario`: scripts to begin with, from what a browser recorded, and from curl's command lines.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ValueEnum, ValueHint};
use oroshi_scenario::import::{self, Commands, FILE_BYTES, ImportError, Options};

use crate::output::Output;
use crate::{CommandError, say};

const EXAMPLES: &str = "\
Examples:
  oroshi scenario from-har shop.har -o shop.lua
      a recording of the browser's network panel (\"Save all as HAR\") becomes a script
  oroshi scenario from-curl -o shop.lua -- curl http://localhost:8080/login -d name=alice
      a command line of curl becomes a script
  oroshi bench -s shop.lua --users 1 --iterations 1 --verbose
      makes one journey, and shows each request and check

Exit codes: 0 done; 1 the script could not be written; 2 wrong usage, or the input is no recording or no
command.";

const HAR_EXAMPLES: &str = "\
Examples:
  oroshi scenario from-har shop.har -o shop.lua
  oroshi scenario from-har shop.har --host api.shop.example --assets list
      keeps requests to another host too, and writes a request for each image, style and script

To record: open the network panel of the browser's tools, reload the page, click through the journey, then
\"Save all as HAR with content\" (with content, values that come back later are found).";

const CURL_EXAMPLES: &str = "\
Examples:
  oroshi scenario from-curl -o shop.lua -- curl http://localhost:8080/login -d name=alice
  oroshi scenario from-curl commands.sh -o shop.lua
  xclip -o | oroshi scenario from-curl > shop.lua
      \"Copy as cURL (bash)\" and \"Copy all as cURL (bash)\" of a browser, from the clipboard";

/// Write a script of scenarios to begin with, from a recording of a browser or from curl commands
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Write a script from a HAR recording, as Chromium, Firefox and Safari save it
    #[command(display_name = "oroshi", after_help = HAR_EXAMPLES)]
    FromHar(HarArgs),
    /// Write a script from command lines of curl
    #[command(display_name = "oroshi", after_help = CURL_EXAMPLES)]
    FromCurl(CurlArgs),
}

#[derive(Debug, clap::Args)]
struct HarArgs {
    /// Read this recording; - reads standard input
    #[arg(value_name = "FILE|-", value_hint = ValueHint::FilePath)]
    file: PathBuf,

    /// Keep requests to this host too, with or without a port; repeatable [default: the host of the first page]
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,

    /// Choose what becomes of images, styles, scripts and fonts
    #[arg(long, value_enum, value_name = "page|list|none", default_value = "page")]
    assets: Assets,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, clap::Args)]
struct CurlArgs {
    /// Read commands from this file [default: standard input]
    #[arg(value_name = "FILE|-", value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,

    /// Read this command
    #[arg(last = true, conflicts_with = "file")]
    command: Vec<String>,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, clap::Args)]
struct OutputArgs {
    /// Keep passwords and tokens in the script
    ///
    /// Without it a marked placeholder replaces them, for test data of yours.
    #[arg(long)]
    keep_secrets: bool,

    /// Write the script to a file [default: standard output]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,

    /// Replace the file of --output
    #[arg(long, requires = "output")]
    force: bool,
}

/// What becomes of assets, as a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Assets {
    /// Fetch what each page links to, like a browser
    Page,
    /// Write a request for each
    List,
    /// Leave them out
    None,
}

/// The reasons why there is no script.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Name a file that there is.
    #[error("{name} cannot be read")]
    Read {
        /// The file.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// Name another file.
    #[error("{name}: {source}")]
    Import {
        /// The input.
        name: String,
        /// What is wrong with it.
        source: ImportError,
        /// What to do about it.
        next: &'static str,
    },
    /// Name a new file, or add `--force`.
    #[error("--output: {} exists: expected a new file", .0.display())]
    Exists(PathBuf),
    /// Choose another place for the script.
    #[error("--output: {} cannot be written", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Standard output is closed or full.
    #[error("standard output cannot be written")]
    Print(#[source] io::Error),
}

impl CommandError for Error {
    /// 2 when flags or the input were wrong, 1 when the script could not be written.
    fn exit_code(&self) -> u8 {
        match self {
            Self::Read { .. } | Self::Import { .. } | Self::Exists(_) => 2,
            Self::Write { .. } | Self::Print(_) => 1,
        }
    }

    fn next_step(&self) -> Option<&'static str> {
        match self {
            Self::Import { next, .. } => Some(next),
            Self::Exists(_) => Some("name another file, or add --force to replace it"),
            Self::Read { .. } | Self::Write { .. } | Self::Print(_) => None,
        }
    }
}

/// Writes the script.
///
/// # Errors
/// If there is no script.
pub(crate) fn run(args: Args) -> Result<ExitCode, Error> {
    match args.command {
        Command::FromHar(args) => from_har(&args),
        Command::FromCurl(args) => from_curl(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn from_har(args: &HarArgs) -> Result<(), Error> {
    let place = Place::open(&args.output)?;
    let name = name_of(&args.file);
    let text = read(&args.file)?;
    let assets = match args.assets {
        Assets::Page => import::Assets::Page,
        Assets::List => import::Assets::List,
        Assets::None => import::Assets::None,
    };
    let hosts = args.host.clone();
    let options = Options { source: name.clone(), hosts, keep_secrets: args.output.keep_secrets, assets };
    let next = "save a recording in the browser's network panel; `oroshi scenario from-har --help` says how";
    let script = import::from_har(&text, &options).map_err(|source| Error::Import { name, source, next })?;
    place.write(&script)
}

fn from_curl(args: &CurlArgs) -> Result<(), Error> {
    let place = Place::open(&args.output)?;
    let (name, text, words);
    let commands = match (&args.file, &args.command[..]) {
        // A whole command in one argument has its own quotes.
        (_, [only]) if only.starts_with("curl ") => {
            name = "the command".to_owned();
            Commands::Text(only)
        }
        (_, command @ [_, ..]) => {
            name = "the command".to_owned();
            words = command;
            Commands::Words(words)
        }
        (file, []) => {
            let file = file.clone().unwrap_or_else(|| PathBuf::from("-"));
            name = name_of(&file);
            text = read(&file)?;
            Commands::Text(&text)
        }
    };
    let keep_secrets = args.output.keep_secrets;
    let options = Options { source: name.clone(), keep_secrets, ..Options::default() };
    let next = "correct the command; `oroshi scenario from-curl --help` has examples";
    let files = |path: &str| limited(File::open(path)?);
    let script = import::from_curl(commands, &options, &files);
    place.write(&script.map_err(|source| Error::Import { name, source, next })?)
}

/// Returns the name of an input, as messages and the script have it.
fn name_of(file: &Path) -> String {
    if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() }
}

fn read(file: &Path) -> Result<String, Error> {
    let bytes = if file == Path::new("-") { limited(io::stdin().lock()) } else { File::open(file).and_then(limited) };
    let no_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8");
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).map_err(no_text));
    text.map_err(|source| Error::Read { name: name_of(file), source })
}

/// Reads at most what a recording may have.
fn limited(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > FILE_BYTES {
        let what = format!("it has more than {} MiB: expected at most so much", FILE_BYTES >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}

/// Where the script goes.
struct Place(Option<(Output, PathBuf)>);

impl Place {
    /// Checks that the script can be written there, before the input is read.
    fn open(args: &OutputArgs) -> Result<Self, Error> {
        let Some(path) = &args.output else { return Ok(Self(None)) };
        let is_there = path.metadata().is_ok_and(|there| there.is_file() && there.len() > 0);
        if is_there && !args.force {
            return Err(Error::Exists(path.clone()));
        }
        let open = Output::open(path).map_err(|source| Error::Write { path: path.clone(), source })?;
        Ok(Self(Some((open, path.clone()))))
    }

    fn write(self, script: &str) -> Result<(), Error> {
        let Some((output, path)) = self.0 else {
            let mut out = io::stdout().lock();
            return out.write_all(script.as_bytes()).and_then(|()| out.flush()).map_err(Error::Print);
        };
        output.write(script.as_bytes()).map_err(|source| Error::Write { path: path.clone(), source })?;
        let file = path.display();
        say(&format!("wrote {file}; next: oroshi bench -s {file} --users 1 --iterations 1 --verbose"));
        Ok(())
    }
}
