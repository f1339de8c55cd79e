//! The results that agents keep of a run whose coordinator has ended.

use oroshi_bench::part::Parts;
use oroshi_net::monotonic_ns;

use crate::bus::{Arrival, Bus};
use crate::clock::Offset;
use crate::lead::{BEFORE, LeadError, add, finished};
use crate::parcel::{Assembly, PLAN_BYTES, WINDOW};
use crate::wire::{self, Direction, Down, FromAgent, Job, Key, ToAgent, Up};

/// How long agents may take to say that they keep a run, and the longest time without anything new, nanoseconds.
const COLLECTING: u64 = 3_000_000_000;
const SENDING: u64 = 30_000_000_000;
/// How often questions without an answer are asked again, nanoseconds.
const AGAIN: u64 = 500_000_000;

/// Collects what agents keep of a run whose coordinator ended.
///
/// # Errors
/// No agent keeps the run.
pub fn collect(bus: &Bus, key: &Key, group: &str, run: u64) -> Result<Kept, LeadError> {
    let began = monotonic_ns();
    let mut collection = Collection { run, keepers: Vec::new(), job: None, assembly: None, heard: began };
    let mut asked = 0;
    loop {
        let now = monotonic_ns();
        if collection.is_done(now - began) || now - collection.heard > SENDING {
            break;
        }
        let mut messages = Vec::new();
        if now - asked >= AGAIN {
            asked = now;
            messages = collection.ask();
        }
        if let Ok(Arrival::Frame(frame, _)) = bus.arrivals().recv_timeout(BEFORE)
            && let Ok(up) = wire::open::<Up>(key, Direction::Up, group, &frame)
        {
            messages.extend(collection.take(up, now));
        }
        for down in messages {
            let to = collection.keepers.iter().find(|keeper| keeper.session == down.session);
            bus.send(to.map(|keeper| &*keeper.name), wire::seal(key, Direction::Down, group, &down)?);
        }
    }
    collection.kept()
}

/// An agent that keeps a part of the run.
#[derive(Debug)]
struct Keeper {
    name: String,
    session: u64,
    /// Its part, and how many there are.
    index: usize,
    of: usize,
    wanted: u32,
    deltas: Vec<Vec<u8>>,
}

/// A run that is being collected.
struct Collection {
    run: u64,
    keepers: Vec<Keeper>,
    job: Option<Box<Job>>,
    /// The job, while it comes in pieces from the keeper with this session.
    assembly: Option<(u64, Assembly)>,
    /// When something new came.
    heard: u64,
}

impl Collection {
    fn knows_all(&self) -> bool {
        self.keepers.first().is_some_and(|keeper| self.keepers.len() == keeper.of)
    }

    fn is_done(&self, elapsed: u64) -> bool {
        let has_all = self.keepers.iter().all(|keeper| keeper.deltas.len() as u32 == keeper.wanted);
        let has_job = self.keepers.is_empty() || self.job.is_some();
        has_all && has_job && (self.knows_all() || elapsed > COLLECTING)
    }

    /// Asks for all that is missing.
    fn ask(&self) -> Vec<Down> {
        let run = self.run;
        let who = (!self.knows_all()).then_some(Down { run, session: 0, body: ToAgent::Collect });
        let beat = |keeper: &Keeper| {
            let body = ToAgent::Beat(keeper.deltas.len() as u32);
            Down { run, session: keeper.session, body }
        };
        who.into_iter().chain(self.keepers.iter().map(beat)).chain(self.ask_for_pieces()).collect()
    }

    fn ask_for_pieces(&self) -> Option<Down> {
        let (session, assembly) = self.assembly.as_ref()?;
        Some(Down { run: self.run, session: *session, body: ToAgent::Wants(assembly.next()) })
    }

    /// Takes a message of an agent, and returns the next questions.
    fn take(&mut self, up: Up, now: u64) -> Option<Down> {
        let Up { run, session, body } = up;
        if run != self.run {
            return None;
        }
        let keeper = self.keepers.iter_mut().find(|keeper| keeper.session == session);
        let mut question = None;
        match (body, keeper) {
            (FromAgent::Keeps(name, job, wanted), None) => {
                let (index, of) = (job.index, job.of);
                self.keepers.push(Keeper { name, session, index, of, wanted, deltas: Vec::new() });
                self.job.get_or_insert(job);
            }
            (FromAgent::KeepsLarge(name, index, of, parcel, wanted), None) => {
                self.keepers.push(Keeper { name, session, index, of, wanted, deltas: Vec::new() });
                // The job of one is that of all.
                if self.job.is_none() && self.assembly.is_none() {
                    self.assembly = Assembly::new(parcel, PLAN_BYTES).ok().map(|assembly| (session, assembly));
                    question = self.ask_for_pieces();
                }
            }
            (FromAgent::Piece(number, piece), Some(keeper)) => {
                let (_, assembly) = self.assembly.as_mut().filter(|(from, _)| *from == session)?;
                match assembly.take(number, &piece) {
                    Ok(Some(job)) => {
                        self.job = Some(Box::new(Job { index: keeper.index, of: keeper.of, ..job }));
                        self.assembly = None;
                    }
                    Ok(None) if assembly.next() == number + 1 && assembly.next().is_multiple_of(WINDOW) => {
                        question = self.ask_for_pieces();
                    }
                    Ok(None) => {}
                    Err(_) => self.assembly = None,
                }
            }
            (FromAgent::Delta(number, delta), Some(keeper)) if number as usize == keeper.deltas.len() => {
                keeper.deltas.push(delta);
            }
            _ => return None,
        }
        self.heard = now;
        question
    }

    fn kept(mut self) -> Result<Kept, LeadError> {
        self.keepers.sort_by_key(|keeper| keeper.index);
        match self.job {
            Some(job) => Ok(Kept { run: self.run, job, keepers: self.keepers }),
            None => Err(LeadError::NotKept(format!("{:x}", self.run))),
        }
    }
}

/// The results that agents keep of a run whose coordinator ended.
#[derive(Debug)]
pub struct Kept {
    run: u64,
    job: Box<Job>,
    keepers: Vec<Keeper>,
}

impl Kept {
    /// The job of one of the parts.
    #[must_use]
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Adds it up. `whole`: of the run's plan, with nothing added yet.
    ///
    /// # Errors
    /// There is no record.
    pub fn add_up<W: Parts>(self, mut whole: W) -> Result<W::Record, LeadError> {
        let mut parts: Vec<(String, Offset)> =
            (0..self.job.of).map(|index| (format!("number {}", index + 1), Offset::default())).collect();
        let mut notes =
            vec![format!("collected from what the agents keep of run {:x}, whose coordinator had ended", self.run)];
        for keeper in &self.keepers {
            let Some(part) = parts.get_mut(keeper.index) else { continue };
            part.0.clone_from(&keeper.name);
            if keeper.deltas.iter().any(|bytes| add(&mut whole, keeper.index, bytes).is_err()) {
                notes.push(format!("{} sent counts that contradict themselves", keeper.name));
            }
        }
        finished(whole, &parts, notes)?.ok_or(LeadError::NothingHeard)
    }
}
