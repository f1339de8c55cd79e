//! The protocol of the pipes: lines of words separated by tabs.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

/// A request to the keeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Sets a variable for all commands.
    Env(OsString, OsString),
    /// Sets the working folder of all commands.
    Folder(OsString),
    /// Adds a command to run after the end.
    Teardown(Vec<OsString>),
    /// Starts a command. Replies [`Reply::Started`] or [`Reply::Failed`], later [`Reply::Ended`].
    Run(Vec<OsString>),
    /// Ends everything: signal, grace period, kill. Replies [`Reply::Done`].
    Stop { signal: i32, grace: Duration },
}

/// A reply of the keeper.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    /// It accepts requests, and its folder exists.
    Ready,
    /// A request, or getting ready, failed.
    Failed(String),
    /// The command's pid.
    Started(u32),
    /// The command's leading process ended.
    Ended(Ended),
    /// After [`Ended`] with `others`: the last of these ended too. How, in words.
    Gone(String),
    /// Everything has ended. The last reply.
    Done(Done),
}

/// How a command's leading process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// `None`: ended by a signal.
    pub(crate) code: Option<i32>,
    /// Time since the start.
    pub(crate) elapsed: Duration,
    /// Processes that it started still run.
    pub(crate) others: bool,
    /// In words.
    pub(crate) how: String,
}

/// How everything ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Done {
    /// CPU time of all processes, seconds.
    pub(crate) cpu_s: f64,
    /// Failures of the end, in words: processes that cannot be killed, failed steps, a folder that remains.
    pub(crate) troubles: Vec<String>,
}

impl Request {
    /// Returns the line, including its end.
    pub(crate) fn line(&self) -> Vec<u8> {
        match self {
            Self::Env(name, value) => line("env", [name, value]),
            Self::Folder(path) => line("folder", [path]),
            Self::Teardown(words) => line("teardown", words),
            Self::Run(words) => line("run", words),
            Self::Stop { signal, grace } => {
                line("stop", [OsString::from(signal.to_string()), grace.as_millis().to_string().into()])
            }
        }
    }

    /// Reads a line; `None` if it is not a request.
    pub(crate) fn read(line: &[u8]) -> Option<Self> {
        let mut words = words(line);
        let verb = words.remove(0);
        let mut words = words.into_iter();
        Some(match verb.to_str()? {
            "env" => Self::Env(words.next()?, words.next()?),
            "folder" => Self::Folder(words.next()?),
            "teardown" => Self::Teardown(words.collect()),
            "run" => Self::Run(words.collect()),
            "stop" => {
                let mut number = || words.next()?.into_string().ok()?.parse::<u64>().ok();
                Self::Stop { signal: number()?.try_into().ok()?, grace: Duration::from_millis(number()?) }
            }
            _ => return None,
        })
    }
}

impl Reply {
    /// Returns the line, including its end.
    pub(crate) fn line(&self) -> Vec<u8> {
        let text = |text: &str| OsString::from(text);
        match self {
            Self::Ready => line("ready", [""; 0]),
            Self::Failed(why) => line("failed", [why]),
            Self::Started(pid) => line("started", [pid.to_string()]),
            Self::Ended(Ended { code, elapsed, others, how }) => {
                let code = code.map_or("-".to_owned(), |code| code.to_string());
                line("ended", [&code, &elapsed.as_nanos().to_string(), &others.to_string(), how])
            }
            Self::Gone(how) => line("gone", [how]),
            Self::Done(Done { cpu_s, troubles }) => line(
                "done",
                std::iter::once(text(&cpu_s.to_string())).chain(troubles.iter().map(|trouble| text(trouble))),
            ),
        }
    }

    /// Reads a line; `None` if it is not a reply.
    pub(crate) fn read(line: &[u8]) -> Option<Self> {
        let mut words = words(line).into_iter().map(|word| word.to_string_lossy().into_owned());
        let verb = words.next()?;
        Some(match verb.as_str() {
            "ready" => Self::Ready,
            "failed" => Self::Failed(words.next()?),
            "started" => Self::Started(words.next()?.parse().ok()?),
            "ended" => {
                let code = words.next()?;
                let code = if code == "-" { None } else { Some(code.parse().ok()?) };
                let elapsed = Duration::from_nanos(words.next()?.parse().ok()?);
                Self::Ended(Ended { code, elapsed, others: words.next()?.parse().ok()?, how: words.next()? })
            }
            "gone" => Self::Gone(words.next()?),
            "done" => Self::Done(Done { cpu_s: words.next()?.parse().ok()?, troubles: words.collect() }),
            _ => return None,
        })
    }
}

fn line<W: AsRef<OsStr>>(verb: &str, words: impl IntoIterator<Item = W>) -> Vec<u8> {
    let mut line = verb.as_bytes().to_vec();
    for word in words {
        line.push(b'\t');
        for &byte in word.as_ref().as_bytes() {
            match byte {
                b'\\' => line.extend_from_slice(b"\\\\"),
                b'\t' => line.extend_from_slice(b"\\t"),
                b'\n' => line.extend_from_slice(b"\\n"),
                _ => line.push(byte),
            }
        }
    }
    line.push(b'\n');
    line
}

/// Returns the words of a line, at least one.
fn words(line: &[u8]) -> Vec<OsString> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let word = |written: &[u8]| {
        let mut bytes = Vec::with_capacity(written.len());
        let mut rest = written.iter();
        while let Some(&byte) = rest.next() {
            bytes.push(match byte {
                b'\\' => match rest.next() {
                    Some(b't') => b'\t',
                    Some(b'n') => b'\n',
                    _ => b'\\',
                },
                _ => byte,
            });
        }
        OsString::from_vec(bytes)
    };
    line.split(|&byte| byte == b'\t').map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_replies_arrive_as_they_were_sent() {
        let odd = ["", "a b", "tab\there", "line\nend\\n", "\\", "é"].map(OsString::from);
        let not_utf8 = OsString::from_vec(vec![b'/', 0xff]);
        for request in [
            Request::Env("A".into(), odd[2].clone()),
            Request::Folder(not_utf8),
            Request::Teardown(odd.to_vec()),
            Request::Run(odd.to_vec()),
            Request::Run(vec![OsString::new()]),
            Request::Stop { signal: 15, grace: Duration::from_millis(1500) },
        ] {
            let line = request.line();
            assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
            assert_eq!(Request::read(&line), Some(request));
        }
        let ended = Ended { code: Some(3), elapsed: Duration::from_nanos(7), others: true, how: "exit code 3".into() };
        for reply in [
            Reply::Ready,
            Reply::Failed("a\nb".into()),
            Reply::Started(12),
            Reply::Ended(Ended { code: None, ..ended.clone() }),
            Reply::Ended(ended),
            Reply::Gone("exit code 0".into()),
            Reply::Done(Done { cpu_s: 0.25, troubles: vec!["x".into(), String::new()] }),
        ] {
            assert_eq!(Reply::read(&reply.line()), Some(reply));
        }
    }

    #[test]
    fn what_is_no_message_is_none() {
        for line in ["", "\n", "jump\n", "stop\t15\n", "stop\t-1\t0\n", "env\ta\n", "folder\n"] {
            assert_eq!(Request::read(line.as_bytes()), None, "{line:?}");
        }
        for line in ["", "started\tx\n", "ended\t1\t2\n", "done\n", "error: unrecognized subcommand"] {
            assert_eq!(Reply::read(line.as_bytes()), None, "{line:?}");
        }
    }
}
