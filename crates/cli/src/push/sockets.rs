//! From a plan's doors and inherited sockets to what is listened on; and telling whoever started this that it serves.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

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
        let door = plan.doors.iter().position(|door| is_same(&door.address, &socket.name));
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

/// Whether an address of a plan is what a supervisor calls a socket: `:80` and `80`, `unix:/run/x` and `/run/x` are the same.
fn is_same(address: &str, name: &str) -> bool {
    let plain = |text: &str| {
        let text = text.strip_prefix("unix:").unwrap_or(text);
        text.strip_prefix(':').unwrap_or(text).to_owned()
    };
    plain(address) == plain(name)
}

/// Tells whoever started this process something, if it wants to hear (sd_notify(3)).
pub(super) fn notify(message: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    // One that does not listen misses it.
    if let (Ok(socket), Ok(address)) = (UnixDatagram::unbound(), address) {
        let _ = socket.set_nonblocking(true);
        let _ = socket.send_to_addr(message.as_bytes(), &address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supervisors_leave_out_what_is_plain() {
        for (address, name) in
            [(":9180", "9180"), ("9180", "9180"), ("127.0.0.1:1", "127.0.0.1:1"), ("unix:/a", "/a"), ("/a", "/a")]
        {
            assert!(is_same(address, name), "{address} {name}");
        }
        assert!(!is_same(":9180", "127.0.0.1:9180") && !is_same("/a", "/b"));
    }
}
