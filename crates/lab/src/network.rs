//! The machines of an experiment and the links between them, as planned and as a result shows them.
//!
//! Each machine stands for a computer with a network of its own. All of them share the CPUs, the memory, the files and
//! the processes of this one.

use std::net::Ipv4Addr;
use std::time::Duration;

use oroshi_words::units;
use serde::{Deserialize, Serialize};

/// The most machines of an experiment.
pub const MOST_MACHINES: usize = 16;
/// The longest name of a machine, bytes: interfaces have the names of the machines that they lead to (IFNAMSIZ).
pub const LONGEST_NAME: usize = 15;
/// The network of all machines, 198.18.0.0/24: reserved for measurements (RFC 2544, section C.2.2).
const NETWORK: [u8; 3] = [198, 18, 0];

/// Machines, every two of which are linked. The default has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Their names: at most [`MOST_MACHINES`], each of at most [`LONGEST_NAME`] bytes.
    pub machines: Vec<String>,
    /// One link for each pair, the ends in the order of the machines.
    pub links: Vec<Link>,
}

impl Network {
    /// Returns the network of these machines, all links alike.
    #[must_use]
    pub fn new(machines: Vec<String>, link: LinkQuality) -> Self {
        let ends = (0..machines.len()).flat_map(|one| (one + 1..machines.len()).map(move |other| (one, other)));
        let links = ends.map(|ends| Link { ends, quality: link }).collect();
        Self { machines, links }
    }

    /// Returns the address of the machine of this index.
    #[must_use]
    pub fn address(machine: usize) -> Ipv4Addr {
        let [a, b, c] = NETWORK;
        Ipv4Addr::new(a, b, c, u8::try_from(machine + 1).unwrap_or(u8::MAX))
    }

    /// Returns each machine's name in templates, with its address: `ip.server`.
    pub fn names(&self) -> impl Iterator<Item = (String, String)> {
        let name = |(index, machine)| (format!("ip.{machine}"), Self::address(index).to_string());
        self.machines.iter().enumerate().map(name)
    }

    /// Returns the link between two machines, in any order.
    pub fn link_mut(&mut self, one: usize, other: usize) -> Option<&mut Link> {
        let ends = (one.min(other), one.max(other));
        self.links.iter_mut().find(|link| link.ends == ends)
    }
}

/// A cable between two machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The machines at its ends, by index.
    pub ends: (usize, usize),
    /// What it does to packets, alike in both directions.
    pub quality: LinkQuality,
}

/// The limits of a link, in each direction. The default has none but the MTU of Ethernet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkQuality {
    /// Bits per second, with the frames' heads; `None`: as fast as the CPUs are.
    pub rate: Option<u64>,
    /// The time that a packet is under way; `None`: as short as the CPUs make it.
    pub delay: Option<Duration>,
    /// The largest packet, bytes; `None`: 1500.
    pub mtu: Option<u32>,
}

/// A [`Network`] as JSON shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetworkRecord {
    /// The machines.
    pub machines: Vec<MachineRecord>,
    /// The links between them.
    pub links: Vec<LinkRecord>,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineRecord {
    /// Its name.
    pub name: String,
    /// Its address.
    pub ip: String,
}

/// A link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkRecord {
    /// The names of the machines at its ends.
    pub machines: [String; 2],
    /// Bits per second in each direction; `None`: not limited.
    pub rate_bits_per_s: Option<f64>,
    /// The delay of a packet in each direction, seconds; `None`: none was added.
    pub delay_s: Option<f64>,
    /// The largest packet, bytes.
    pub mtu: u32,
}

/// The largest packet of Ethernet, bytes.
pub(crate) const USUAL_MTU: u32 = 1500;

