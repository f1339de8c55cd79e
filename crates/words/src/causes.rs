//! Errors with what is behind them.

use std::error::Error;

/// An error's text with those of its causes, in one line. A cause whose text is there already is left out.
#[must_use]
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let this = error.to_string();
        if !text.contains(&this) {
            text = format!("{text}: {this}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Link(&'static str, Option<Box<Link>>);

    impl fmt::Display for Link {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Link {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|link| link as &(dyn Error + 'static))
        }
    }

    #[test]
    fn each_cause_is_told_once() {
        let chain = |texts: &[&'static str]| {
            texts.iter().rev().fold(None, |cause, &text| Some(Box::new(Link(text, cause)))).unwrap()
        };
        assert_eq!(with_causes(&*chain(&["cannot connect", "refused"])), "cannot connect: refused");
        assert_eq!(with_causes(&*chain(&["TLS: no key", "no key", "end of file"])), "TLS: no key: end of file");
        assert_eq!(with_causes(&*chain(&["alone"])), "alone");
    }
}
