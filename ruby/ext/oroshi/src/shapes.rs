//! Header shapes: clients send the same field names in the same order, request after request.
//!
//! For each such sequence a template Hash holds every key of the environment: constant values directly, and for each
//! other value a small Integer, a placeholder. A request's environment is a copy of the template's table (no key is
//! hashed, compared or interned), in which the placeholders' entries are overwritten.
//!
//! Shapes are bounded: 64, and only a sequence that occurs twice gets one. The first shape stays for good.

use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;

use rb_sys::{VALUE, st_table};

use crate::rb::{self, Roots};
use crate::values::Recent;

/// The position of a header field in a head's lines.
#[derive(Clone, Debug)]
pub(crate) struct FieldAt {
    pub(crate) name: Range<u32>,
    pub(crate) value: Range<u32>,
}

impl FieldAt {
    /// Returns its name in these lines.
    pub(crate) fn name<'l>(&self, lines: &'l [u8]) -> &'l [u8] {
        &lines[self.name.start as usize..self.name.end as usize]
    }

    /// Returns its value.
    pub(crate) fn value<'l>(&self, lines: &'l [u8]) -> &'l [u8] {
        &lines[self.value.start as usize..self.value.end as usize]
    }
}

/// A sequence of names, with its template.
#[derive(Debug)]
pub(crate) struct Shape {
    /// All names, each followed by a colon.
    names: Vec<u8>,
    /// The length of each name with its colon.
    lengths: Vec<u32>,
    /// The template's slot in the roots.
    template: usize,
    /// The placeholders, in the template's order.
    placeholders: Vec<Placeholder>,
    /// Whether the placeholders' entries are known.
    in_place: bool,
    /// The last value of each field.
    recent: Vec<Recent>,
}

/// A value of a template that differs between requests.
#[derive(Clone, Copy, Debug)]
struct Placeholder {
    /// The value: the index of a fixed one, or the number of fixed ones plus the index of a field.
    source: u32,
    /// The index of its entry in the template's table.
    entry: u32,
}

/// The shapes of a worker.
#[derive(Debug)]
pub(crate) struct Shapes {
    all: Vec<Shape>,
    /// The shape of the last request, the most likely one for the next.
    last: usize,
    /// The next shape to replace when there are too many. Never the first: requests without a shape start from it.
    oldest: usize,
    /// Hashes of sequences that have occurred once.
    seen: [u64; SEEN],
    table: Option<Table>,
}

const MOST: usize = 64;
const SEEN: usize = 64;
/// Placeholders of one shape: the fixed ones and as many fields as a head may have. More are not worth a shape.
const MOST_PLACEHOLDERS: usize = 128;

impl Shapes {
    /// Creates an empty table. `in_place`: overwrite entries of Hash tables directly if this Ruby allows it.
    pub(crate) fn new(in_place: bool) -> Self {
        let table = Table::find().filter(|_| in_place);
        Shapes { all: Vec::new(), last: 0, oldest: 1, seen: [0; SEEN], table }
    }

    /// Reads a head's `lines` as the last shape's sequence, the most likely one: into `fields`. Returns the shape if
    /// the lines have exactly its names; otherwise `fields` has the first of them.
    pub(crate) fn expect(&self, lines: &[u8], fields: &mut Vec<FieldAt>) -> Option<usize> {
        let shape = self.all.get(self.last)?;
        let (mut names, mut at) = (&shape.names[..], 0);
        for &length in &shape.lengths {
            let length = length as usize;
            let (name, other_names) = names.split_at(length);
            let value = lines.get(at..)?.strip_prefix(name)?;
            // The decoder has checked that each line ends in CRLF.
            let end = memchr::memchr(b'\n', value)?;
            let trimmed_start = value[..end].trim_ascii_start();
            let trimmed = trimmed_start.trim_ascii_end();
            let value_at = at + length + end - trimmed_start.len();
            fields.push(FieldAt {
                name: at as u32..(at + length - 1) as u32,
                value: value_at as u32..(value_at + trimmed.len()) as u32,
            });
            at += length + end + 1;
            names = other_names;
        }
        (at == lines.len()).then_some(self.last)
    }

    /// Returns the shape of this sequence, if there is one.
    pub(crate) fn find(&mut self, names: &[u8]) -> Option<usize> {
        if self.all.get(self.last)?.names != names {
            self.last = self.all.iter().position(|shape| shape.names == names)?;
        }
        Some(self.last)
    }

