//! Values that a script must not contain: which fields have them, and what stands in their place.

use std::collections::HashMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use oroshi_client::Headers;

use super::lua::{name_of, quoted};

/// The value that the user replaces.
pub(super) const PLACEHOLDER: &str = "CHANGE-ME";
/// The longest value that is a secret, bytes.
const VALUE_BYTES: usize = 16 << 10;

/// The most secrets with a name of their own; the others share one.
const MOST_SECRETS: usize = 200;
/// The name that they share.
const OTHERS: &str = "others";

/// The secrets of a script, in the order in which they appeared.
#[derive(Debug, Default)]
pub(super) struct Secrets {
    /// Whether they stay in the script.
    keep: bool,
    /// Names, with what the value is for.
    pub(super) found: Vec<(String, String)>,
    names: HashMap<String, String>,
}

impl Secrets {
    pub(super) fn new(keep: bool) -> Self {
        Self { keep, ..Self::default() }
    }

    /// Returns an expression in place of a secret value.
    fn place(&mut self, field: &str, value: &str, step: &str) -> String {
        if let Some(name) = self.names.get(value) {
            return format!("secret.{name}");
        }
        if self.found.len() >= MOST_SECRETS {
            if self.found.len() == MOST_SECRETS {
                self.found.push((OTHERS.to_owned(), step.to_owned()));
            }
            return format!("secret.{OTHERS}");
        }
        let wanted = name_of(field, "value");
        let is_taken = |name: &str| self.found.iter().any(|(known, _)| known == name);
        let mut name = wanted.clone();
        let mut number = 2;
        while is_taken(&name) {
            name = format!("{wanted}_{number}");
            number += 1;
        }
        self.found.push((name.clone(), step.to_owned()));
        self.names.insert(value.to_owned(), name.clone());
        format!("secret.{name}")
    }

    /// Returns the expression for a field whose name says that its value is a secret.
    pub(super) fn field(&mut self, name: &str, value: &str, step: &str) -> Option<String> {
        let is_secret = !self.keep && is_field(name) && !value.is_empty() && value.len() <= VALUE_BYTES;
        is_secret.then(|| self.place(name, value, step))
    }

    /// Returns the expression for a header that has a secret. The scheme of `Authorization` stays.
    pub(super) fn header(&mut self, name: &str, value: &str, step: &str) -> Option<String> {
        if self.keep || value.is_empty() || !Headers::is_secret(name) {
            return None;
        }
        match value.split_once(' ') {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("basic") => {
                let decoded = BASE64_STANDARD.decode(rest.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
                Some(match decoded.as_deref().and_then(|text| text.split_once(':')) {
                    Some((user, password)) => {
                        let user = quoted(format!("{user}:").as_bytes());
                        let password = self.place("password", password, step);
                        format!("\"Basic \" .. base64.encode({user} .. {password})")
                    }
                    None => format!("\"Basic \" .. {}", self.place(name, rest, step)),
                })
            }
            Some((scheme, rest)) if scheme.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
                let scheme = quoted(format!("{scheme} ").as_bytes());
                Some(format!("{scheme} .. {}", self.place(name, rest, step)))
            }
            _ => Some(self.place(name, value, step)),
        }
    }

    /// Returns the expression for a cookie of a command line.
    pub(super) fn cookie(&mut self, name: &str, value: &str, step: &str) -> Option<String> {
        (!self.keep && !value.is_empty()).then(|| self.place(name, value, step))
    }

    /// Returns long known secrets with their expressions, to find them within other texts.
    pub(super) fn long(&self) -> impl Iterator<Item = (&str, String)> {
        self.names
            .iter()
            .filter(|(value, _)| value.len() >= 8)
            .map(|(value, name)| (&**value, format!("secret.{name}")))
    }

    /// Whether secrets are replaced.
    pub(super) fn are_replaced(&self) -> bool {
        !self.keep
    }
}

/// Whether a field of a form, of JSON or of a query has a secret, by its name.
pub(super) fn is_field(name: &str) -> bool {
    const WITHIN: [&str; 13] = [
        "password",
        "passwd",
        "passphrase",
        "secret",
        "token",
        "apikey",
        "accesskey",
        "privatekey",
        "authorization",
        "credential",
        "sessionid",
        "csrf",
        "xsrf",
    ];
    const WHOLE: [&str; 14] = [
        "pass",
        "pwd",
        "pw",
        "pin",
        "otp",
        "auth",
        "key",
        "code",
        "cvv",
        "cvc",
        "jwt",
        "sid",
        "assertion",
        "signature",
    ];
    let letters: String = name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    // `user[pass]` is a `pass` too.
    let last = name.trim_end_matches(']').rsplit(['[', '.']).next().unwrap_or_default().to_ascii_lowercase();
    WITHIN.iter().any(|word| letters.contains(word)) || WHOLE.contains(&&*letters) || WHOLE.contains(&&*last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_is_secret() {
        for name in [
            "password",
            "user[password]",
            "userPassword",
            "access_token",
            "api-key",
            "user[pass]",
            "otp",
            "authenticity_token",
        ] {
            assert!(is_field(name), "{name}");
        }
        for name in ["name", "author", "passenger", "keyword", "description", "pincode", "q"] {
            assert!(!is_field(name), "{name}");
        }
    }

    #[test]
    fn many_secrets_share_a_name() {
        let mut secrets = Secrets::new(false);
        let place = |secrets: &mut Secrets, n: usize| secrets.field("token", &n.to_string(), "top").unwrap();
        let places: Vec<String> = (0..MOST_SECRETS + 9).map(|n| place(&mut secrets, n)).collect();
        assert_eq!(
            (&*places[199], &*places[200], &*places[208]),
            ("secret.token_200", "secret.others", "secret.others")
        );
        assert_eq!(secrets.found.len(), MOST_SECRETS + 1);
    }

    #[test]
    fn a_secret_has_one_name() {
        let mut secrets = Secrets::new(false);
        assert_eq!(secrets.field("password", "x", "login").as_deref(), Some("secret.password"));
        assert_eq!(secrets.field("password", "y", "login").as_deref(), Some("secret.password_2"));
        assert_eq!(secrets.field("Confirm-Password", "x", "login").as_deref(), Some("secret.password"));
        assert_eq!(secrets.field("name", "x", "login"), None);
        assert_eq!(
            secrets.header("Authorization", "Bearer abc", "top").as_deref(),
            Some("\"Bearer \" .. secret.authorization")
        );
        assert_eq!(
            secrets.header("Authorization", "Basic YTp4", "top").as_deref(),
            Some("\"Basic \" .. base64.encode(\"a:\" .. secret.password)"),
            "the same password"
        );
        assert_eq!(secrets.header("Accept", "x", "top"), None);
        assert_eq!(secrets.found.len(), 3);
        let mut kept = Secrets::new(true);
        assert_eq!((kept.field("password", "x", ""), kept.header("Authorization", "Bearer abc", "")), (None, None));
    }
}