impl From<&Network> for NetworkRecord {
    fn from(network: &Network) -> Self {
        let machine = |(index, name): (usize, &String)| MachineRecord {
            name: name.clone(),
            ip: Network::address(index).to_string(),
        };
        let name = |index: usize| network.machines.get(index).cloned().unwrap_or_default();
        let link = |link: &Link| LinkRecord {
            machines: [name(link.ends.0), name(link.ends.1)],
            rate_bits_per_s: link.quality.rate.map(|rate| rate as f64),
            delay_s: link.quality.delay.map(|delay| delay.as_secs_f64()),
            mtu: link.quality.mtu.unwrap_or(USUAL_MTU),
        };
        Self {
            machines: network.machines.iter().enumerate().map(machine).collect(),
            links: network.links.iter().map(link).collect(),
        }
    }
}

impl NetworkRecord {
    /// Returns a description in one line: `server (198.18.0.1) and load (198.18.0.2), network namespaces of one
    /// machine; link of 1 Gbit/s`.
    #[must_use]
    pub fn words(&self) -> String {
        let machines: Vec<String> =
            self.machines.iter().map(|machine| format!("{} ({})", machine.name, machine.ip)).collect();
        let machines = match machines.split_last() {
            Some((last, first)) if !first.is_empty() => format!("{} and {last}", first.join(", ")),
            _ => machines.join(""),
        };
        let words: Vec<String> = self.links.iter().map(LinkRecord::words).collect();
        let alike = words.windows(2).all(|pair| pair[0] == pair[1]);
        let links = match (&self.links[..], alike) {
            ([], _) => String::new(),
            ([only], _) => only.words(),
            (_, true) => format!("each {}", words[0]),
            (links, false) => {
                let each =
                    links.iter().map(|link| format!("{} to {}: {}", link.machines[0], link.machines[1], link.words()));
                each.collect::<Vec<_>>().join("; ")
            }
        };
        format!("{machines}, network namespaces of one machine; {links}")
    }
}

impl LinkRecord {
    fn words(&self) -> String {
        let mut parts = vec!["link".to_owned()];
        parts.extend(self.rate_bits_per_s.map(|rate| format!("of {}", units::bit_rate(rate))));
        parts.extend(self.delay_s.map(|delay| format!("with {} of delay each way", units::time(delay * 1e9))));
        if parts.len() == 1 {
            parts.push("without limit or delay".to_owned());
        }
        if self.mtu != USUAL_MTU {
            parts.push(format!("(MTU {})", self.mtu));
        }
        parts.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn every_two_machines_have_a_link_and_every_machine_an_address() {
        let mut network = Network::new(names(&["a", "b", "c"]), LinkQuality::default());
        let ends: Vec<_> = network.links.iter().map(|link| link.ends).collect();
        assert_eq!(ends, [(0, 1), (0, 2), (1, 2)]);
        assert_eq!(network.link_mut(2, 0).unwrap().ends, (0, 2));
        assert_eq!(network.link_mut(1, 1), None);
        let names: Vec<_> = network.names().collect();
        assert_eq!(names[2], ("ip.c".to_owned(), "198.18.0.3".to_owned()));
    }

    #[test]
    fn one_line_tells_the_machines_and_their_links() {
        let two = Network::new(names(&["server", "load"]), LinkQuality::default());
        assert_eq!(
            NetworkRecord::from(&two).words(),
            "server (198.18.0.1) and load (198.18.0.2), network namespaces of one machine; link without limit or delay"
        );
        let rate = LinkQuality { rate: Some(1_000_000_000), ..LinkQuality::default() };
        let mut three = Network::new(names(&["near", "far", "load"]), rate);
        let said = NetworkRecord::from(&three).words();
        assert!(said.ends_with("; each link of 1 Gbit/s"), "{said}");
        three.link_mut(1, 2).unwrap().quality =
            LinkQuality { delay: Some(Duration::from_millis(20)), mtu: Some(9000), ..rate };
        let said = NetworkRecord::from(&three).words();
        assert!(
            said.contains("; near to load: link of 1 Gbit/s; far to load: link of 1 Gbit/s with 20.0ms of"),
            "{said}"
        );
        assert!(said.ends_with("each way (MTU 9000)"), "{said}");
    }
}