    /// Whether a sequence without a shape should get one: it occurs again.
    pub(crate) fn is_wanted(&mut self, names: &[u8]) -> bool {
        // FNV-1a: this is off the usual path, and a collision only creates a shape too early.
        let hash = names
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        let place = &mut self.seen[hash as usize % SEEN];
        std::mem::replace(place, hash) == hash
    }

    /// Adds a shape: a template whose last `fields` placeholders are for fields, some of which it may leave out.
    /// `None`: it has too many placeholders.
    pub(crate) fn add(&mut self, roots: &Roots, names: &[u8], template: VALUE, fields: usize) -> Option<usize> {
        let (placeholders, in_place) = self.placeholders(template);
        if placeholders.len() > MOST_PLACEHOLDERS {
            return None;
        }
        let mut recent = Vec::new();
        recent.resize_with(fields, Recent::default);
        let lengths = names.split_inclusive(|&byte| byte == b':').map(|name| name.len() as u32).collect();
        let mut shape = Shape { names: names.to_vec(), lengths, template: 0, placeholders, in_place, recent };
        if self.all.len() < MOST {
            shape.template = roots.add(template);
            self.all.push(shape);
            self.last = self.all.len() - 1;
        } else {
            self.last = self.oldest;
            // From 1 to the last and round again: the first stays.
            self.oldest = self.oldest % (MOST - 1) + 1;
            let place = &mut self.all[self.last];
            roots.set(place.template, template);
            shape.template = place.template;
            let old = std::mem::replace(place, shape);
            old.recent.into_iter().for_each(|value| value.release(roots));
        }
        Some(self.last)
    }

    /// Returns a template's placeholders, and whether their entries in a copy's table are known.
    fn placeholders(&self, template: VALUE) -> (Vec<Placeholder>, bool) {
        // The copy comes first: the collection that it may bring can move what the template holds.
        // SAFETY: a copy of a Hash, on the stack.
        let copy = unsafe { rb_sys::rb_hash_dup(template) };
        let mut pairs: Vec<(VALUE, VALUE)> = Vec::new();
        // SAFETY: `collect` has the required type, allocates nothing from Ruby and does not raise; the argument lives
        // in this frame.
        unsafe { rb_sys::rb_hash_foreach(template, Some(collect), (&raw mut pairs).expose_provenance() as VALUE) };
        let placeholder = |(entry, &(_, value)): (usize, &(VALUE, VALUE))| {
            rb::fixnum(value).map(|source| Placeholder { source: source as u32, entry: entry as u32 })
        };
        let placeholders = pairs.iter().enumerate().filter_map(placeholder).collect();
        let in_place = self.table.is_some_and(|table| table.has_entries(copy, &pairs));
        (placeholders, in_place)
    }

    /// Returns an environment: a copy of the shape's template, with placeholders replaced by `fixed` values and those
    /// of `fields` in `lines`. May raise.
    pub(crate) fn fill(
        &mut self,
        roots: &Roots,
        shape: usize,
        fixed: &[VALUE],
        fields: &[FieldAt],
        lines: &[u8],
    ) -> VALUE {
        let shape = &mut self.all[shape];
        // On the stack, where the garbage collector sees them. All exist before the copy does: nothing is allocated
        // until the copy has them.
        let mut values = [rb::NIL; MOST_PLACEHOLDERS];
        for (value, placeholder) in values.iter_mut().zip(&shape.placeholders) {
            let source = placeholder.source as usize;
            *value = match source.checked_sub(fixed.len()) {
                None => fixed[source],
                Some(field) => shape.recent[field].value(roots, fields[field].value(lines)),
            };
        }
        let template = roots.get(shape.template);
        // SAFETY: a Hash, kept in `roots`.
        let env = unsafe { rb_sys::rb_hash_dup(template) };
        let filled = match self.table {
            Some(table) if shape.in_place => table.fill(env, &shape.placeholders, &values),
            _ => false,
        };
        if !filled {
            let mut filling = Filling { env, values: &values, next: 0 };
            // SAFETY: `slowly` has the required type. It replaces values of existing keys, in another Hash than the one
            // walked; the argument lives in this frame.
            unsafe {
                rb_sys::rb_hash_foreach(template, Some(slowly), (&raw mut filling).expose_provenance() as VALUE);
            }
        }
        std::hint::black_box(&values);
        env
    }
}

type TableOf = unsafe extern "C" fn(VALUE, *const c_char, c_int) -> *mut st_table;
type Remember = unsafe extern "C" fn(VALUE);

