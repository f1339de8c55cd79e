//! The keys of `[network]`: machines and their links, and the machine that each process runs on.

use oroshi_config::document::did_you_mean;
use oroshi_config::{Field, Table};
use oroshi_lab::network::{LONGEST_NAME, LinkQuality, MOST_MACHINES, Network};
use oroshi_lab::template::{self, Values};
use oroshi_net::{Address, Endpoint};
use oroshi_words::units;

/// The smallest and the largest packet that a link may carry, bytes: what every IPv4 host accepts (RFC 791, section
/// 3.1), and what the kernel's veth can.
const MTU: std::ops::RangeInclusive<u64> = 576..=65_535;
/// The longest delay of a link, seconds. With more, connections would time out before they are open.
const LONGEST_DELAY_S: u64 = 60;

/// The machines of an experiment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machines {
    /// The file has `[network]`, perhaps with mistakes.
    is_given: bool,
    /// The machines and links; `None`: without `[network]`, or if its machines are not known.
    pub(crate) network: Option<Network>,
}

/// What runs on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    /// A server, by default on the first machine.
    Server,
    /// A load, by default on the last machine.
    Load,
}

impl Machines {
    /// Reads `[network]`.
    pub(crate) fn read(root: &Table<'_>) -> Self {
        let Some(table) = root.table("network") else {
            return Self { is_given: root.get("network").is_some(), network: None };
        };
        let machines = match table.get("machines") {
            Some(value) => machines(&value),
            None => {
                table.wrong("`machines` is missing: expected their names, as in machines = [\"server\", \"load\"]");
                None
            }
        };
        let usual = quality(&table, LinkQuality::default());
        let mut network = machines.map(|machines| Network::new(machines, usual));
        let mut seen = Vec::new();
        for link in table.get("link").iter().flat_map(Field::tables) {
            let ends = ends(&link, network.as_ref());
            let own = quality(&link, usual);
            link.finish();
            let Some((one, other)) = ends else { continue };
            if seen.contains(&(one, other)) {
                link.wrong("there is another [[network.link]] between the same machines: leave one out");
            }
            seen.push((one, other));
            if let Some(link) = network.as_mut().and_then(|network| network.link_mut(one, other)) {
                link.quality = own;
            }
        }
        table.finish_with(|key| (key == "links").then(|| "did you mean [[network.link]]?".to_owned()));
        Self { is_given: true, network }
    }

    /// Sets the addresses' names, such as `ip.server`.
    pub(crate) fn provide(&self, values: &mut Values) {
        for (name, address) in self.network.iter().flat_map(Network::names) {
            values.set(name, address);
        }
    }

    /// Returns the machine that a process runs on, which the key `machine` names.
    pub(crate) fn of(&self, process: Process, value: Option<&Field<'_>>) -> Option<usize> {
        let Some(value) = value else {
            return self.network.as_ref().map(|network| match process {
                Process::Server => 0,
                Process::Load => network.machines.len() - 1,
            });
        };
        let name = value.text()?;
        match &self.network {
            Some(network) => index(network, name).or_else(|| unknown(value, name, network)),
            None => {
                if !self.is_given {
                    value.wrong(
                        "there is no [network]: expected `machines = [\"server\", \"load\"]` in it, or nothing here",
                    );
                }
                None
            }
        }
    }

    /// Returns words for a load that is not on its usual machine: `, on server`.
    pub(crate) fn elsewhere(&self, load: Option<usize>) -> String {
        let usual = self.of(Process::Load, None);
        let machine = self.network.as_ref().zip(load.filter(|_| load != usual));
        machine.map(|(network, index)| format!(", on {}", network.machines[index])).unwrap_or_default()
    }

