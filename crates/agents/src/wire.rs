//! Messages between a coordinator and its agents: signed, compressed, bounded.
//!
//! A frame is a version byte, a signature, and a payload: postcard, compressed by DEFLATE (RFC 1951). The signature is
//! an HMAC-SHA256 (RFC 2104) under the shared key, or the sender's public key and its Ed25519 signature (RFC 8032). It
//! covers the direction and the group, so that no frame can be replayed in another place. Messages to an agent name its
//! session. The agent draws it anew after each run, so that an old plan cannot
//! start a load again.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::clock::ClockId;
use crate::nkey::{self, Public, Seed};
use crate::parcel::Parcel;

/// The version of this protocol: both sides must have the same. The second one has signatures by nkeys.
pub const VERSION: u8 = 5;
const VERSION_NKEYS: u8 = 6;
/// The largest frame, bytes: below NATS's default limit of 1 MiB.
pub const FRAME_BYTES: usize = 1_000_000;
/// The largest payload after decompression, bytes.
const PAYLOAD_BYTES: u64 = 16 << 20;
/// The shortest key, bytes.
pub const KEY_BYTES: usize = 16;
const HMAC: usize = 32;

/// The key that signs frames, and the keys that are accepted.
#[derive(Clone)]
pub struct Key(Kind);

#[derive(Clone)]
enum Kind {
    /// The key that the coordinator and all agents share.
    Shared(Vec<u8>),
    /// This side's own nkey, and the public keys of those whose frames it accepts.
    Nkeys(Arc<Seed>, Arc<[Public]>),
}

impl Key {
    /// Takes a key. White space at its ends does not count.
    ///
    /// # Errors
    /// The key is shorter than [`KEY_BYTES`].
    pub fn new(bytes: &[u8]) -> Result<Self, WireError> {
        let key = bytes.trim_ascii();
        if key.len() < KEY_BYTES { Err(WireError::ShortKey) } else { Ok(Self(Kind::Shared(key.to_owned()))) }
    }

    /// Signs with an nkey, and accepts frames signed by these.
    #[must_use]
    pub fn nkeys(own: Seed, accepted: Vec<Public>) -> Self {
        Self(Kind::Nkeys(Arc::new(own), accepted.into()))
    }

    fn version(&self) -> u8 {
        match &self.0 {
            Kind::Shared(_) => VERSION,
            Kind::Nkeys(..) => VERSION_NKEYS,
        }
    }

    /// Bytes of a signature in a frame.
    fn signature_bytes(&self) -> usize {
        match &self.0 {
            Kind::Shared(_) => HMAC,
            Kind::Nkeys(..) => nkey::PUBLIC + nkey::SIGNATURE,
        }
    }

    fn sign(&self, signed: &[u8]) -> Vec<u8> {
        match &self.0 {
            Kind::Shared(key) => mac(key, signed).finalize().into_bytes().to_vec(),
            Kind::Nkeys(own, _) => [&own.public().0[..], &own.sign(signed)].concat(),
        }
    }

    fn verifies(&self, signed: &[u8], signature: &[u8]) -> bool {
        match &self.0 {
            Kind::Shared(key) => mac(key, signed).verify_slice(signature).is_ok(),
            Kind::Nkeys(_, accepted) => {
                let Some((public, signature)) = signature.split_at_checked(nkey::PUBLIC) else { return false };
                accepted.iter().find(|key| key.0 == public).is_some_and(|key| key.verifies(signed, signature))
            }
        }
    }
}

fn mac(key: &[u8], signed: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(signed);
    mac
}

/// The content that a signature covers.
fn signed(version: u8, direction: Direction, group: &str, payload: &[u8]) -> Vec<u8> {
    [&[version, direction as u8][..], &(group.len() as u64).to_be_bytes(), group.as_bytes(), payload].concat()
}

/// Shows nothing of the key.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(***)")
    }
}

/// Who sends a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A coordinator.
    Down = 1,
    /// An agent.
    Up = 2,
}

/// A message to agents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Down {
    /// The run.
    pub run: u64,
    /// The agent's session; 0: all agents of the group.
    pub session: u64,
    /// The message.
    pub body: ToAgent,
}

/// What a coordinator says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToAgent {
    /// Which agents are there?
    Who,
    /// Prepare this part of a run.
    Plan(Box<Job>),
    /// Asks for the agent's clock. The number comes back.
    Ping(u64),
    /// Start at this moment of the agent's monotonic clock, nanoseconds.
    Start(u64),
    /// The coordinator lives, and has this many of the agent's deltas.
    Beat(u32),
    /// The messages of the publishing agent. The others need them; to the publisher it is the confirmation.
    Published(Vec<u8>),
    /// End the load.
    Stop,
    /// Send what you keep of the run again, from the first delta on.
    Collect,
    /// Prepare this part of a run: its number, how many there are, and the plan, which comes in pieces.
    Large(usize, usize, Parcel),
    /// A piece of the plan.
    Piece(u32, Vec<u8>),
    /// Send the pieces of the plan that you keep, from this one on.
    Wants(u32),
}

