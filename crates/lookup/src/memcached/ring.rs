//! Consistent hashing of keys to servers: adding or removing a server moves only that server's share of the keys.

use sha2::{Digest as _, Sha256};

/// A ring of servers. A key's server depends only on the servers' names, not on their order or state.
#[derive(Debug)]
pub(crate) struct Ring {
    /// Sorted points, each with its server; a share ends at its point.
    points: Vec<(u64, u32)>,
}

/// Points per server. With this many, shares differ by about a tenth.
const POINTS: u32 = 160;

impl Ring {
    pub(crate) fn new<'a>(servers: impl Iterator<Item = &'a str>) -> Self {
        let mut points: Vec<(u64, u32)> = (0..)
            .zip(servers)
            .flat_map(|(index, server)| {
                (0..POINTS).map(move |point| (hash(&[server.as_bytes(), &point.to_be_bytes()]), index))
            })
            .collect();
        points.sort_unstable();
        Ring { points }
    }

    /// Returns the index of a key's server.
    pub(crate) fn server(&self, key: &[u8]) -> usize {
        let hash = hash(&[key]);
        let at = self.points.partition_point(|&(point, _)| point < hash);
        self.points.get(at).or(self.points.first()).map_or(0, |&(_, server)| server as usize)
    }
}

/// Returns 64 bits that are the same in every process and every version.
fn hash(parts: &[&[u8]]) -> u64 {
    let mut digest = Sha256::new();
    parts.iter().for_each(|part| digest.update(part));
    u64::from_be_bytes(digest.finalize()[..8].try_into().expect("a digest has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(servers: &[&str]) -> Vec<String> {
        let ring = Ring::new(servers.iter().copied());
        (0..10_000).map(|key| servers[ring.server(format!("key-{key}").as_bytes())].to_owned()).collect()
    }

    #[test]
    fn a_server_more_takes_its_share_and_moves_nothing_else() {
        let (three, four) = (shares(&["a:1", "b:1", "c:1"]), shares(&["d:1", "c:1", "b:1", "a:1"]));
        for server in ["a:1", "b:1", "c:1"] {
            let share = three.iter().filter(|its| *its == server).count();
            assert!((2500..4200).contains(&share), "{server} has {share}");
        }
        let moved = three.iter().zip(&four).filter(|(before, after)| before != after).count();
        assert_eq!(moved, four.iter().filter(|its| *its == "d:1").count());
        assert!((1800..3200).contains(&moved), "{moved}");
    }

    /// Other versions of oroshi use the same servers.
    #[test]
    fn the_same_keys_go_to_the_same_servers_for_ever() {
        let ring = Ring::new(["127.0.0.1:11211", "127.0.0.1:11212", "unix:/run/memcached.sock"].into_iter());
        let servers: Vec<usize> = (0..16).map(|key| ring.server(format!("key-{key}").as_bytes())).collect();
        assert_eq!(servers, [0, 1, 2, 2, 2, 1, 2, 1, 2, 0, 0, 1, 1, 0, 0, 1]);
    }
}
