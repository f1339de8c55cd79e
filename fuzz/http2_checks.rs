//! Checks that hold for any bytes, one function for each fuzz target. The fuzzer calls them with bytes it makes up; a
//! test of the crate http2 calls them with those in `corpus/`, so that every finding stays found.
#![allow(dead_code)] // each target uses one of them

use oroshi_http2::hpack::{Compression, Decoder, Encoder};
use oroshi_http2::{Config, FRAME_HEAD_BYTES, Limits, MAX_FRAME_BYTES, Role};

#[path = "../crates/http2/tests/trace/mod.rs"]
pub(crate) mod trace;

use trace::{Cut, Step, Trace};

/// A connection, after its handshake. The first byte: bit 0 the client's role, bit 1 small limits, bit 2 a dynamic
/// table for what it sends, bit 3 a script in the form of [`script`] rather than the peer's bytes.
pub(crate) fn http2_connection(data: &[u8]) {
    let Some((&how, data)) = data.split_first() else { return };
    let role = if how & 1 == 0 { Role::Server } else { Role::Client };
    let script = if how & 8 == 0 { vec![Step::In(data.to_vec())] } else { script(data) };
    check_script(role, &config(how), &script);
}

/// Header blocks. The first byte is the size of the table in units of 32 bytes; each block has its length before it.
pub(crate) fn http2_hpack(data: &[u8]) {
    let Some((&size, mut data)) = data.split_first() else { return };
    let mut decoder = Decoder::new(usize::from(size) * 32);
    let mut own = [Compression::Static, Compression::Dynamic].map(|how| (Encoder::new(how), Decoder::new(4096)));
    while let Some((&length, rest)) = data.split_first() {
        let (block, rest) = rest.split_at(usize::from(length).min(rest.len()));
        data = rest;
        let mut fields = Vec::new();
        let result = decoder.decode(block, &mut Vec::new(), |field| {
            fields.push((field.name.to_vec(), field.value.to_vec(), field.defect));
        });
        // A field costs at least a byte, and no field is longer than the block or the table.
        assert!(fields.len() <= block.len());
        let longest = (block.len() * 8 / 5).max(usize::from(size) * 32).max(40);
        assert!(fields.iter().all(|(name, value, _)| name.len() <= longest && value.len() <= longest));
        // The fields are written and read again.
        for (encoder, decoder) in &mut own {
            let (mut again, mut block) = (Vec::new(), Vec::new());
            encoder.begin(&mut block);
            fields.iter().for_each(|(name, value, _)| encoder.field(&mut block, name, value));
            decoder
                .decode(&block, &mut Vec::new(), |field| {
                    again.push((field.name.to_vec(), field.value.to_vec(), field.defect));
                })
                .expect("own blocks are valid");
            assert_eq!(again, fields);
        }
        if result.is_err() {
            return;
        }
    }
}

/// Runs a script whole and in pieces, and checks what always holds.
pub(crate) fn check_script(role: Role, config: &Config, script: &[Step]) {
    let whole = trace::run(role, config, true, script, Cut::Whole);
    for cut in [Cut::Every(1), Cut::Every(7), Cut::Every(100)] {
        let pieces = trace::run(role, config, true, script, cut);
        assert!(pieces.kept < FRAME_HEAD_BYTES + MAX_FRAME_BYTES, "{} bytes were kept", pieces.kept);
        assert_eq!(Trace { kept: 0, ..pieces }, Trace { kept: 0, ..whole.clone() }, "{cut:?}");
    }
    frames_are_whole(&whole.out);
}

fn frames_are_whole(mut out: &[u8]) {
    while let Some((&[a, b, c, _, _, _, _, _, _], rest)) = out.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        assert!(length <= 65_536);
        out = rest.get(length..).expect("a whole frame");
    }
    assert!(out.is_empty());
}

/// Reads a script: each step is a kind, flags, a stream and a length, one byte each, and the payload. Kinds from 128 on
/// are commands of the caller.
pub(crate) fn script(mut data: &[u8]) -> Vec<Step> {
    let mut steps = Vec::new();
    while let Some((&[kind, flags, stream, length], rest)) = data.split_first_chunk::<4>() {
        if kind >= 128 {
            let id = stream & 15;
            let command = match kind & 7 {
                0 => format!("request GET / {}", if flags & 1 == 0 { "" } else { "end" }),
                1 => {
                    format!("response {id} {} {}", 100 + u16::from(length) * 2, if flags & 1 == 0 { "" } else { "end" })
                }
                2 => format!("data {id} {} {}", usize::from(length) * 100, if flags & 1 == 0 { "" } else { "end" }),
                3 => format!("trailers {id}"),
                4 => format!("reset {id} 8"),
                5 => format!("grant {id} {}", usize::from(length) * 100),
                6 if flags & 1 == 0 => "goaway".to_owned(),
                6 => format!("goaway {id}"),
                _ => "tick".to_owned(),
            };
            steps.push(Step::Do(command.split_whitespace().map(str::to_owned).collect()));
            data = rest;
            continue;
        }
        let (payload, rest) = rest.split_at(usize::from(length).min(rest.len()));
        data = rest;
        let mut frame = vec![0, 0, payload.len() as u8, kind & 15, flags, 0, 0, 0, stream & 15];
        frame.extend_from_slice(payload);
        match steps.last_mut() {
            Some(Step::In(bytes)) => bytes.extend(frame),
            _ => steps.push(Step::In(frame)),
        }
    }
    steps
}

fn config(how: u8) -> Config {
    let mut config = Config::default();
    if how & 4 != 0 {
        config.compression = Compression::Dynamic;
    }
    if how & 2 != 0 {
        config.limits = Limits {
            block_bytes: 200,
            continuations: 2,
            head_bytes: 300,
            headers: 4,
            target_bytes: 20,
            trailer_bytes: 100,
            trailers: 2,
            body_bytes: 1_000,
            informational: 1,
            resets: 3,
            answered_frames: 5,
            idle_frames: 10,
        };
        config.streams = 3;
        config.stream_window = 500;
        config.extended_connect = true;
    }
    config
}