/// A part of a run, as words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The part's number, and how many there are.
    pub index: usize,
    /// See `index`.
    pub of: usize,
    /// Threads of each part.
    pub threads: usize,
    /// The arguments of the load's command. Names of files are numbers of `files`.
    pub words: Vec<String>,
    /// The files that the words name: each one's name without its folder, and its content.
    pub files: Vec<(String, Vec<u8>)>,
    /// The files beside a script: the path that the script has, and the number in `files`.
    pub beside: Vec<(String, usize)>,
    /// The state that a script's `initialize` left for all parts, or the number of a run on a hub.
    pub start: Option<Vec<u8>>,
}

/// A message from an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Up {
    /// The run; 0 if the message is about none.
    pub run: u64,
    /// The agent's session.
    pub session: u64,
    /// The message.
    pub body: FromAgent,
}

/// What an agent says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromAgent {
    /// It is there.
    Here {
        /// Its name.
        name: String,
        /// Whether it has a run.
        busy: bool,
        /// The clock that it reads, where that has a name.
        clock: Option<ClockId>,
    },
    /// It has the plan, and prepares.
    Preparing,
    /// All connections are open.
    Ready,
    /// It does not carry out the plan, or could not. Each line is a mistake.
    Refused(Vec<String>),
    /// Its clock, with the number of the question.
    Pong(u64, u64),
    /// It knows when to start.
    Started,
    /// The messages that it has published, for the other agents.
    Published(Vec<u8>),
    /// A delta with its number, from 0.
    Delta(u32, Vec<u8>),
    /// It keeps a run: its name, its job, and the number of its deltas.
    Keeps(String, Box<Job>, u32),
    /// It needs the pieces of the plan from this one on.
    Wants(u32),
    /// As `Keeps`: its name, its part, how many there are, the job in pieces, and the number of its deltas.
    KeepsLarge(String, usize, usize, Parcel, u32),
    /// A piece of the job that it keeps.
    Piece(u32, Vec<u8>),
}

/// A frame is not for this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Install the same version of oroshi everywhere.
    #[error("it speaks another version of the protocol")]
    Version,
    /// Give all of them the same key.
    #[error("its signature is not by a key that is accepted here")]
    Signature,
    /// A defect, or garbage.
    #[error("it cannot be read")]
    Garbage,
    /// A defect.
    #[error("it has more than {FRAME_BYTES} bytes")]
    TooLarge,
    /// Make the plan's files smaller, or permit an agent more (`--max-plan`).
    #[error("the plan has too many bytes")]
    LargePlan,
    /// Choose a longer key.
    #[error("the key has less than {KEY_BYTES} bytes")]
    ShortKey,
}

/// Makes a frame.
///
/// # Errors
/// The message is too large.
pub fn seal<T: Serialize>(key: &Key, direction: Direction, group: &str, message: &T) -> Result<Vec<u8>, WireError> {
    let plain = postcard::to_stdvec(message).map_err(|_| WireError::Garbage)?;
    let head = 1 + key.signature_bytes();
    let mut frame = vec![0; head];
    frame[0] = key.version();
    frame.extend(deflate(&plain)?);
    if plain.len() as u64 > PAYLOAD_BYTES || frame.len() > FRAME_BYTES {
        return Err(WireError::TooLarge);
    }
    let signature = key.sign(&signed(frame[0], direction, group, &frame[head..]));
    frame[1..head].copy_from_slice(&signature);
    Ok(frame)
}

/// Reads a frame whose signature is right.
///
/// # Errors
/// Nothing of a frame with a wrong signature is read.
pub fn open<T: DeserializeOwned>(key: &Key, direction: Direction, group: &str, frame: &[u8]) -> Result<T, WireError> {
    let (&version, rest) = frame.split_first().ok_or(WireError::Garbage)?;
    if version != key.version() {
        return Err(if matches!(version, VERSION | VERSION_NKEYS) { WireError::Signature } else { WireError::Version });
    }
    let (signature, payload) = rest.split_at_checked(key.signature_bytes()).ok_or(WireError::Garbage)?;
    if !key.verifies(&signed(version, direction, group, payload), signature) {
        return Err(WireError::Signature);
    }
    decode(&inflate(payload, PAYLOAD_BYTES)?)
}

/// Compresses.
pub(crate) fn deflate(plain: &[u8]) -> Result<Vec<u8>, WireError> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(plain).and_then(|()| encoder.finish()).map_err(|_| WireError::Garbage)
}

