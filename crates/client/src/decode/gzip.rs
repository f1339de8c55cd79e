//! gzip (RFC 1952): members of a header, a deflate stream, and a trailer that proves it.

use flate2::{Crc, Decompress, FlushDecompress, Status};

/// The maximum of a header's variable part, in bytes: a name and a comment.
const HEADER_BYTES: u32 = 64 * 1024;

#[derive(Debug)]
pub(super) struct Gzip {
    at: At,
    inflate: Decompress,
    crc: Crc,
    flags: u8,
    /// The part of a header's or trailer's number that was read, lowest byte first.
    number: u64,
    header: u32,
}

/// The position of the input within a member, with the number of bytes missing or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Before the first member.
    Start,
    /// Behind a member; another may follow.
    Between,
    /// Behind the last member: zeros, which fill a block of a tape or a disk. gzip(1) ignores them too.
    Padding,
    Fixed(u8),
    ExtraLength(u8),
    Extra(u16),
    Name,
    Comment,
    HeaderCrc(u8),
    Deflate,
    Trailer(u8),
}

const HEADER_CRC: u8 = 1 << 1;
const EXTRA: u8 = 1 << 2;
const NAME: u8 = 1 << 3;
const COMMENT: u8 = 1 << 4;
const RESERVED: u8 = 0b1110_0000;

impl Default for Gzip {
    fn default() -> Self {
        Gzip { at: At::Start, inflate: Decompress::new(false), crc: Crc::new(), flags: 0, number: 0, header: 0 }
    }
}

impl Gzip {
    /// Whether the input so far could be the whole body.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.at, At::Between | At::Padding)
    }

    /// Decodes, and returns bytes used and bytes written.
    pub(super) fn decode(&mut self, input: &[u8], output: &mut [u8]) -> Result<(usize, usize), &'static str> {
        let (mut used, mut made) = (0, 0);
        loop {
            if self.at == At::Deflate {
                let (taken, given) = self.inflate(&input[used..], &mut output[made..])?;
                used += taken;
                made += given;
                // Still in this state: it needs more input, or room for more output.
                if self.at == At::Deflate {
                    return Ok((used, made));
                }
            }
            let Some(&byte) = input.get(used) else { return Ok((used, made)) };
            used += 1;
            self.frame(byte)?;
        }
    }

    fn inflate(&mut self, input: &[u8], output: &mut [u8]) -> Result<(usize, usize), &'static str> {
        let (read, written) = (self.inflate.total_in(), self.inflate.total_out());
        let status = self.inflate.decompress(input, output, FlushDecompress::None).map_err(|_| "it is not valid")?;
        let used = (self.inflate.total_in() - read) as usize;
        let made = (self.inflate.total_out() - written) as usize;
        self.crc.update(&output[..made]);
        if status == Status::StreamEnd {
            (self.at, self.number) = (At::Trailer(0), 0);
        }
        Ok((used, made))
    }

    /// Reads one byte of a header or a trailer.
    fn frame(&mut self, byte: u8) -> Result<(), &'static str> {
        self.header += 1;
        if self.header > HEADER_BYTES {
            return Err("its header is too large");
        }
        self.at = match (self.at, byte) {
            (At::Start | At::Between, 0x1f) => {
                self.header = 0;
                At::Fixed(1)
            }
            (At::Between | At::Padding, 0) => {
                self.header = 0;
                At::Padding
            }
            (At::Between | At::Padding, _) => return Err("something follows its end"),
            (At::Fixed(1), 0x8b) => At::Fixed(2),
            (At::Fixed(2), 8) => At::Fixed(3),
            (At::Start | At::Fixed(1 | 2), _) => return Err("it is not gzip"),
            (At::Fixed(3), flags) if flags & RESERVED != 0 => return Err("it uses flags that nobody knows"),
            (At::Fixed(3), flags) => {
                self.flags = flags;
                At::Fixed(4)
            }
            // Time, compression level and operating system.
            (At::Fixed(4..=8), _) => self.next_fixed(),
            (At::Fixed(_), _) => self.after(0),
            (At::ExtraLength(0), low) => {
                self.number = u64::from(low);
                At::ExtraLength(1)
            }
            (At::ExtraLength(_), high) => match self.number as u16 | u16::from(high) << 8 {
                0 => self.after(EXTRA),
                length => At::Extra(length),
            },
            (At::Extra(1), _) => self.after(EXTRA),
            (At::Extra(left), _) => At::Extra(left - 1),
            (At::Name, 0) => self.after(NAME),
            (At::Comment, 0) => self.after(COMMENT),
            (at @ (At::Name | At::Comment), _) => at,
            (At::HeaderCrc(0), _) => At::HeaderCrc(1),
            (At::HeaderCrc(_), _) => self.after(HEADER_CRC),
            (At::Trailer(place), byte) => {
                self.number |= u64::from(byte) << (8 * place);
                if place == 7 { self.end()? } else { At::Trailer(place + 1) }
            }
            (At::Deflate, _) => At::Deflate,
        };
        Ok(())
    }

    fn next_fixed(&self) -> At {
        match self.at {
            At::Fixed(place) => At::Fixed(place + 1),
            at => at,
        }
    }

    /// Returns the state after a part of the header. Parts come in the order of their flags, but the checksum is last.
    fn after(&mut self, part: u8) -> At {
        for (flag, at, not_after) in [
            (EXTRA, At::ExtraLength(0), EXTRA | NAME | COMMENT | HEADER_CRC),
            (NAME, At::Name, NAME | COMMENT | HEADER_CRC),
            (COMMENT, At::Comment, COMMENT | HEADER_CRC),
            (HEADER_CRC, At::HeaderCrc(0), HEADER_CRC),
        ] {
            if self.flags & flag != 0 && part & not_after == 0 {
                return at;
            }
        }
        self.inflate.reset(false);
        self.crc.reset();
        At::Deflate
    }

    fn end(&mut self) -> Result<At, &'static str> {
        // The second half is the length modulo 2 to the 32nd (section 2.3.1).
        if self.number as u32 != self.crc.sum() || (self.number >> 32) as u32 != self.inflate.total_out() as u32 {
            return Err("its checksum is wrong");
        }
        self.header = 0;
        Ok(At::Between)
    }
}
