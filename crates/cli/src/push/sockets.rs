//! Turns a plan's listeners and inherited sockets into open sockets.

use std::io;

use oroshi_net::inherit::Inherited;
use oroshi_push::{Bound, Plan, Serves};

use super::Error;

/// Matches a plan's listeners with the inherited sockets.
///
/// An inherited socket replaces the listener at its address. A socket without a listener serves what its name
/// (systemd's FileDescriptorName) says: `public`, `admin` or `everything`. Without any configured listener it
/// serves everything.
pub(super) fn bind(plan: &Plan, inherited: Vec<Inherited>, listens: bool) -> Result<Vec<Bound>, Error> {
    let mut plan = plan.clone();
    let mut all = Vec::new();
    for socket in inherited {
        let door = plan.doors.iter().position(|door| socket.is_at(&door.address));
        let serves = match (door, &*socket.name) {
            (Some(at), _) => plan.doors.remove(at).serves,
            (None, "public") => Serves::Sessions,
            (None, "admin") => Serves::Admin,
            (None, "everything") => Serves::Everything,
            (None, _) if !listens => Serves::Everything,
            (None, name) => {
                let (name, variable) = (name.to_owned(), socket.variable);
                return Err(Error::Stranger { name, variable });
            }
        };
        let clones = (1..plan.threads).map(|_| socket.listener.try_clone());
        let mut listeners: Vec<_> = clones.collect::<io::Result<_>>().map_err(Error::Share)?;
        listeners.push(socket.listener);
        all.push(Bound { serves, listeners });
    }
    all.extend(Bound::bind(&plan)?);
    Ok(all)
}

/// Describes a listener: its address, and what it serves.
pub(super) fn shown(bound: &Bound) -> String {
    let serves = match bound.serves {
        Serves::Everything => "everything",
        Serves::Sessions => "public: connecting and polling",
        Serves::Admin => "admin: publishing and status",
    };
    format!("listening on {} ({serves})", address(bound))
}

/// Returns warnings about sockets at which any program can publish: by TCP, without a token.
pub(super) fn open_to_others(plan: &Plan, all: &[Bound]) -> Vec<String> {
    let is_tcp = |bound: &&Bound| {
        bound.listeners.first().is_some_and(|listener| matches!(listener.address(), oroshi_net::Peer::Tcp(_)))
    };
    let warning = |bound: &Bound| {
        let address = address(bound);
        match bound.serves {
            Serves::Sessions => None,
            Serves::Everything => Some(format!(
                "every client that reaches {address} may publish: keep it behind a proxy or a firewall, set auth.token-file, or give publishers a \
                 listener of their own (listen.admin)"
            )),
            Serves::Admin => Some(format!(
                "every program on this machine may publish at {address}: set auth.token-file, or listen on a unix socket"
            )),
        }
    };
    let open = all.iter().filter(|_| plan.token.is_none()).filter(is_tcp);
    open.filter_map(warning).collect()
}

fn address(bound: &Bound) -> String {
    bound.listeners.first().map(|listener| listener.local_address().shown("http")).unwrap_or_default()
}
