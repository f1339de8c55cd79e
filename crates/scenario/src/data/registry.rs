//! The sets of a run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Declaration, MAX_SETS, Part, Set, at_most};
use crate::files::Files;

/// The sets of a run, which all threads share.
#[derive(Debug)]
pub(crate) struct Sets {
    files: Arc<Files>,
    part: Part,
    declared: Mutex<Declared>,
}

/// What the threads have declared.
#[derive(Debug, Default)]
struct Declared {
    sets: Vec<Arc<Set>>,
    /// Whether a thread has declared all of its sets: there can be no more.
    complete: bool,
}

impl Sets {
    /// Creates an empty registry. `files`: those beside the script.
    pub(crate) fn new(files: &Arc<Files>, part: Part) -> Self {
        Self { files: Arc::clone(files), part, declared: Mutex::default() }
    }

    #[cfg(test)]
    /// Returns the sets in the order of their declarations.
    pub(crate) fn all(&self) -> Vec<Arc<Set>> {
        self.declared().sets.clone()
    }

    /// Ends all leases, and begins each set again with its first row: for the next run.
    pub(crate) fn reset(&self) {
        self.declared().sets.iter().for_each(|set| set.reset());
    }

    fn declared(&self) -> MutexGuard<'_, Declared> {
        self.declared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The declarations of one thread, in order.
#[derive(Debug)]
pub(crate) struct Declarations {
    sets: Arc<Sets>,
    count: usize,
}

impl Declarations {
    /// Begins the declarations of a thread.
    pub(crate) fn new(sets: &Arc<Sets>) -> Self {
        Self { sets: Arc::clone(sets), count: 0 }
    }

    /// Returns the set of the thread's next declaration. The first thread loads it, while others wait.
    ///
    /// # Errors
    /// A message for the user: the file is wrong, or another thread declared another set here.
    pub(crate) fn declare(&mut self, declaration: Declaration) -> Result<Arc<Set>, String> {
        let mut declared = self.sets.declared();
        let set = match declared.sets.get(self.count) {
            Some(set) if *set.declaration() == declaration => Arc::clone(set),
            Some(set) => return Err(different(&declaration.to_string(), &set.declaration().to_string())),
            None if declared.complete => return Err(different(&declaration.to_string(), "nothing more")),
            None if self.count == MAX_SETS => {
                return Err(format!("{declaration} is one set too many: {}", at_most(MAX_SETS, "sets")));
            }
            None => {
                let set = Arc::new(Set::load(declaration, &self.sets.files, self.sets.part)?);
                declared.sets.push(Arc::clone(&set));
                set
            }
        };
        self.count += 1;
        Ok(set)
    }

    /// Ends the thread's declarations: its script's top level has returned.
    ///
    /// # Errors
    /// A message for the user: another thread declared more sets.
    pub(crate) fn complete(self) -> Result<(), String> {
        let mut declared = self.sets.declared();
        declared.complete = true;
        match declared.sets.get(self.count) {
            Some(set) => Err(different("nothing more", &set.declaration().to_string())),
            None => Ok(()),
        }
    }
}

fn different(here: &str, there: &str) -> String {
    format!(
        "this thread declares {here} where another one declared {there}: expected the same sets in the same order on \
         all threads"
    )
}
