//! The query of a request, and the parts of its path; what is wrong with them is an answer.

use std::borrow::Cow;

pub(crate) use oroshi_words::query::split;

use crate::http::answer::Problem;

/// The pairs of a query, decoded; a name without a value has an empty one.
pub(crate) fn pairs(query: &str) -> impl Iterator<Item = Result<(Cow<'_, str>, Cow<'_, str>), Problem>> {
    oroshi_words::query::pairs(query).map(|pair| pair.map_err(Problem::bad))
}

/// A part of a path, decoded.
pub(crate) fn segment(text: &str) -> Result<Cow<'_, str>, Problem> {
    oroshi_words::query::segment(text).map_err(Problem::bad)
}

/// Nothing in a query has this name.
pub(crate) fn unknown(name: &str, known: &[&str]) -> Problem {
    Problem::bad(oroshi_words::query::unknown(name, known))
}
