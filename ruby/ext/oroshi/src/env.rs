//! The Rack environment of a request.
//!
//! Names follow CGI (RFC 3875 section 4.1.18), with three precautions. A name with an underscore is dropped: its key
//! would equal that of the name with a dash, which a proxy may have checked. `Proxy` is dropped, because programs read
//! HTTP_PROXY as configuration. Repeated fields are joined, Cookie with `; ` (RFC 6265 section 5.4), others with `, `.
//!
//! The path is passed on as received, as Unicorn and Puma do: the application interprets `%2F`.

use std::ffi::c_long;
use std::net::IpAddr;

use magnus::Error;
use oroshi_http1::{Header, RequestHead, Version};
use rb_sys::VALUE;

use crate::queue_time::since_request_start;
use crate::rb::{self, Roots};
use crate::shapes::{FieldAt, Shapes};
use crate::socket::SocketAddress;
use crate::values::LastStrings;

/// The facts of a request that its environment needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'r> {
    pub(crate) head: RequestHead<'r>,
    /// The client's address; `None` on a unix socket.
    pub(crate) peer: Option<IpAddr>,
    /// The listener's address.
    pub(crate) address: &'r SocketAddress,
    /// The length of a chunked body that was read already: the application sees a body with a length.
    pub(crate) decoded_bytes: Option<u64>,
    /// How long the request waited for this worker, in microseconds, if the worker knows it.
    pub(crate) wait_us: Option<u64>,
}

/// The facts common to all environments of a worker.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    pub(crate) rack2: bool,
    pub(crate) multiprocess: bool,
    pub(crate) multithread: bool,
    pub(crate) https: bool,
    pub(crate) errors: VALUE,
    /// The Arrays of `rack.after_reply` and `rack.response_finished`, the same for all requests.
    pub(crate) after_reply: VALUE,
    pub(crate) response_finished: VALUE,
    /// See [`Shapes::new`].
    pub(crate) in_place: bool,
}

/// The keys of values that differ between requests, in the order of their placeholders.
const FIXED: [&str; 11] = [
    "REQUEST_METHOD",
    "PATH_INFO",
    "QUERY_STRING",
    "REQUEST_URI",
    "REQUEST_PATH",
    "SERVER_PROTOCOL",
    "SERVER_NAME",
    "SERVER_PORT",
    "REMOTE_ADDR",
    "rack.input",
    "rack.hijack",
];

/// The header in which a proxy says when it received the request.
const REQUEST_START: &[u8] = b"x-request-start";

/// The server's name.
const SOFTWARE: &str = concat!("oroshi/", env!("CARGO_PKG_VERSION"));

const METHODS: [&str; 8] = ["GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"];

/// Builds environments.
#[derive(Debug)]
pub(crate) struct Environments<'w> {
    roots: &'w Roots,
    common: Common,
    shapes: Shapes,
    /// The shape of a head without fields, the start for heads without a shape of their own.
    bare: usize,
    methods: [VALUE; METHODS.len()],
    protocols: [VALUE; 2],
    empty: VALUE,
    host: LastStrings<2>,
    remote: LastStrings<1>,
    fields: Vec<FieldAt>,
    /// The names of the current request's fields, if it has no expected shape.
    names: Vec<u8>,
    /// The current request's shape, if it is the same as that of the one before.
    expected: Option<usize>,
    key: String,
    /// Time since a proxy received the current request, in microseconds, if its head says so.
    pub(crate) queue_us: Option<u64>,
}

impl<'w> Environments<'w> {
    pub(crate) fn new(roots: &'w Roots, common: Common) -> Result<Self, Error> {
        let keep = |value| {
            roots.add(value);
            value
        };
        let mut environments = Environments {
            roots,
            shapes: Shapes::new(common.in_place),
            common,
            bare: 0,
            methods: METHODS.map(|method| keep(rb::interned(method))),
            protocols: ["HTTP/1.0", "HTTP/1.1"].map(|version| keep(rb::interned(version))),
            empty: keep(rb::interned("")),
            host: LastStrings::default(),
            remote: LastStrings::default(),
            fields: Vec::new(),
            names: Vec::new(),
            expected: None,
            key: String::new(),
            queue_us: None,
        };
        rb::protect(|| {
            // SAFETY: a new Array, on the stack.
            let template = environments.template(unsafe { rb_sys::rb_ary_new() });
            environments.bare = environments.shapes.add(roots, b"", template, 0).unwrap_or_default();
            rb::NIL
        })?;
        Ok(environments)
    }

