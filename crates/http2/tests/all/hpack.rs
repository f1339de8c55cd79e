//! HPACK against the examples of RFC 7541 appendix C, and against what the PyPI package hpack wrote.

use oroshi_http2::hpack::{Compression, Decoder, Encoder};

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn decoded(decoder: &mut Decoder, block: &[u8]) -> Vec<String> {
    let mut fields = Vec::new();
    let each = |field: oroshi_http2::hpack::Field<'_>| {
        fields.push(format!("{}: {}", field.name.escape_ascii(), field.value.escape_ascii()).trim_end().to_owned());
    };
    decoder.decode(block, &mut Vec::new(), each).expect("a sound block");
    fields
}

const GETS: [&[&str]; 3] = [
    &[":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com"],
    &[":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com", "cache-control: no-cache"],
    &[
        ":method: GET",
        ":scheme: https",
        ":path: /index.html",
        ":authority: www.example.com",
        "custom-key: custom-value",
    ],
];

const RESPONSES: [&[&str]; 3] = [
    &[
        ":status: 302",
        "cache-control: private",
        "date: Mon, 21 Oct 2013 20:13:21 GMT",
        "location: https://www.example.com",
    ],
    &[
        ":status: 307",
        "cache-control: private",
        "date: Mon, 21 Oct 2013 20:13:21 GMT",
        "location: https://www.example.com",
    ],
    &[
        ":status: 200",
        "cache-control: private",
        "date: Mon, 21 Oct 2013 20:13:22 GMT",
        "location: https://www.example.com",
        "content-encoding: gzip",
        "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
    ],
];

/// RFC 7541 appendix C.2: single fields.
#[test]
fn examples_of_single_fields() {
    let literal = "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572";
    for (block, field) in [
        (literal, "custom-key: custom-header"),
        ("040c 2f73 616d 706c 652f 7061 7468", ":path: /sample/path"),
        ("1008 7061 7373 776f 7264 0673 6563 7265 74", "password: secret"),
        ("82", ":method: GET"),
    ] {
        assert_eq!(decoded(&mut Decoder::new(4096), &unhex(block)), [field]);
    }
}

/// RFC 7541 appendices C.3 and C.4: requests without and with Huffman coding.
#[test]
fn examples_of_requests() {
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let huffman = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    for blocks in [plain, huffman] {
        let mut decoder = Decoder::new(4096);
        for (block, fields) in blocks.iter().zip(GETS) {
            assert_eq!(decoded(&mut decoder, &unhex(block)), fields);
        }
    }
    // Our encoder writes the very bytes of C.4.
    let mut encoder = Encoder::new(Compression::Dynamic);
    for (block, fields) in huffman.iter().zip(GETS) {
        let mut out = Vec::new();
        encoder.begin(&mut out);
        for field in fields {
            let (name, value) = field.rsplit_once(": ").unwrap();
            encoder.field(&mut out, name.as_bytes(), value.as_bytes());
        }
        assert_eq!(out, unhex(block));
    }
}

/// RFC 7541 appendices C.5 and C.6: responses with evictions from a table of 256 bytes.
#[test]
fn examples_of_responses() {
    let plain = [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d
         546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f
         6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b
         2076 6572 7369 6f6e 3d31",
    ];
    let huffman = [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7
         8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335
         dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ];
    for blocks in [plain, huffman] {
        let mut decoder = Decoder::new(256);
        for (block, fields) in blocks.iter().zip(RESPONSES) {
            assert_eq!(decoded(&mut decoder, &unhex(block)), fields);
        }
    }
}

/// Blocks of the package hpack: `scripts/http2-vectors` made the file.
#[test]
fn blocks_of_another_encoder_are_read() {
    let (mut decoder, mut due, mut blocks) = (Decoder::new(4096), Vec::<String>::new(), 0);
    for line in include_str!("../../conformance/hpack.txt").lines() {
        match line.split_once(": ").unwrap_or((line.trim_end_matches(':'), "")) {
            ("connection", _) => decoder = Decoder::new(4096),
            ("block", hex) => {
                assert!(due.is_empty(), "{due:?} was not in the file");
                due = decoded(&mut decoder, &unhex(hex));
                due.reverse();
                blocks += 1;
            }
            ("field", field) => assert_eq!(due.pop().as_deref(), Some(field)),
            _ => assert!(line.starts_with('#'), "{line}"),
        }
    }
    assert!(due.is_empty() && blocks > 100, "{blocks} blocks");
}
