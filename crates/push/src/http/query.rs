//! The query of a request and the parts of its path, with mistakes as answers.

use std::borrow::Cow;

pub(crate) use oroshi_words::query::split;

use crate::http::answer::Problem;

/// Iterates over the decoded pairs of a query. A name without a value has an empty one.
pub(crate) fn pairs(query: &str) -> impl Iterator<Item = Result<(Cow<'_, str>, Cow<'_, str>), Problem>> {
    oroshi_words::query::pairs(query).map(|pair| pair.map_err(Problem::bad))
}

/// Decodes a part of a path.
pub(crate) fn segment(text: &str) -> Result<Cow<'_, str>, Problem> {
    oroshi_words::query::segment(text).map_err(Problem::bad)
}

/// Returns the answer to a query with an unknown name.
pub(crate) fn unknown(name: &str, known: &[&str]) -> Problem {
    Problem::bad(oroshi_words::query::unknown(name, known))
}
