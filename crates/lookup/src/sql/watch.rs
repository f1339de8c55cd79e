//! Probes a store in the background, so that no request has to.

use std::rc::{Rc, Weak};

use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::{Idle, Sql};
use crate::answer::Failure;
use crate::breaker::ProbeSchedule;
use crate::clock;
use crate::user::StoreUser;

impl Sql {
    /// Starts the watching task, which runs while a breaker is open or a timeout is unexplained.
    pub(super) fn watch(self: &Rc<Self>) {
        if !self.is_watched.replace(true) {
            spawn_local(probe_until_up(Rc::downgrade(self), ProbeSchedule::new(self.settings.breaker)));
        }
    }

    /// Whether some timeouts are unexplained.
    fn has_unexplained_timeouts(&self) -> bool {
        self.users.borrow().values().any(|user| user.timeouts.get() > 0)
    }

    /// Probes the store once. Keeps the connection that answered for the next query.
    async fn probe(self: &Rc<Self>) -> Result<(), Failure> {
        // An idle connection may be stale; if so, all idle ones are.
        if let Some(Idle { mut connection, .. }) = self.take_idle() {
            let limit = self.settings.connect_timeout;
            if let Ok(Ok(())) = timeout(limit, super::contained(connection.ping())).await {
                self.keep(connection);
                return Ok(());
            }
            self.idle.borrow_mut().clear();
        }
        let connection = self.connect().await.map_err(|failure| self.hidden(failure))?;
        self.keep(connection);
        Ok(())
    }

    /// Keeps the connection, unless the maximum is reached.
    fn keep(&self, connection: super::Connection) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.places.available_permits() {
            idle.push(Idle { connection, since: clock::now() });
        }
    }

    /// Reports a probe's result to all users.
    fn found(self: &Rc<Self>, found: &Result<(), Failure>) {
        let users: Vec<_> = self.users.borrow().iter().map(|(user, it)| (user.clone(), Rc::clone(it))).collect();
        for (user, standing) in users {
            let timeouts = standing.timeouts.take();
            match found {
                Ok(()) => {
                    let is_back = standing.breaker.borrow().is_open();
                    let change = if is_back { standing.breaker.borrow_mut().succeeded() } else { None };
                    if let Some(change) = change {
                        self.tell(change, &user, None);
                    }
                }
                Err(failure) => self.blame(&user, &standing, timeouts, failure),
            }
        }
    }

    fn blame(self: &Rc<Self>, user: &StoreUser, standing: &super::Standing, times: u32, failure: &Failure) {
        for _ in 0..times {
            self.count_failure(user, standing, failure);
        }
    }
}

/// Probes until no user needs it, or the store is gone.
async fn probe_until_up(store: Weak<Sql>, mut probes: ProbeSchedule) {
    loop {
        // Unexplained timeouts are probed at once; open breakers after a pause.
        let Some(pause) =
            store.upgrade().map(|store| (!store.has_unexplained_timeouts()).then(|| probes.next(fastrand::f64())))
        else {
            return;
        };
        if let Some(pause) = pause {
            sleep(pause).await;
        }
        let Some(store) = store.upgrade() else { return };
        if store.has_open_breaker() || store.has_unexplained_timeouts() {
            store.is_asked.set(true);
            let found = store.probe().await;
            store.is_asked.set(false);
            store.found(&found);
        }
        if !store.has_open_breaker() && !store.has_unexplained_timeouts() {
            store.is_watched.set(false);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::settings::SqlSettings;
    use oroshi_words::Secret;

    #[test]
    fn what_is_found_names_neither_the_user_nor_the_password() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("mysql.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        // A server that refuses everybody: MySQL's error packet, sent first, instead of a greeting.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let words = b"Access denied for user 'alice'@'localhost' (using password: hunter2)";
                let mut packet = vec![(3 + words.len()) as u8, 0, 0, 0, 0xff];
                packet.extend_from_slice(&1045_u16.to_le_bytes());
                packet.extend_from_slice(words);
                let _ = stream.write_all(&packet);
                let _ = stream.read(&mut [0; 64]);
            }
        });
        let url = format!("mysql://alice@localhost/d?socket={}", socket.display());
        let settings = SqlSettings { password: Some(Secret::new("hunter2")), ..SqlSettings::new(url) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let found = runtime.block_on(Rc::new(Sql::new("db".into(), settings)).probe());
        let words = "Access denied for user '...'@'localhost' (using password: ...)";
        assert_eq!(found, Err(Failure::Connect(words.into())));
    }
}
