//! Properties of all input: cuts change nothing, decoding reverses encoding, and no bytes do harm.

use oroshi_http2::hpack::{Compression, Decoder, Encoder};
use oroshi_http2::{Config, Limits, Role};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::http2_checks;
use crate::notation::bytes;
use crate::trace::Step;

/// Generates frames, valid and broken, and commands, as lines of the notation.
fn line() -> impl Strategy<Value = String> {
    let id = || select(vec![0u32, 1, 1, 1, 3, 3, 5, 7, 2]);
    let get = ":method: GET | :scheme: http | :path: / | :authority: a";
    let post = ":method: POST | :scheme: http | :path: / | :authority: a | content-length: 5";
    let block = select(vec![
        get,
        get,
        post,
        ":status: 200",
        ":status: 103",
        ":status: 200 | content-length: 5",
        "x-sum: 1",
        ":method: GET | X: y",
        "raw \\x82\\x86\\x84\\x41\\x01a\\x40\\x01x\\x01y",
        "raw \\x82\\x86\\x84\\xbf\\xbe",
        "raw \\xff",
    ]);
    let words = select(vec!["", " END", " END", " MORE", " pad=3", " depends=0", " END MORE", " PADDED"]);
    prop_oneof![
        6 => (id(), words.clone(), block.clone()).prop_map(|(id, words, block)| {
            format!("HEADERS {id}{words} | {block}")
        }),
        1 => (id(), words.clone(), block).prop_map(|(id, words, block)| {
            format!("CONTINUATION {id}{} | {block}", if words.contains("MORE") { " MORE" } else { "" })
        }),
        5 => (id(), select(vec!["", " END", " pad=9", " PADDED"]), 0usize..300).prop_map(|(id, words, length)| {
            format!("DATA {id}{words} | \\{{{length}:d}}")
        }),
        2 => (id(), select(vec![0u32, 1, 100, 70_000, 0x7fff_ffff])).prop_map(|(id, by)| {
            format!("WINDOW_UPDATE {id} | {by}")
        }),
        1 => id().prop_map(|id| format!("RST_STREAM {id} | CANCEL")),
        1 => select(vec!["SETTINGS 0 | 4=10", "SETTINGS 0 | 4=70000 | 3=2", "SETTINGS 0 | 1=0", "SETTINGS 0 ACK",
            "PING 0 | 12345678", "PRIORITY 1 | raw \\0\\0\\0\\0\\x0f", "GOAWAY 0 | 1 NO_ERROR", "TYPE77 0 | raw x"])
            .prop_map(str::to_owned),
        2 => select(vec!["do request GET / end", "do request POST /", "do request HEAD / end", "do goaway", "do tick"])
            .prop_map(str::to_owned),
        4 => (id(), select(vec!["response ID 200", "response ID 200 end", "response ID 100", "data ID 30000",
            "data ID 5 end",
            "trailers ID", "reset ID 8", "grant ID 100"])).prop_map(|(id, command)| {
                format!("do {}", command.replace("ID", &id.to_string()))
            }),
    ]
}

fn script() -> impl Strategy<Value = Vec<Step>> {
    vec(line(), 1..25).prop_map(|lines| {
        let mut steps: Vec<Step> = Vec::new();
        for line in lines {
            match (line.strip_prefix("do "), steps.last_mut()) {
                (Some(command), _) => steps.push(Step::Do(command.split(' ').map(str::to_owned).collect())),
                (None, Some(Step::In(before))) => before.extend(bytes(&line)),
                (None, _) => steps.push(Step::In(bytes(&line))),
            }
        }
        steps
    })
}

/// Generates names in lower case, of which some repeat.
fn fields() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let name = prop_oneof![
        3 => select(vec!["server", "date", "x-a", "cookie", "authorization", "content-type", ":path", ":status"])
            .prop_map(str::to_owned),
        1 => "[a-z0-9_-]{1,30}",
    ];
    let value = prop_oneof![
        2 => select(vec!["", "a", "200", "/", "text/plain", "Mon, 23 Nov 2026 20:15:39 GMT"]).prop_map(Into::into),
        1 => vec(any::<u8>(), 0..100),
    ];
    vec((name, value), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn events_do_not_depend_on_the_cuts(script in script(), server: bool, small: bool) {
        let mut config = Config::default();
        if small {
            let (headers, body_bytes, resets, answered_frames, idle_frames) = (3, 400, 3, 4, 9);
            let limits = Limits { headers, body_bytes, resets, answered_frames, idle_frames, ..Limits::default() };
            config.limits = limits;
            config.stream_window = 200;
            config.streams = 2;
        }
        http2_checks::check_script(if server { Role::Server } else { Role::Client }, &config, &script);
    }

    #[test]
    fn any_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..300)) {
        http2_checks::http2_connection(&bytes);
        http2_checks::http2_hpack(&bytes);
    }

    /// Blocks of one connection, in order, while the peer changes its table's size.
    #[test]
    fn fields_are_read_as_they_were_written(
        blocks in vec((fields(), prop::option::weighted(0.2, select(vec![0usize, 60, 500, 4096, 10_000]))), 1..12),
        dynamic: bool,
    ) {
        let mut encoder = Encoder::new(if dynamic { Compression::Dynamic } else { Compression::Static });
        let mut decoder = Decoder::new(4096);
        for (fields, resize) in blocks {
            if let Some(size) = resize {
                decoder.set_allowed(size);
                encoder.set_peer_table_bytes(size);
            }
            let (mut block, mut read) = (Vec::new(), Vec::new());
            encoder.begin(&mut block);
            fields.iter().for_each(|(name, value)| encoder.field(&mut block, name.as_bytes(), value));
            let result = decoder.decode(&block, &mut Vec::new(), |field| {
                read.push((String::from_utf8(field.name.to_vec()).unwrap(), field.value.to_vec()));
            });
            prop_assert_eq!(result, Ok(()));
            prop_assert_eq!(read, fields);
        }
    }
}
