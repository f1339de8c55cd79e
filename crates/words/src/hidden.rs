//! Command lines and headers as reports repeat them: without what may be a secret.

/// Stands for what is not shown.
pub const HIDDEN: &str = "***";

/// Headers that hold no secrets.
const HARMLESS: [&str; 8] = [
    "Accept",
    "Accept-Encoding",
    "Accept-Language",
    "Cache-Control",
    "Connection",
    "Content-Type",
    "Host",
    "User-Agent",
];

/// A flag of a command line that takes a value.
#[derive(Clone, Debug)]
pub struct Flag {
    /// Its name behind two dashes.
    pub long: Option<String>,
    /// Its letter behind one dash.
    pub short: Option<char>,
    /// The kind of its value.
    pub holds: Holds,
}

/// The kind of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Nothing secret.
    Plain,
    /// A body, which may be secret as a whole.
    Body,
    /// A header, whose value may be secret.
    Header,
    /// Addresses with commas between them, which may have credentials before their hosts.
    Addresses,
}

/// The words of a command line without bodies and header values. `flags` are those of the command that take a value.
#[must_use]
pub fn words(flags: &[Flag], words: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut awaits_value = None;
    let shown = words.into_iter().map(|word| {
        if let Some(flag) = awaits_value.take() {
            return hide(flag, &word);
        }
        match option(flags, &word) {
            Some((flag, Some(at))) => word[..at].to_owned() + &hide(flag, &word[at..]),
            Some((flag, None)) => {
                awaits_value = Some(flag);
                word
            }
            None => word,
        }
    });
    shown.collect()
}

/// The words of a load program. Its flags are its own, but most programs take headers and bodies as we do.
#[must_use]
pub fn program(words: impl IntoIterator<Item = String>) -> Vec<String> {
    let header = Flag { long: Some("header".into()), short: Some('H'), holds: Holds::Header };
    let body = Flag { long: Some("body".into()), short: None, holds: Holds::Body };
    self::words(&[header, body], words)
}

/// A header, `Name: value`, as it may be shown.
#[must_use]
pub fn header(header: &str) -> String {
    let name = header.split(':').next().unwrap_or_default();
    let harmless = HARMLESS.iter().any(|known| name.trim().eq_ignore_ascii_case(known));
    if harmless { header.to_owned() } else { format!("{name}: {HIDDEN}") }
}

/// Addresses, `scheme://user:password@host`, with commas between them, as they may be shown. `@FILE` stays.
#[must_use]
pub fn addresses(text: &str) -> String {
    let shown = |address: &str| match address.rsplit_once('@') {
        Some((before, host)) if !before.is_empty() => {
            let scheme = before.split_once("://").map_or(String::new(), |(scheme, _)| format!("{scheme}://"));
            format!("{scheme}{HIDDEN}@{host}")
        }
        _ => address.to_owned(),
    };
    text.split(',').map(shown).collect::<Vec<_>>().join(",")
}

/// Returns the flag whose value is the word after this one.
#[must_use]
pub fn awaited<'f>(flags: &'f [Flag], word: &str) -> Option<&'f Flag> {
    option(flags, word).filter(|(_, value)| value.is_none()).map(|(flag, _)| flag)
}

/// The flag in a word, and where in the word its value begins: `None` if the value is the next word.
fn option<'f>(flags: &'f [Flag], word: &str) -> Option<(&'f Flag, Option<usize>)> {
    if let Some(rest) = word.strip_prefix("--") {
        let name = rest.split('=').next()?;
        let flag = flags.iter().find(|flag| flag.long.as_deref() == Some(name))?;
        return Some((flag, (name != rest).then_some("--=".len() + name.len())));
    }
    // One dash begins any number of flags without a value: -Lb TEXT, -LbTEXT, -b=TEXT.
    let letters = word.strip_prefix('-')?;
    let (at, flag) = letters
        .char_indices()
        .find_map(|(at, letter)| Some((at, flags.iter().find(|flag| flag.short == Some(letter))?)))?;
    let value = "-".len() + at + 1;
    Some((flag, (value < word.len()).then(|| value + usize::from(word[value..].starts_with('=')))))
}

/// A flag's value as it may be shown.
fn hide(flag: &Flag, value: &str) -> String {
    match flag.holds {
        Holds::Body if !value.is_empty() => HIDDEN.to_owned(),
        Holds::Header => header(value),
        Holds::Addresses => addresses(value),
        Holds::Body | Holds::Plain => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_addresses_credentials_are_hidden() {
        for (typed, shown) in [
            ("nats://h:4222", "nats://h:4222"),
            ("nats://u:p@ss@h:1,tls://token@h:2,h:3", "nats://***@h:1,tls://***@h:2,h:3"),
            ("u:p@h", "***@h"),
            ("@/etc/nats", "@/etc/nats"),
        ] {
            assert_eq!(addresses(typed), shown);
        }
    }

    #[test]
    fn of_a_load_program_headers_and_bodies_are_hidden() {
        let shown = |words: &[&str]| program(words.iter().map(|&word| word.to_owned())).join(" ");
        assert_eq!(
            shown(&["wrk", "-t2", "-c", "5", "-d", "2s", "-H", "Cookie: a=b", "-HAccept: */*", "--body=x", "{{url}}"]),
            "wrk -t2 -c 5 -d 2s -H Cookie: *** -HAccept: */* --body=*** {{url}}"
        );
    }
}
