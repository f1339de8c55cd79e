//! A store that is asked in the background whether it is there, so that no request has to find out.

use std::rc::{Rc, Weak};

use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::{Idle, Sql};
use crate::answer::Failure;
use crate::breaker::Looks;
use crate::clock;
use crate::user::User;

impl Sql {
    /// Sees to it that somebody looks after the store, for as long as a user is kept away or it is unclear whether it answers.
    pub(super) fn watch(self: &Rc<Self>) {
        if !self.is_watched.replace(true) {
            spawn_local(look_after(Rc::downgrade(self), Looks::new(self.settings.breaker)));
        }
    }

    /// Whether queries took too long of which it is unclear why.
    fn is_unclear(&self) -> bool {
        self.users.borrow().values().any(|user| user.unclear.get() > 0)
    }

    /// Asks it once. A connection on which it answers is kept for whoever comes next.
    async fn look(self: &Rc<Self>) -> Result<(), Failure> {
        // An idle one may be from before; then all are.
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

    /// Unless there are as many as there may be.
    fn keep(&self, connection: super::Connection) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.places.available_permits() {
            idle.push(Idle { connection, since: clock::now() });
        }
    }

    /// What was found is what each user is told.
    fn found(self: &Rc<Self>, found: &Result<(), Failure>) {
        let users: Vec<_> = self.users.borrow().iter().map(|(user, it)| (user.clone(), Rc::clone(it))).collect();
        for (user, standing) in users {
            let unclear = standing.unclear.take();
            match found {
                Ok(()) => {
                    let is_back = standing.breaker.borrow().is_open();
                    let news = if is_back { standing.breaker.borrow_mut().succeeded() } else { None };
                    if let Some(news) = news {
                        self.tell(news, &user, None);
                    }
                }
                Err(failure) => self.blame(&user, &standing, unclear, failure),
            }
        }
    }

    fn blame(self: &Rc<Self>, user: &User, standing: &super::Standing, times: u32, failure: &Failure) {
        for _ in 0..times {
            self.count_failure(user, standing, failure);
        }
    }
}

/// Until nobody is kept away, or the store is not there any more.
async fn look_after(store: Weak<Sql>, mut looks: Looks) {
    loop {
        // What is unclear is looked at at once; what is left alone, after a pause.
        let Some(pause) = store.upgrade().map(|store| (!store.is_unclear()).then(|| looks.next(fastrand::f64())))
        else {
            return;
        };
        if let Some(pause) = pause {
            sleep(pause).await;
        }
        let Some(store) = store.upgrade() else { return };
        if store.is_left_alone() || store.is_unclear() {
            store.is_asked.set(true);
            let found = store.look().await;
            store.is_asked.set(false);
            store.found(&found);
        }
        if !store.is_left_alone() && !store.is_unclear() {
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
        // A server that refuses everybody: MySQL's error packet, its first, in place of a greeting.
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
        let found = runtime.block_on(Rc::new(Sql::new("db".into(), settings)).look());
        let words = "Access denied for user '...'@'localhost' (using password: ...)";
        assert_eq!(found, Err(Failure::Connect(words.into())));
    }
}
