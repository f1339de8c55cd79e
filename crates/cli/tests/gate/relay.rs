//! A relay between the gateway and a store, at a port, which can be told to misbehave.
#![allow(dead_code, unreachable_pub, reason = "a module of each test file, which uses its part")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What becomes of what the store says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    Pass,
    /// It comes so much later.
    Late(Duration),
    /// It does not come until there is another mode.
    Hold,
    /// Something else comes in its place.
    Garbage(&'static [u8]),
}

/// A relay for as long as the test runs.
pub struct Relay {
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    mode: Mode,
    /// The ends of the connections on the gateway's side.
    connections: Vec<TcpStream>,
    accepted: usize,
}

impl Relay {
    /// To a store that listens on a unix socket.
    pub fn to(socket: &Path) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Mutex::new(State { mode: Mode::Pass, connections: Vec::new(), accepted: 0 });
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        let (accepting, socket) = (Arc::clone(&shared), socket.to_owned());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&accepting);
                {
                    let mut state = shared.lock();
                    state.accepted += 1;
                    state.connections.push(client.try_clone().unwrap());
                }
                // Where nobody listens the client is closed.
                let Ok(store) = UnixStream::connect(&socket) else {
                    let _ = client.shutdown(Shutdown::Both);
                    continue;
                };
                let _ = client.set_nodelay(true);
                let (from, to) = (client.try_clone().unwrap(), store.try_clone().unwrap());
                std::thread::spawn(move || there(from, to));
                std::thread::spawn(move || back(store, client, &shared));
            }
        });
        Relay { port, shared }
    }

    /// Behaves so from now on, also with what has come already and is still here.
    pub fn set(&self, mode: Mode) {
        self.shared.lock().mode = mode;
        self.shared.changed.notify_all();
    }

    /// Closes all connections, as a store does with idle sessions. How many there were.
    pub fn cut(&self) -> usize {
        let cut = std::mem::take(&mut self.shared.lock().connections);
        cut.iter().filter(|connection| connection.shutdown(Shutdown::Both).is_ok()).count()
    }

    /// How many connections have come so far.
    pub fn accepted(&self) -> usize {
        self.shared.lock().accepted
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

fn there(mut from: TcpStream, mut to: UnixStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}

fn back(mut from: UnixStream, mut to: TcpStream, shared: &Shared) {
    let mut room = [0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut room) {
        let came = Instant::now();
        let mut state = shared.lock();
        let what = loop {
            state = match state.mode {
                Mode::Pass => break &room[..count],
                Mode::Garbage(garbage) => break garbage,
                Mode::Hold => shared.changed.wait(state).unwrap(),
                Mode::Late(by) => match by.checked_sub(came.elapsed()) {
                    None => break &room[..count],
                    Some(left) => shared.changed.wait_timeout(state, left).unwrap().0,
                },
            };
        };
        drop(state);
        if to.write_all(what).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
