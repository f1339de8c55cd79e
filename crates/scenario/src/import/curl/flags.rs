//! The flags of curl, and what they do.

use oroshi_words::nearest;

use super::shown;

use Does::{
    Agent, Bearer, Cookie, Data, DataBinary, DataRaw, DataUrlencode, Flag, FlagWithValue, Follow, Form, FormString,
    Get, Head, Header, Json, MaxRedirects, MaxTime, Method, Next, Nothing, NothingWithValue, Referer, Refused,
    UrlQuery, User,
};

/// What a flag does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    Method,
    Header,
    Data,
    DataRaw,
    DataBinary,
    DataUrlencode,
    Json,
    Get,
    Form,
    FormString,
    Cookie,
    User,
    Bearer,
    Agent,
    Referer,
    Follow,
    Head,
    Url,
    UrlQuery,
    MaxTime,
    MaxRedirects,
    Next,
    /// Changes what curl prints or how it connects; a script has no need of it.
    Nothing,
    /// The same, with a value.
    NothingWithValue,
    /// The load has a flag for it.
    Flag(&'static str),
    /// The same, with a value.
    FlagWithValue(&'static str),
    /// A scenario cannot do it: what to do.
    Refused(&'static str),
}

/// The flags: short, long, what they do.
const FLAGS: &[(char, &str, Does)] = &[
    ('X', "request", Method),
    ('H', "header", Header),
    ('d', "data", Data),
    (' ', "data-ascii", Data),
    (' ', "data-raw", DataRaw),
    (' ', "data-binary", DataBinary),
    (' ', "data-urlencode", DataUrlencode),
    (' ', "json", Json),
    ('G', "get", Get),
    ('F', "form", Form),
    (' ', "form-string", FormString),
    ('b', "cookie", Cookie),
    ('u', "user", User),
    (' ', "oauth2-bearer", Bearer),
    ('A', "user-agent", Agent),
    ('e', "referer", Referer),
    ('L', "location", Follow),
    (' ', "location-trusted", Follow),
    ('I', "head", Head),
    (' ', "url", Does::Url),
    (' ', "url-query", UrlQuery),
    ('m', "max-time", MaxTime),
    (' ', "max-redirs", MaxRedirects),
    (':', "next", Next),
    ('k', "insecure", Flag("-k")),
    (' ', "cacert", FlagWithValue("--cacert")),
    ('E', "cert", FlagWithValue("--cert")),
    (' ', "key", FlagWithValue("--key")),
    (' ', "unix-socket", FlagWithValue("--unix")),
    (' ', "compressed", Nothing),
    ('s', "silent", Nothing),
    ('S', "show-error", Nothing),
    ('v', "verbose", Nothing),
    ('i', "include", Nothing),
    (' ', "show-headers", Nothing),
    ('f', "fail", Nothing),
    (' ', "fail-with-body", Nothing),
    (' ', "fail-early", Nothing),
    ('#', "progress-bar", Nothing),
    (' ', "no-progress-meter", Nothing),
    ('N', "no-buffer", Nothing),
    ('4', "ipv4", Nothing),
    ('6', "ipv6", Nothing),
    ('0', "http1.0", Nothing),
    (' ', "http1.1", Nothing),
    (' ', "http2", Nothing),
    (' ', "http2-prior-knowledge", Nothing),
    (' ', "http3", Nothing),
    ('g', "globoff", Nothing),
    (' ', "path-as-is", Nothing),
    (' ', "basic", Nothing),
    (' ', "anyauth", Nothing),
    ('O', "remote-name", Nothing),
    ('J', "remote-header-name", Nothing),
    ('R', "remote-time", Nothing),
    (' ', "create-dirs", Nothing),
    (' ', "tcp-nodelay", Nothing),
    (' ', "tcp-fastopen", Nothing),
    (' ', "no-keepalive", Nothing),
    (' ', "tr-encoding", Nothing),
    ('q', "disable", Nothing),
    ('Z', "parallel", Nothing),
    ('j', "junk-session-cookies", Nothing),
    (' ', "ssl-no-revoke", Nothing),
    (' ', "tlsv1.2", Nothing),
    (' ', "tlsv1.3", Nothing),
    ('1', "tlsv1", Nothing),
    (' ', "raw", Nothing),
    (' ', "styled-output", Nothing),
    (' ', "post301", Nothing),
    (' ', "post302", Nothing),
    (' ', "post303", Nothing),
    (' ', "no-alpn", Nothing),
    (' ', "no-sessionid", Nothing),
    ('o', "output", NothingWithValue),
    (' ', "output-dir", NothingWithValue),
    ('w', "write-out", NothingWithValue),
    ('D', "dump-header", NothingWithValue),
    ('c', "cookie-jar", NothingWithValue),
    (' ', "connect-timeout", NothingWithValue),
    (' ', "retry", NothingWithValue),
    (' ', "retry-delay", NothingWithValue),
    (' ', "retry-max-time", NothingWithValue),
    (' ', "retry-all-errors", Nothing),
    (' ', "retry-connrefused", Nothing),
    (' ', "keepalive-time", NothingWithValue),
    (' ', "limit-rate", NothingWithValue),
    (' ', "max-filesize", NothingWithValue),
    (' ', "expect100-timeout", NothingWithValue),
    (' ', "stderr", NothingWithValue),
    (' ', "trace", NothingWithValue),
    (' ', "trace-ascii", NothingWithValue),
    (' ', "trace-time", Nothing),
    ('y', "speed-time", NothingWithValue),
    ('Y', "speed-limit", NothingWithValue),
    (' ', "ciphers", NothingWithValue),
    (' ', "tls-max", NothingWithValue),
    ('x', "proxy", Refused("scenarios use no proxy: remove it")),
    (' ', "socks5", Refused("scenarios use no proxy: remove it")),
    (' ', "resolve", Refused("write the address into the URL, and the name as -H 'Host: NAME'")),
    (' ', "connect-to", Refused("write the address into the URL, and the name as -H 'Host: NAME'")),
    ('T', "upload-file", Refused("send the file by -X PUT --data-binary @FILE")),
    ('K', "config", Refused("write its flags into the command")),
    ('n', "netrc", Refused("write name and password as -u NAME:PASSWORD")),
    (' ', "digest", Refused("scenarios have no digest authentication: remove it, or use -u without it")),
];

/// Finds a flag of one letter.
pub(super) fn short(letter: char) -> Result<Does, String> {
    let found = FLAGS.iter().find(|(short, _, _)| *short == letter && letter != ' ');
    found.map(|flag| flag.2).ok_or_else(|| unknown(&format!("-{letter}"), &[]))
}

/// Finds a long flag; `--no-...` turns one off.
pub(super) fn long(name: &str) -> Result<(Does, bool), String> {
    let find = |name: &str| FLAGS.iter().find(|(_, long, _)| *long == name).map(|flag| flag.2);
    if let Some(does) = find(name) {
        return Ok((does, false));
    }
    if let Some(does) = name.strip_prefix("no-").and_then(find).filter(|does| !takes_value(*does)) {
        return Ok((does, true));
    }
    let names: Vec<&str> = FLAGS.iter().map(|(_, long, _)| *long).collect();
    Err(unknown(&format!("--{name}"), &names))
}

/// Says that a flag is unknown.
fn unknown(flag: &str, names: &[&str]) -> String {
    let near = nearest(flag.trim_start_matches('-'), names.iter().copied());
    let near = near.map(|name| format!("did you mean --{name}? ")).unwrap_or_default();
    format!(
        "`{}` is no flag of curl that a script can have: {near}remove it, or write what it does into the script",
        shown(flag)
    )
}

/// Whether a value follows the flag.
pub(super) fn takes_value(does: Does) -> bool {
    !matches!(does, Get | Follow | Head | Next | Nothing | Flag(_) | Refused(_))
}
