//! Histories whose truth is known: entries of real results, planted steps, garbage.

mod checks;
mod entries;
mod made;
mod otava;
mod steps;
