//! A list in order of use. Every operation takes constant time.

/// Values by their indexes, which never change.
#[derive(Debug)]
pub(super) struct Recent<T> {
    nodes: Vec<Node<T>>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
}

#[derive(Debug)]
struct Node<T> {
    value: Option<T>,
    older: u32,
    newer: u32,
}

/// No index.
const NONE: u32 = u32::MAX;

impl<T> Recent<T> {
    pub(super) fn new() -> Self {
        Recent { nodes: Vec::new(), free: Vec::new(), oldest: NONE, newest: NONE }
    }

    /// Adds a value as the most recently used; returns its index.
    pub(super) fn push(&mut self, value: T) -> u32 {
        let node = Node { value: Some(value), older: NONE, newer: NONE };
        let place = match self.free.pop() {
            Some(place) => {
                self.nodes[place as usize] = node;
                place
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.append(place);
        place
    }

    /// Makes a value the most recently used.
    #[inline]
    pub(super) fn touch(&mut self, place: u32) {
        if place != self.newest {
            self.unlink(place);
            self.append(place);
        }
    }

    /// Removes a value.
    pub(super) fn remove(&mut self, place: u32) -> Option<T> {
        let value = self.nodes[place as usize].value.take()?;
        self.unlink(place);
        self.free.push(place);
        Some(value)
    }

    /// Returns the least recently used value and its index.
    pub(super) fn oldest(&self) -> Option<(u32, &T)> {
        Some((self.oldest, self.nodes.get(self.oldest as usize)?.value.as_ref()?))
    }

    fn append(&mut self, place: u32) {
        let before = std::mem::replace(&mut self.newest, place);
        let node = &mut self.nodes[place as usize];
        (node.older, node.newer) = (before, NONE);
        match self.nodes.get_mut(before as usize) {
            Some(before) => before.newer = place,
            None => self.oldest = place,
        }
    }

    fn unlink(&mut self, place: u32) {
        let Node { older, newer, .. } = self.nodes[place as usize];
        match self.nodes.get_mut(older as usize) {
            Some(node) => node.newer = newer,
            None => self.oldest = newer,
        }
        match self.nodes.get_mut(newer as usize) {
            Some(node) => node.older = older,
            None => self.newest = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_in_the_order_of_use(steps in prop::collection::vec((0u8..4, any::<prop::sample::Index>()), 0..200)) {
            let (mut recent, mut model) = (Recent::new(), Vec::<(u32, usize)>::new());
            for (number, (kind, which)) in steps.into_iter().enumerate() {
                match kind {
                    0 | 1 => model.push((recent.push(number), number)),
                    _ if model.is_empty() => {}
                    2 => {
                        let entry = model.remove(which.index(model.len()));
                        recent.touch(entry.0);
                        model.push(entry);
                    }
                    _ => {
                        let (place, value) = model.remove(which.index(model.len()));
                        prop_assert_eq!(recent.remove(place), Some(value));
                        prop_assert_eq!(recent.remove(place), None);
                    }
                }
                prop_assert_eq!(recent.oldest().map(|(place, value)| (place, *value)), model.first().copied());
            }
            for (place, value) in model {
                prop_assert_eq!(recent.oldest(), Some((place, &value)));
                recent.remove(place);
            }
            prop_assert_eq!(recent.oldest(), None);
        }
    }
}
