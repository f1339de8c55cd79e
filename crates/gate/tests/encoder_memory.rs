//! What an encoder of compressed responses takes of the heap. A binary of its own, as `allocation_counter` brings an
//! allocator for all of it. zstd has an allocator of its own, which a unit test asks.
#![allow(clippy::print_stderr)] // the figures, for `cargo test -p oroshi-gate --test encoder_memory -- --nocapture`

use oroshi_gate::forward::{Coding, Compression, Levels};

#[test]
fn encoders_take_no_more_than_the_budget_counts() {
    let usual = Compression::default().levels;
    let gzip = (1..=9).map(|gzip| (Coding::Gzip, gzip, Levels { gzip, ..usual }));
    let brotli = (0..=11).map(|br| (Coding::Brotli, br, Levels { br, ..usual }));
    let body: Vec<u8> = (0..400_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 26) as u8).collect();
    let mut beyond = Vec::new();
    for (coding, level, levels) in gzip.chain(brotli) {
        let mut length = 0;
        let counted = allocation_counter::measure(|| length = levels.compressed(coding, &body).unwrap().0.len());
        // The output is not yet sent, so it doubles while it grows.
        let bytes = usize::try_from(counted.bytes_max).unwrap().saturating_sub(3 * length);
        let said = levels.encoder_bytes(coding);
        eprintln!("{coding:?} {level}: {bytes} bytes of at most {said}");
        if !(said / 4..=said).contains(&bytes) {
            beyond.push(format!("{coding:?} {level}: {bytes} bytes, not {said}"));
        }
    }
    assert!(beyond.is_empty(), "{beyond:#?}");
}
