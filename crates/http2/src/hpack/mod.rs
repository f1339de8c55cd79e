//! HPACK, the compression of header fields (RFC 7541).
//!
//! [`Decoder`] and [`Encoder`] each belong to one direction of one connection. A decoder checks names and values while
//! it decodes, and remembers the result in the dynamic table: an indexed field costs no second check.
//!
//! ```
//! use oroshi_http2::hpack::{Compression, Decoder, Encoder};
//!
//! let mut encoder = Encoder::new(Compression::Dynamic);
//! let mut block = Vec::new();
//! encoder.begin(&mut block);
//! encoder.field(&mut block, b":method", b"GET");
//! encoder.field(&mut block, b"user-agent", b"oroshi");
//!
//! let mut decoder = Decoder::new(4096);
//! let mut fields = Vec::new();
//! decoder.decode(&block, &mut Vec::new(), |field| fields.push((field.name.to_vec(), field.value.to_vec())))?;
//! assert_eq!(fields, [(b":method".to_vec(), b"GET".to_vec()), (b"user-agent".to_vec(), b"oroshi".to_vec())]);
//! # Ok::<(), oroshi_http2::Defect>(())
//! ```

mod decoder;
mod encoder;
mod huffman;
mod integer;
pub(crate) mod name;
mod static_table;
mod table;

pub use decoder::{Decoder, Field};
pub use encoder::{Compression, Encoder};
pub(crate) use table::ENTRY_BYTES;