/// Ruby's functions to overwrite entries of a Hash's table. They are exported, not documented; a Ruby without them uses
/// `slowly`.
#[derive(Clone, Copy, Debug)]
struct Table {
    of: TableOf,
    /// Has the garbage collector look again at an object that has new references.
    remember: Remember,
}

/// An entry of a table, which Ruby's headers declare without its fields. They have been these since Ruby 2.4;
/// [`Table::has_entries`] checks.
#[repr(C)]
struct Entry {
    hash: usize,
    key: VALUE,
    value: VALUE,
}

impl Table {
    fn find() -> Option<Self> {
        // The second, for Ruby 3.3 and newer, also takes the write barrier from the Hash. Each minor collection then
        // visits all environments that the application keeps.
        let of = rb::symbol(c"rb_hash_tbl_raw").or_else(|| rb::symbol(c"rb_hash_tbl"))?;
        let remember = rb::symbol(c"rb_gc_writebarrier_remember")?;
        // SAFETY: these names have had these types since Ruby 2.7.
        unsafe {
            Some(Table {
                of: std::mem::transmute::<*mut c_void, TableOf>(of),
                remember: std::mem::transmute::<*mut c_void, Remember>(remember),
            })
        }
    }

    /// Returns the entries of a Hash from which nothing was deleted.
    ///
    /// # Safety
    ///
    /// Nobody else uses the Hash, and it does not change while the slice is in use.
    unsafe fn entries<'h>(self, hash: VALUE) -> Option<&'h mut [Entry]> {
        // SAFETY: a Hash. It has too many keys for the small kind without a table. The first `entries_bound` entries
        // exist.
        unsafe {
            let table = &*(self.of)(hash, c"oroshi".as_ptr(), 0);
            let count = table.num_entries as usize;
            let is_dense = table.entries_start == 0 && table.entries_bound as usize == count;
            is_dense.then(|| std::slice::from_raw_parts_mut(table.entries.cast(), count))
        }
    }

    /// Whether the table has these pairs at these entries.
    fn has_entries(self, hash: VALUE, pairs: &[(VALUE, VALUE)]) -> bool {
        // SAFETY: a new Hash, on the caller's stack.
        let entries = unsafe { self.entries(hash) };
        entries.is_some_and(|entries| {
            entries.len() == pairs.len()
                && entries.iter().zip(pairs).all(|(entry, &(key, value))| (entry.key, entry.value) == (key, value))
        })
    }

    /// Puts values into the placeholders' entries. False: the table is not the template's.
    fn fill(self, env: VALUE, placeholders: &[Placeholder], values: &[VALUE]) -> bool {
        // SAFETY: a new Hash that nobody else has seen. Values change, keys and their order do not.
        let Some(entries) = (unsafe { self.entries(env) }) else { return false };
        if placeholders.last().is_some_and(|last| last.entry as usize >= entries.len()) {
            return false;
        }
        for (placeholder, &value) in placeholders.iter().zip(values) {
            entries[placeholder.entry as usize].value = value;
        }
        // SAFETY: a Hash. Nothing was allocated since the first value, so no collection has seen it half filled.
        unsafe { (self.remember)(env) };
        true
    }
}

const CONTINUE: c_int = 0;

/// Notes a pair.
unsafe extern "C" fn collect(key: VALUE, value: VALUE, pairs: VALUE) -> c_int {
    // SAFETY: the pointer given to `rb_hash_foreach`, whose frame waits.
    unsafe { &mut *std::ptr::with_exposed_provenance_mut::<Vec<(VALUE, VALUE)>>(pairs as usize) }.push((key, value));
    CONTINUE
}

/// The state of one pass over a template.
struct Filling<'f> {
    env: VALUE,
    /// The placeholders' values, in the template's order.
    values: &'f [VALUE],
    /// How many of them the environment has.
    next: usize,
}

/// Sets each key anew, for a Ruby without these functions.
unsafe extern "C" fn slowly(key: VALUE, value: VALUE, filling: VALUE) -> c_int {
    if rb_sys::macros::FIXNUM_P(value) {
        // SAFETY: the pointer given to `rb_hash_foreach`, whose frame waits.
        unsafe {
            let filling = &mut *std::ptr::with_exposed_provenance_mut::<Filling<'_>>(filling as usize);
            // A panic must not cross Ruby's frames.
            let new = filling.values.get(filling.next).copied().unwrap_or(rb::NIL);
            filling.next += 1;
            rb_sys::rb_hash_aset(filling.env, key, new);
        }
    }
    CONTINUE
}
