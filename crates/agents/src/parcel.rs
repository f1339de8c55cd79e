//! Jobs that are larger than a message: they travel in pieces, which the receiver asks for in turn.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::wire::{self, Job, WireError};

/// The largest plan, bytes before compression.
pub const PLAN_BYTES: u64 = 256 << 20;
/// Bytes of a piece: below [`FRAME_BYTES`](wire::FRAME_BYTES), also when they cannot be compressed any more.
const PIECE: usize = 900_000;
/// Pieces that are under way at a time.
pub(crate) const WINDOW: u32 = 4;

/// A job on its way: what its receiver knows before the first piece.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parcel {
    /// Bytes of the job, and of all pieces together.
    pub plain: u64,
    /// See `plain`.
    bytes: u64,
    /// SHA-256 of all pieces together.
    hash: [u8; 32],
}

/// A job as it travels.
#[derive(Clone, Debug, PartialEq)]
pub enum Packed {
    /// In one message.
    Whole(Box<Job>),
    /// In pieces.
    Pieces(Parcel, Vec<Vec<u8>>),
}

impl Packed {
    /// Packs a job.
    ///
    /// # Errors
    /// It has more than [`PLAN_BYTES`].
    pub fn new(job: Job) -> Result<Self, WireError> {
        let plain = wire::encode(&job)?;
        if plain.len() as u64 > PLAN_BYTES {
            return Err(WireError::LargePlan);
        }
        let bytes = wire::deflate(&plain)?;
        if bytes.len() <= PIECE && plain.len() <= PIECE * 10 {
            return Ok(Self::Whole(Box::new(job)));
        }
        let parcel =
            Parcel { plain: plain.len() as u64, bytes: bytes.len() as u64, hash: Sha256::digest(&bytes).into() };
        Ok(Self::Pieces(parcel, bytes.chunks(PIECE).map(<[u8]>::to_vec).collect()))
    }
}

/// A parcel of which some pieces are here.
#[derive(Clone, Debug)]
pub struct Assembly {
    parcel: Parcel,
    bytes: Vec<u8>,
    next: u32,
}

impl Assembly {
    /// Begins with no piece.
    ///
    /// # Errors
    /// The job has more than `most` bytes.
    pub fn new(parcel: Parcel, most: u64) -> Result<Self, WireError> {
        if parcel.plain > most || parcel.bytes > most {
            return Err(WireError::LargePlan);
        }
        Ok(Self { parcel, bytes: Vec::new(), next: 0 })
    }

    /// The piece that is to come next.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Takes a piece, unless another one is next. Returns the job after the last one.
    ///
    /// # Errors
    /// The pieces are not those of the parcel.
    pub fn take(&mut self, number: u32, piece: &[u8]) -> Result<Option<Job>, WireError> {
        if number != self.next {
            return Ok(None);
        }
        let is_last = (self.bytes.len() + piece.len()) as u64 == self.parcel.bytes;
        if piece.len() > PIECE || (piece.len() < PIECE && !is_last) {
            return Err(WireError::Garbage);
        }
        self.next += 1;
        self.bytes.extend_from_slice(piece);
        if !is_last {
            let is_short = (self.bytes.len() as u64) < self.parcel.bytes;
            return if is_short { Ok(None) } else { Err(WireError::Garbage) };
        }
        if Sha256::digest(&self.bytes)[..] != self.parcel.hash {
            return Err(WireError::Garbage);
        }
        let plain = wire::inflate(&self.bytes, self.parcel.plain)?;
        wire::decode(&plain).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(bytes: usize) -> Job {
        let mut random = fastrand::Rng::with_seed(7);
        Job { files: vec![("rows.csv".into(), (0..bytes).map(|_| random.u8(..)).collect())], ..Job::default() }
    }

    fn parcel(job: Job) -> (Parcel, Vec<Vec<u8>>) {
        match Packed::new(job).unwrap() {
            Packed::Pieces(parcel, pieces) => (parcel, pieces),
            Packed::Whole(_) => panic!("it is small"),
        }
    }

    #[test]
    fn large_jobs_travel_in_pieces_that_fit_a_message() {
        assert!(matches!(Packed::new(job(800_000)).unwrap(), Packed::Whole(_)));
        let zeros = Job { files: vec![("a".into(), vec![0; 8_000_000])], ..Job::default() };
        assert!(matches!(Packed::new(zeros).unwrap(), Packed::Whole(_)), "its message is small");
        let key = wire::Key::new(b"0123456789abcdef").unwrap();
        for bytes in [1_000_000, 5_000_000] {
            let (parcel, pieces) = parcel(job(bytes));
            let mut assembly = Assembly::new(parcel, PLAN_BYTES).unwrap();
            let mut got = None;
            for (number, piece) in pieces.iter().enumerate() {
                let body = wire::ToAgent::Piece(number as u32, piece.clone());
                let down = wire::Down { run: 1, session: 2, body };
                assert!(wire::seal(&key, wire::Direction::Down, "g", &down).is_ok());
                assert_eq!(assembly.take(number as u32 + 1, piece), Ok(None), "another one is next");
                got = assembly.take(number as u32, piece).unwrap();
                assert_eq!(got.is_some(), number + 1 == pieces.len());
            }
            assert_eq!(got, Some(job(bytes)));
        }
    }

    #[test]
    fn parcels_are_bounded_and_their_pieces_checked() {
        let (whole, pieces) = parcel(job(2_000_000));
        assert_eq!(Assembly::new(whole.clone(), 1_999_999).unwrap_err(), WireError::LargePlan);
        let take_all = |parcel: &Parcel, pieces: &[Vec<u8>]| {
            let mut assembly = Assembly::new(parcel.clone(), PLAN_BYTES).unwrap();
            pieces.iter().zip(0..).try_fold(None, |_, (piece, number)| assembly.take(number, piece))
        };
        assert!(take_all(&whole, &pieces).unwrap().is_some());
        let mut changed = pieces.clone();
        changed[1][5] ^= 1;
        assert_eq!(take_all(&whole, &changed), Err(WireError::Garbage));
        changed[1].pop();
        assert_eq!(take_all(&whole, &changed), Err(WireError::Garbage));
        changed[1].extend([0; 10]);
        assert_eq!(take_all(&whole, &changed), Err(WireError::Garbage));
        let many = [&pieces[..2], &pieces[..2]].concat();
        assert_eq!(take_all(&whole, &many), Err(WireError::Garbage));
        // It says that it has less than it unpacks to.
        let (mut bomb, pieces) = parcel(Job { files: vec![("a".into(), vec![0; 50_000_000])], ..Job::default() });
        bomb.plain = 1_000_000;
        assert!(take_all(&bomb, &pieces).is_err());
        let huge = Job { files: vec![("a".into(), vec![0; PLAN_BYTES as usize])], ..Job::default() };
        assert_eq!(Packed::new(huge), Err(WireError::LargePlan));
    }
}
