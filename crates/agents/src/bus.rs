//! The connection to NATS, on a thread of its own.
//!
//! The client connects again by itself, and keeps what it is to send meanwhile. Every message may come late, twice or
//! never: the state machines expect that.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_util::StreamExt as _;
use oroshi_nats::{Client, Event};
use oroshi_net::monotonic_ns;
use oroshi_words::Secret;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::wire::FRAME_BYTES;

/// How long the client may take to accept a message.
const STUCK: Duration = Duration::from_millis(500);

/// Where NATS is, and the subjects of a group of agents.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The servers: `nats://host:port`, several with commas.
    pub nats: Secret,
    /// The group, a part of the subjects.
    pub group: String,
    /// The agent's name; `None`: a coordinator.
    pub agent: Option<String>,
}

/// What comes from the connection.
#[derive(Debug)]
pub enum Arrival {
    /// A frame, and when it came: nanoseconds of the monotonic clock.
    Frame(Vec<u8>, u64),
    /// Something about the connection, for people.
    Note(String),
    /// The connection is there again (true), or is lost.
    Link(bool),
    /// Somebody asks to look at the state: see [`Bus::waker`].
    Woken,
}

/// A connection to the bus. Dropping it ends the connection, once all has been sent.
#[derive(Debug)]
pub struct Bus {
    frames: Option<UnboundedSender<(String, Vec<u8>)>>,
    arrivals: Receiver<Arrival>,
    waker: Sender<Arrival>,
    thread: Option<JoinHandle<()>>,
}

/// The bus cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// Start NATS, or correct --nats.
    #[error("cannot connect to NATS: {0}")]
    Connect(String),
    /// The system has no room for a thread.
    #[error("no thread can be started")]
    Thread(#[source] io::Error),
}

/// The subject's end for all agents of a group; no agent may have this name.
const ALL: &str = "all";

/// Checks the name of a group or an agent: a part of a subject.
///
/// # Errors
/// The text says what is expected.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match !name.is_empty() && name != ALL && name.len() <= 64 && name.chars().all(is_plain) {
        true => Ok(()),
        false => Err(format!("`{name}`: expected 1 to 64 letters, digits, - and _; `{ALL}` is taken")),
    }
}

impl Bus {
    /// Connects as an agent, or as a coordinator.
    ///
    /// # Errors
    /// No server can be reached.
    pub fn connect(settings: Settings) -> Result<Self, BusError> {
        let (frames, sending) = unbounded_channel();
        let (waker, arrivals) = channel();
        let (connected, connecting) = channel();
        let notes = waker.clone();
        let thread = thread::Builder::new().name("agents-nats".to_owned()).spawn(move || {
            let runtime = match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
                Ok(runtime) => runtime,
                Err(error) => return drop(connected.send(Err(error.to_string()))),
            };
            runtime.block_on(async {
                match connect(&settings, &notes).await {
                    Ok(client) => {
                        let _ = connected.send(Ok(()));
                        carry(&client, &settings, sending, &notes).await;
                    }
                    Err(why) => drop(connected.send(Err(why))),
                }
            });
            runtime.shutdown_background();
        });
        let thread = thread.map_err(BusError::Thread)?;
        match connecting.recv() {
            Ok(Ok(())) => Ok(Self { frames: Some(frames), arrivals, waker, thread: Some(thread) }),
            Ok(Err(why)) => Err(BusError::Connect(why)),
            Err(_) => Err(BusError::Connect("the thread ended".to_owned())),
        }
    }

    /// Sends a frame: an agent to its coordinator, a coordinator to the agent `to`, or without a name to all.
    pub fn send(&self, to: Option<&str>, frame: Vec<u8>) {
        if let Some(frames) = &self.frames {
            // The thread ends with the last sender only.
            let _ = frames.send((to.unwrap_or(ALL).to_owned(), frame));
        }
    }

    /// What has come.
    #[must_use]
    pub fn arrivals(&self) -> &Receiver<Arrival> {
        &self.arrivals
    }

    /// Returns a sender whose arrivals wake the receiver.
    #[must_use]
    pub fn waker(&self) -> Sender<Arrival> {
        self.waker.clone()
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        self.frames = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn connect(settings: &Settings, notes: &Sender<Arrival>) -> Result<Client, String> {
    let notes = notes.clone();
    let was_lost = AtomicBool::new(false);
    let options = oroshi_nats::options(match &settings.agent {
        Some(name) => format!("oroshi agent {name}"),
        None => "oroshi bench".to_owned(),
    })
    .event_callback(move |event| {
        let (link, note) = match event {
            Event::Disconnected => {
                was_lost.store(true, Ordering::Relaxed);
                (Some(false), Some("the connection to NATS is lost".to_owned()))
            }
            Event::Connected if was_lost.swap(false, Ordering::Relaxed) => {
                (Some(true), Some("connected to NATS again".to_owned()))
            }
            Event::ServerError(error) => (None, Some(format!("NATS says: {error}"))),
            Event::SlowConsumer(_) => {
                (None, Some("messages of NATS were lost: this machine does not keep up".to_owned()))
            }
            _ => (None, None),
        };
        // Nobody listens any more only when the process ends.
        for arrival in link.map(Arrival::Link).into_iter().chain(note.map(Arrival::Note)) {
            let _ = notes.send(arrival);
        }
        std::future::ready(())
    });
    oroshi_nats::connect(&settings.nats, options).await
}

async fn carry(
    client: &Client,
    settings: &Settings,
    mut sending: UnboundedReceiver<(String, Vec<u8>)>,
    arrivals: &Sender<Arrival>,
) {
    let prefix = format!("oroshi.agents.{}", settings.group);
    let own = match &settings.agent {
        Some(name) => [format!("{prefix}.to.{ALL}"), format!("{prefix}.to.{name}")],
        None => [format!("{prefix}.from.*"), format!("{prefix}.from")],
    };
    let [first, second] = own;
    let (Ok(first), Ok(second)) = (client.subscribe(first).await, client.subscribe(second).await) else { return };
    let mut messages = futures_util::stream::select(first, second);
    loop {
        tokio::select! {
            frame = sending.recv() => {
                let Some((to, frame)) = frame else { break };
                let subject = match &settings.agent {
                    Some(name) => format!("{prefix}.from.{name}"),
                    None => format!("{prefix}.to.{to}"),
                };
                // A client without a connection takes some messages, and then none. Whoever sent them sends them again.
                let sent = tokio::time::timeout(STUCK, client.publish(subject, frame.into())).await;
                if sent.is_err() {
                    while sending.try_recv().is_ok() {}
                }
            }
            message = messages.next() => {
                let Some(message) = message else { break };
                let now = monotonic_ns();
                if message.payload.len() <= FRAME_BYTES {
                    let _ = arrivals.send(Arrival::Frame(message.payload.to_vec(), now));
                }
            }
        }
    }
    // The last frames are on their way when this returns, if NATS is there.
    let _ = tokio::time::timeout(STUCK, client.flush()).await;
}