/// Decompresses what has at most `most` bytes then.
pub(crate) fn inflate(bytes: &[u8], most: u64) -> Result<Vec<u8>, WireError> {
    let mut plain = Vec::new();
    DeflateDecoder::new(bytes).take(most + 1).read_to_end(&mut plain).map_err(|_| WireError::Garbage)?;
    if plain.len() as u64 > most { Err(WireError::TooLarge) } else { Ok(plain) }
}

/// Encodes what travels within a message.
///
/// # Errors
/// It cannot be encoded: a defect.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, WireError> {
    postcard::to_stdvec(value).map_err(|_| WireError::Garbage)
}

/// Decodes what [`encode`] made.
///
/// # Errors
/// The bytes are something else.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    postcard::from_bytes(bytes).map_err(|_| WireError::Garbage)
}

/// Returns a number that nobody can guess, and that is not 0.
///
/// # Panics
/// When the kernel has no random numbers, which Linux excludes.
#[must_use]
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).expect("the kernel has random numbers");
    u64::from_ne_bytes(bytes).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn only_whole_frames_under_the_key_are_read() {
        let (ours, theirs) = (key("0123456789abcdef"), key("0123456789abcdeg"));
        let message = Down { run: 7, session: 9, body: ToAgent::Start(5) };
        let frame = seal(&ours, Direction::Down, "lab", &message).unwrap();
        assert_eq!(open::<Down>(&ours, Direction::Down, "lab", &frame), Ok(message));
        assert_eq!(open::<Down>(&theirs, Direction::Down, "lab", &frame), Err(WireError::Signature));
        assert_eq!(open::<Down>(&ours, Direction::Up, "lab", &frame), Err(WireError::Signature));
        assert_eq!(open::<Down>(&ours, Direction::Down, "other", &frame), Err(WireError::Signature));
        for cut in 0..frame.len() {
            assert!(open::<Down>(&ours, Direction::Down, "lab", &frame[..cut]).is_err());
            let mut changed = frame.clone();
            changed[cut] ^= 1;
            assert!(open::<Down>(&ours, Direction::Down, "lab", &changed).is_err());
        }
        assert!(Key::new(b" short \n").is_err() && format!("{ours:?}") == "Key(***)");
    }

    #[test]
    fn frames_by_nkeys_are_taken_from_accepted_senders_only() {
        let seeds = [
            "SAAPN4W3EG6KCJGUQTKTJ5GSB5NHK5CHAJL4DBGFUM3HHROI4XUEP4OBK4",
            "SXAHGC56LJFTSRXFC653AT7XZU6WGYIXU4XFPMCT62GGHFLUCSPVYP764M",
        ];
        // The second one is of a kind that is not in use here.
        assert!(Seed::parse(seeds[1]).is_err());
        let (one, public) = (|| Seed::parse(seeds[0]).unwrap(), Seed::parse(seeds[0]).unwrap().public());
        let accepts = Key::nkeys(one(), vec![public]);
        let message = Up { run: 1, session: 2, body: FromAgent::Ready };
        let frame = seal(&accepts, Direction::Up, "lab", &message).unwrap();
        assert_eq!(open::<Up>(&accepts, Direction::Up, "lab", &frame), Ok(message));
        assert_eq!(open::<Up>(&accepts, Direction::Down, "lab", &frame), Err(WireError::Signature));
        assert_eq!(open::<Up>(&accepts, Direction::Up, "other", &frame), Err(WireError::Signature));
        let nobody = Key::nkeys(one(), Vec::new());
        assert_eq!(open::<Up>(&nobody, Direction::Up, "lab", &frame), Err(WireError::Signature));
        let shared = key("0123456789abcdef");
        assert_eq!(open::<Up>(&shared, Direction::Up, "lab", &frame), Err(WireError::Signature));
        for cut in 0..frame.len() {
            assert!(open::<Up>(&accepts, Direction::Up, "lab", &frame[..cut]).is_err());
            let mut changed = frame.clone();
            changed[cut] ^= 1;
            assert!(open::<Up>(&accepts, Direction::Up, "lab", &changed).is_err());
        }
    }

    #[test]
    fn frames_are_bounded_before_and_after_decompression() {
        let key = key("0123456789abcdef");
        let job = |bytes| Job { files: vec![("a".into(), bytes)], ..Job::default() };
        let noise: Vec<u8> = (0..FRAME_BYTES + 100).map(|_| fastrand::u8(..)).collect();
        assert_eq!(seal(&key, Direction::Down, "g", &job(noise)), Err(WireError::TooLarge));
        let zeros = vec![0; PAYLOAD_BYTES as usize + 1];
        assert_eq!(seal(&key, Direction::Down, "g", &job(zeros)), Err(WireError::TooLarge));
    }
}