    /// Prepares for a request's fields. Call it before [`build`](Self::build), outside of `protect`.
    pub(crate) fn look_at(&mut self, head: &RequestHead<'_>) {
        let lines = head.headers.as_bytes();
        self.fields.clear();
        self.expected = self.shapes.expect(lines, &mut self.fields);
        if self.expected.is_none() {
            self.read_fields(head);
        }
        let is_start = |name: &[u8]| name.len() == REQUEST_START.len() && name.eq_ignore_ascii_case(REQUEST_START);
        let start = self.fields.iter().rfind(|field| is_start(field.name(lines)));
        self.queue_us = start.and_then(|field| since_request_start(field.value(lines)));
    }

    /// Reads the fields of a head that has other names than the one before.
    fn read_fields(&mut self, head: &RequestHead<'_>) {
        let base = head.headers.as_bytes().as_ptr().addr();
        self.fields.clear();
        self.names.clear();
        for Header { name, value } in head.headers.iter() {
            let (name_at, value_at) = ((name.as_ptr().addr() - base) as u32, (value.as_ptr().addr() - base) as u32);
            self.fields.push(FieldAt {
                name: name_at..name_at + name.len() as u32,
                value: value_at..value_at + value.len() as u32,
            });
            self.names.extend_from_slice(name.as_bytes());
            self.names.push(b':');
        }
    }

    /// Returns the environment of a request. May raise.
    pub(crate) fn build(&mut self, facts: &Facts<'_>, input: VALUE, hijack: VALUE) -> VALUE {
        let head = &facts.head;
        let target = Target::of(head.target, self.common.rack2);
        let [name, port] = self.server(facts);
        let path = rb::string(target.path);
        let fixed: [VALUE; FIXED.len()] = [
            self.method(head.method),
            path,
            if target.query.is_empty() { self.empty } else { rb::string(target.query) },
            rb::string(head.target.as_bytes()),
            path, // the same String, as with Unicorn and Puma
            self.protocols[usize::from(head.version == Version::Http11)],
            name,
            port,
            self.remote(facts.peer),
            input,
            hijack,
        ];
        let lines = head.headers.as_bytes();
        let shape = match self.expected.or_else(|| self.shapes.find(&self.names)) {
            Some(shape) => Some(shape),
            None if self.shapes.is_wanted(&self.names) => self.new_shape(lines),
            None => None,
        };
        let env = match shape {
            Some(shape) => self.shapes.fill(self.roots, shape, &fixed, &self.fields, lines),
            None => {
                let env = self.shapes.fill(self.roots, self.bare, &fixed, &[], lines);
                self.add_fields(env, lines);
                env
            }
        };
        self.adjust(env, facts);
        // `env` holds the values now; until here the stack did.
        std::hint::black_box(&fixed);
        env
    }

    /// Sets the values that field names alone do not determine.
    fn adjust(&mut self, env: VALUE, facts: &Facts<'_>) {
        let head = &facts.head;
        for (key, us) in [("oroshi.queue_seconds", self.queue_us), ("oroshi.wait_seconds", facts.wait_us)] {
            if let Some(us) = us {
                // SAFETY: a plain number.
                set(env, key, unsafe { rb_sys::rb_float_new(us as f64 / 1e6) });
            }
        }
        if let Some(length) = facts.decoded_bytes {
            set(env, "CONTENT_LENGTH", rb::string(length.to_string().as_bytes()));
            // SAFETY: a Hash and a String.
            unsafe { rb_sys::rb_hash_delete(env, rb::interned("HTTP_TRANSFER_ENCODING")) };
        }
        if !head.target.starts_with('/')
            && let Some(host) = head.host
        {
            // RFC 9112 section 3.2.2: the target's authority wins.
            set(env, "HTTP_HOST", rb::string(host));
        }
        if let Some(upgrade) = head.upgrade
            && !self.common.rack2
        {
            // SAFETY: a new Array, on the stack until it stands in `env`.
            unsafe {
                let protocols = rb_sys::rb_ary_new();
                for protocol in upgrade.split(|&byte| byte == b',') {
                    rb_sys::rb_ary_push(protocols, rb::string(protocol.trim_ascii()));
                }
                set(env, "rack.protocol", protocols);
            }
        }
    }

