//! From a plan's doors and inherited sockets to what is listened on.

use std::io;

use oroshi_net::inherit::Inherited;
use oroshi_push::{Bound, Door, Plan, Serves};

use super::Error;

/// What a plan's doors become.
///
/// An inherited socket takes the place of the door at its address. One that is at none serves what its name (systemd's
/// FileDescriptorName) says: `public`, `admin` or `everything`; and everything, where the configuration names no place at all.
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

/// Where a door listens, and what for, in words.
pub(super) fn shown(bound: &Bound) -> String {
    let serves = match bound.serves {
        Serves::Everything => "everything",
        Serves::Sessions => "public: connecting and polling",
        Serves::Admin => "admin: publishing and status",
    };
    let address = bound.listeners.first().map(|listener| listener.local_address().url()).unwrap_or_default();
    format!("listening on {address} ({serves})")
}

/// The doors through which anybody on the network can publish.
pub(super) fn open_doors(plan: &Plan) -> impl Iterator<Item = &Door> {
    let is_local = |door: &&Door| door.address.starts_with("unix:") || door.address.starts_with(['/', '@']);
    let open = plan.doors.iter().filter(|door| door.serves == Serves::Everything && plan.token.is_none());
    open.filter(move |door| !is_local(door))
}
