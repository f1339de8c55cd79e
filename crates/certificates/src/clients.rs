//! Which server names ask their clients for a certificate.

use std::collections::HashMap;

use oroshi_net::tls::ClientAuthorities;

/// Server names whose clients are asked for a certificate, with the authorities of these certificates. `Default`: none.
///
/// A handshake knows its server name alone. If several patterns match a name, its clients may show certificates of all
/// their authorities, and who serves a request decides which of them counts.
#[derive(Clone, Debug, Default)]
pub struct ClientNames {
    sets: Vec<ClientAuthorities>,
    /// Indexes into `sets`.
    exact: HashMap<Box<str>, usize>,
    below: HashMap<Box<str>, usize>,
    any: Option<usize>,
}

/// A pattern of server names, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamePattern {
    /// Every name, and clients that name none.
    Any,
    /// This name.
    Exact(String),
    /// Every name below this one, at any depth.
    Below(String),
}

impl NamePattern {
    /// Returns whether this matches every name that the other one matches.
    fn covers(&self, other: &Self) -> bool {
        let is_below = |name: &str, of: &str| name.strip_suffix(of).is_some_and(|rest| rest.ends_with('.'));
        match (self, other) {
            (NamePattern::Any, _) => true,
            (NamePattern::Below(of), NamePattern::Exact(name)) => is_below(name, of),
            (NamePattern::Below(of), NamePattern::Below(name)) => name == of || is_below(name, of),
            (one, other) => one == other,
        }
    }
}

impl ClientNames {
    /// Makes the table.
    #[must_use]
    pub fn new(rules: &[(NamePattern, ClientAuthorities)]) -> Self {
        let mut names = ClientNames::default();
        for (pattern, _) in rules {
            let covering = rules.iter().filter(|(known, _)| known.covers(pattern)).map(|(_, authorities)| authorities);
            let Some(union) = ClientAuthorities::union(covering) else { continue };
            let known = names.sets.iter().position(|known| *known == union);
            let set = known.unwrap_or(names.sets.len());
            if known.is_none() {
                names.sets.push(union);
            }
            match pattern {
                NamePattern::Any => names.any = Some(set),
                NamePattern::Exact(name) => drop(names.exact.insert(name.as_str().into(), set)),
                NamePattern::Below(name) => drop(names.below.insert(name.as_str().into(), set)),
            }
        }
        names
    }

    /// Returns the different sets of authorities.
    pub(crate) fn sets(&self) -> &[ClientAuthorities] {
        &self.sets
    }

    /// Returns the set of a name, as an index into [`sets`](Self::sets). `None`: its clients are not asked.
    pub(crate) fn of(&self, name: Option<&str>) -> Option<usize> {
        let Some(name) = name.filter(|_| !self.sets.is_empty()) else { return self.any };
        let above = || name.match_indices('.').find_map(|(dot, _)| self.below.get(&name[dot + 1..]));
        self.exact.get(name).or_else(above).copied().or(self.any)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use oroshi_net::tls::RevocationOptions;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    use super::*;

    fn authorities() -> ClientAuthorities {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let file: PathBuf = folder.path().join("ca.pem");
        std::fs::write(&file, params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()).unwrap();
        ClientAuthorities::from_files(&[file], &RevocationOptions::default()).unwrap()
    }

    #[test]
    fn a_name_has_the_authorities_of_all_patterns_that_match_it() {
        let (one, two, three) = (authorities(), authorities(), authorities());
        let names = ClientNames::new(&[
            (NamePattern::Exact("a.example.org".into()), one.clone()),
            (NamePattern::Below("example.org".into()), two.clone()),
            (NamePattern::Below("deep.example.org".into()), three.clone()),
            (NamePattern::Exact("other.test".into()), two.clone()),
        ]);
        let both = |one: &ClientAuthorities, other: &ClientAuthorities| ClientAuthorities::union([one, other]);
        let of = |name: &str| names.of(Some(name)).map(|set| names.sets()[set].clone());
        assert_eq!(of("a.example.org"), both(&one, &two));
        assert_eq!(of("b.example.org"), Some(two.clone()));
        assert_eq!(of("x.y.deep.example.org"), both(&three, &two));
        assert_eq!(of("deep.example.org"), Some(two.clone()), "it is not below itself");
        assert_eq!(of("other.test"), Some(two.clone()));
        assert_eq!((of("example.org"), of("badexample.org"), names.of(None)), (None, None, None));
        assert_eq!(names.sets().len(), 3, "equal sets are one");
        let names = ClientNames::new(&[(NamePattern::Any, one), (NamePattern::Exact("a.test".into()), two)]);
        assert!(names.of(None).is_some() && names.of(None) == names.of(Some("b.test")));
        assert_ne!(names.of(None), names.of(Some("a.test")));
        assert_eq!(ClientNames::default().of(Some("a.test")), None);
    }
}