    /// Adds a template for these fields in this order: first the variable values, then the constant ones.
    fn new_shape(&mut self, lines: &[u8]) -> Option<usize> {
        // The keys are in an Array, where the garbage collector sees them. SAFETY: a new Array, on the stack.
        let keys = unsafe { rb_sys::rb_ary_new() };
        for at in 0..self.fields.len() {
            let field = self.fields[at].clone();
            let key = self.key(field.name(lines)).unwrap_or(rb::NIL);
            // SAFETY: an Array and a value on the stack.
            unsafe {
                // A repeated name needs its values joined.
                if key != rb::NIL && rb_sys::rb_ary_includes(keys, key) == rb::TRUE {
                    return None;
                }
                rb_sys::rb_ary_push(keys, key);
            }
        }
        let template = self.template(keys);
        std::hint::black_box(&keys);
        self.shapes.add(self.roots, &self.names, template, self.fields.len())
    }

    /// Returns a Hash with every key. `fields`: an Array of the fields' keys; nil: dropped.
    fn template(&mut self, fields: VALUE) -> VALUE {
        // SAFETY: a new Hash, on the stack.
        let template = unsafe { rb_sys::rb_hash_new() };
        for (number, key) in FIXED.iter().enumerate() {
            set(template, key, placeholder(number));
        }
        // SAFETY: an Array and a Hash, on the stack; keys are read from the Array one at a time.
        unsafe {
            for number in 0..rb_sys::macros::RARRAY_LEN(fields) {
                let key = rb_sys::rb_ary_entry(fields, number);
                if key != rb::NIL {
                    rb_sys::rb_hash_aset(template, key, placeholder(FIXED.len() + number as usize));
                }
            }
        }
        let boolean = |it: bool| if it { rb::TRUE } else { rb::FALSE };
        set(template, "SCRIPT_NAME", self.empty);
        set(template, "SERVER_SOFTWARE", rb::interned(SOFTWARE));
        set(template, "rack.url_scheme", rb::interned(if self.common.https { "https" } else { "http" }));
        set(template, "rack.errors", self.common.errors);
        set(template, "rack.hijack?", rb::TRUE);
        set(template, "rack.after_reply", self.common.after_reply);
        set(template, "rack.response_finished", self.common.response_finished);
        set(template, "rack.multithread", boolean(self.common.multithread));
        set(template, "rack.multiprocess", boolean(self.common.multiprocess));
        set(template, "rack.run_once", rb::FALSE);
        if self.common.https {
            set(template, "HTTPS", rb::interned("on"));
        }
        if self.common.rack2 {
            // SAFETY: a new Array of small Integers.
            unsafe {
                let version = rb_sys::rb_ary_new();
                rb_sys::rb_ary_push(version, placeholder(1));
                rb_sys::rb_ary_push(version, placeholder(3));
                set(template, "rack.version", rb_sys::rb_obj_freeze(version));
            }
        }
        template
    }

    /// Sets the fields of a head without a shape.
    fn add_fields(&mut self, env: VALUE, lines: &[u8]) {
        for at in 0..self.fields.len() {
            let field = self.fields[at].clone();
            let (name, bytes) = (field.name(lines), field.value(lines));
            let Some(key) = self.key(name) else { continue };
            // SAFETY: a Hash, its key, and Strings, all on the stack.
            unsafe {
                let before = rb_sys::rb_hash_lookup2(env, key, rb::NIL);
                if before == rb::NIL {
                    rb_sys::rb_hash_aset(env, key, rb::string(bytes));
                } else {
                    let between: &[u8] = if name.eq_ignore_ascii_case(b"cookie") { b"; " } else { b", " };
                    for piece in [between, bytes] {
                        rb_sys::rb_str_cat(before, piece.as_ptr().cast(), piece.len() as c_long);
                    }
                }
            }
        }
    }