    /// Reports URLs of a load that lead to the load's own machine while the server is on another one. `names` have a
    /// sample value each.
    pub(crate) fn check_url(&self, value: &Field<'_>, names: &Values, server: Option<usize>, load: Option<usize>) {
        let (Some(network), Some(server), Some(load)) = (&self.network, server, load) else { return };
        let elements = if value.is_list() { value.each() } else { vec![value.clone()] };
        for url in elements.iter().filter(|_| server != load) {
            // Other mistakes in it are reported by its reader.
            let filled = url.quiet_text().and_then(|text| template::fill(text, names).ok());
            let Some(Ok(endpoint)) = filled.map(|filled| filled.parse::<Endpoint>()) else { continue };
            let Address::Tcp { host, .. } = &endpoint.address else { continue };
            if **host == *"localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback()) {
                let (server, load) = (&network.machines[server], &network.machines[load]);
                url.wrong(format!(
                    "`{host}` is the machine `{load}` itself, where the load runs: expected the server's, \
                     {{{{ip.{server}}}}}"
                ));
            }
        }
    }

    /// Reports a load of agents: they run elsewhere, and the machines reach neither them nor NATS.
    pub(crate) fn check_agents(&self, agents: &Field<'_>) {
        if self.is_given {
            agents.wrong(
                "the machines of [network] reach nothing but each other, and so neither agents nor NATS: leave [network] \
                 out, and let agents and servers have real machines, or leave `agents` out",
            );
        }
    }

    /// Reports a variant whose server is not started here: no machine reaches it.
    pub(crate) fn check_external(&self, variant: &Table<'_>) {
        if self.is_given {
            variant.wrong(
                "it has no server, and the machines of [network] reach nothing but each other: describe the server",
            );
        }
    }
}

/// Reads the machines' names.
fn machines(value: &Field<'_>) -> Option<Vec<String>> {
    let names = value.texts()?;
    if !(2..=MOST_MACHINES).contains(&names.len()) {
        value.wrong(format!("expected 2 to {MOST_MACHINES} machines, as in [\"server\", \"load\"]"));
        return None;
    }
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(inside) && name.len() <= LONGEST_NAME
    };
    for (at, name) in names.iter().enumerate() {
        // The loopback interface of every machine has that name.
        if !is_name(name) || name == "lo" {
            value.wrong(format!(
                "`{name}` is no name of a machine: expected a letter, then letters, digits, - and _, at most \
                 {LONGEST_NAME} in all, and not `lo`"
            ));
            return None;
        }
        if names[..at].contains(name) {
            value.wrong(format!("`{name}` is given twice: give each machine its own name"));
            return None;
        }
    }
    Some(names)
}

/// Reads the limits of links.
fn quality(table: &Table<'_>, usual: LinkQuality) -> LinkQuality {
    let rate = table.read("rate", |text| match text {
        "unlimited" => Ok(None),
        text => units::parse_bit_rate(text).map(Some),
    });
    let delay = table.read("delay", |text| match units::parse_time(text)? {
        delay if delay.as_secs_f64() > LONGEST_DELAY_S as f64 => {
            Err(format!("`{text}` is more than {LONGEST_DELAY_S} s: expected a time such as 10ms"))
        }
        delay => Ok((!delay.is_zero()).then_some(delay)),
    });
    let mtu = table.read("mtu", |text| match units::parse_count(text)? {
        bytes if MTU.contains(&bytes) => Ok(bytes as u32),
        _ => Err(format!("`{text}` is no MTU: expected {} to {} bytes", MTU.start(), MTU.end())),
    });
    LinkQuality { rate: rate.unwrap_or(usual.rate), delay: delay.unwrap_or(usual.delay), mtu: mtu.or(usual.mtu) }
}

/// Reads the machines at the ends of a link, in the order of `[network]`.
fn ends(link: &Table<'_>, network: Option<&Network>) -> Option<(usize, usize)> {
    let Some(value) = link.get("machines") else {
        link.wrong("`machines` is missing: expected the two machines that it joins");
        return None;
    };
    let names = value.texts()?;
    let network = network?;
    let known = |name: &String| index(network, name).or_else(|| unknown(&value, name, network));
    let found: Vec<usize> = names.iter().map(known).collect::<Option<_>>()?;
    match found[..] {
        [one, other] if one != other => Some((one.min(other), one.max(other))),
        _ => {
            value.wrong("expected two different machines: a link joins two");
            None
        }
    }
}

fn index(network: &Network, name: &str) -> Option<usize> {
    network.machines.iter().position(|machine| machine == name)
}