    /// Returns a field's key; `None` if the field is dropped.
    fn key(&mut self, name: &[u8]) -> Option<VALUE> {
        if name.contains(&b'_') || name.eq_ignore_ascii_case(b"proxy") {
            return None;
        }
        self.key.clear();
        let content = name.eq_ignore_ascii_case(b"content-type") || name.eq_ignore_ascii_case(b"content-length");
        self.key.push_str(if content { "" } else { "HTTP_" });
        // A field's name is a token, and so ASCII.
        self.key.extend(name.iter().map(|&byte| match byte {
            b'-' => '_',
            _ => byte.to_ascii_uppercase() as char,
        }));
        Some(rb::interned(&self.key))
    }

    fn method(&self, method: &str) -> VALUE {
        match METHODS.iter().position(|known| *known == method) {
            Some(at) => self.methods[at],
            None => rb::string(method.as_bytes()),
        }
    }

    /// Returns SERVER_NAME and SERVER_PORT: the client's name for us, else the listener's address.
    fn server(&mut self, facts: &Facts<'_>) -> [VALUE; 2] {
        let https = self.common.https;
        match facts.head.host.filter(|host| !host.is_empty() && host[0] != b':') {
            Some(host) => self.host.values(self.roots, host, || {
                let (name, port) = split_host(host);
                let port = if !port.is_empty() { port } else { default_port(https) };
                [rb::frozen(name), rb::frozen(port)]
            }),
            None => match facts.address {
                SocketAddress::Tcp(ip, port) => {
                    let name = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
                    [rb::string(name.as_bytes()), rb::string(port.to_string().as_bytes())]
                }
                SocketAddress::Unix => [rb::string(b"localhost"), rb::string(default_port(https))],
            },
        }
    }

    /// Returns REMOTE_ADDR. On a unix socket the client is this machine, so Rack trusts the proxy there.
    fn remote(&mut self, peer: Option<IpAddr>) -> VALUE {
        let mut octets = [0; 17];
        let key = match peer {
            None => &octets[..1],
            Some(IpAddr::V4(ip)) => {
                octets[1..5].copy_from_slice(&ip.octets());
                &octets[..5]
            }
            Some(IpAddr::V6(ip)) => {
                octets[1..].copy_from_slice(&ip.octets());
                &octets[..]
            }
        };
        let [value] = self.remote.values(self.roots, key, || match peer {
            None => [rb::frozen(b"127.0.0.1")],
            Some(ip) => [rb::frozen(ip.to_string().as_bytes())],
        });
        value
    }
}

/// The path and query of a request target.
struct Target<'r> {
    path: &'r [u8],
    query: &'r [u8],
}

impl<'r> Target<'r> {
    fn of(target: &'r str, rack2: bool) -> Self {
        let bytes = target.as_bytes();
        let origin = match bytes {
            [b'/', ..] => bytes,
            // Rack 3 has a form for this; Rack 2 wants a path.
            b"*" if rack2 => b"/",
            b"*" => return Target { path: bytes, query: b"" },
            _ => {
                // http://host/path, which the decoder has checked.
                let host = memchr::memmem::find(bytes, b"//").map_or(0, |at| at + 2);
                let end = memchr::memchr2(b'/', b'?', &bytes[host..]).map_or(bytes.len(), |at| host + at);
                &bytes[end..]
            }
        };
        let (path, query) = match memchr::memchr(b'?', origin) {
            Some(at) => (&origin[..at], &origin[at + 1..]),
            None => (origin, &b""[..]),
        };
        Target { path: if path.is_empty() { b"/" } else { path }, query }
    }
}

/// Returns host and port of an authority that the decoder has checked; the port may be empty.
fn split_host(host: &[u8]) -> (&[u8], &[u8]) {
    let after_address = if host[0] == b'[' { memchr::memchr(b']', host).unwrap_or(0) } else { 0 };
    match memchr::memchr(b':', &host[after_address..]) {
        Some(at) => (&host[..after_address + at], &host[after_address + at + 1..]),
        None => (host, b""),
    }
}

fn default_port(https: bool) -> &'static [u8] {
    if https { b"443" } else { b"80" }
}

fn placeholder(number: usize) -> VALUE {
    // SAFETY: a small number.
    unsafe { rb_sys::macros::LONG2FIX(number as c_long) }
}

fn set(hash: VALUE, key: &str, value: VALUE) {
    // SAFETY: a Hash, a String, and a value on the stack.
    unsafe { rb_sys::rb_hash_aset(hash, rb::interned(key), value) };
}