/// Reports a machine that does not exist.
fn unknown<T>(value: &Field<'_>, name: &str, network: &Network) -> Option<T> {
    let names: Vec<&str> = network.machines.iter().map(String::as_str).collect();
    value.wrong(format!("[network] has no machine `{name}`: {}", did_you_mean(name, &names)));
    None
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oroshi_config::{Mistakes, toml};

    use super::*;

    fn read(text: &str) -> (Machines, Vec<String>) {
        let root = toml::parse(text).unwrap();
        let mistakes = Mistakes::typed();
        let machines = Machines::read(&Table::root(&root, &mistakes));
        (machines, mistakes.into_vec().iter().map(|mistake| format!("{}: {}", mistake.line, mistake.text)).collect())
    }

    #[test]
    fn links_are_alike_but_for_those_that_are_described() {
        let text = "[network]\nmachines = [\"near\", \"far\", \"load\"]\nrate = \"1Gbit\"\nmtu = 9000\n\
                    [[network.link]]\nmachines = [\"load\", \"far\"]\ndelay = \"20ms\"\nrate = \"unlimited\"\n";
        let (machines, mistakes) = read(text);
        assert_eq!(mistakes, Vec::<String>::new());
        let mut network = machines.network.clone().unwrap();
        let near = network.link_mut(0, 2).unwrap().quality;
        assert_eq!(near, LinkQuality { rate: Some(1_000_000_000), delay: None, mtu: Some(9000) });
        let far = network.link_mut(1, 2).unwrap().quality;
        assert_eq!(far, LinkQuality { rate: None, delay: Some(Duration::from_millis(20)), mtu: Some(9000) });
        assert_eq!((machines.of(Process::Server, None), machines.of(Process::Load, None)), (Some(0), Some(2)));
        let (none, _) = read("");
        assert_eq!((none.of(Process::Server, None), none.of(Process::Load, None)), (None, None));
    }

    #[test]
    fn every_mistake_is_told_with_its_line() {
        let text = "[network]\nmachines = [\"server\", \"load\"]\nrate = \"100MB\"\ndelay = \"2m\"\nmtu = 100\n\
                    speed = 1\n[[network.link]]\nmachines = [\"server\", \"laod\"]\n[[network.link]]\ndelay = \"x\"\n\
                    [[network.link]]\nmachines = [\"load\", \"load\"]\n\
                    [[network.link]]\nmachines = [\"load\", \"server\"]\n\
                    [[network.link]]\nmachines = [\"server\", \"load\"]\n";
        let (machines, mistakes) = read(text);
        assert!(machines.network.is_some(), "the names are known");
        for expected in [
            "3: `100MB` is no rate of a link: expected a number with bit, kbit, Mbit or Gbit",
            "4: `2m` is more than 60 s",
            "5: `100` is no MTU: expected 576 to 65535 bytes",
            "6: there is no such key: expected one of machines, rate, delay, mtu, link",
            "8: [network] has no machine `laod`: did you mean `load`?",
            "9: `machines` is missing: expected the two machines that it joins",
            "10: `x` is no time",
            "12: expected two different machines",
            "15: there is another [[network.link]] between the same machines",
        ] {
            assert!(mistakes.iter().any(|mistake| mistake.starts_with(expected)), "{expected}: {mistakes:#?}");
        }
        assert_eq!(mistakes.len(), 9, "{mistakes:#?}");
    }

    #[test]
    fn names_of_machines_are_those_of_interfaces() {
        for (names, expected) in [
            ("[\"a\"]", "expected 2 to 16 machines"),
            ("[\"a\", \"a\"]", "`a` is given twice"),
            ("[\"a\", \"lo\"]", "`lo` is no name of a machine"),
            ("[\"a\", \"b c\"]", "`b c` is no name of a machine"),
            ("[\"a\", \"sixteen-letters-\"]", "at most 15 in all"),
            ("[\"a\", \"1st\"]", "expected a letter"),
        ] {
            let (machines, mistakes) = read(&format!("[network]\nmachines = {names}\n"));
            assert!(mistakes.len() == 1 && mistakes[0].contains(expected), "{names}: {mistakes:?}");
            assert!(machines.network.is_none());
        }
        let (_, mistakes) = read("[network]\nrate = \"1Mbit\"\n");
        assert!(mistakes[0].starts_with("1: `machines` is missing"), "{mistakes:?}");
    }
}
