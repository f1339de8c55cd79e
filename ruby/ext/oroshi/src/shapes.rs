//! Header shapes: clients send the same field names in the same order, request after request.
//!
//! For each such sequence a template Hash holds every key of the environment: constant values directly, and for each
//! other value a small Integer, a placeholder. A request's environment is a copy of the template's table (no key is
//! hashed, compared or interned), in which one pass replaces the placeholders.
//!
//! Shapes are bounded: 64, and only a sequence that occurs twice gets one. The first shape stays for good.

use std::any::Any;
use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use rb_sys::{VALUE, st_data_t, st_table};

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
    /// The template's slot in the roots.
    template: usize,
    /// Number of placeholders in the template.
    dynamic: usize,
    /// The last value of each field.
    recent: Vec<Recent>,
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

impl Shapes {
    /// Creates an empty table. `in_place`: fill Hash tables directly if this Ruby allows it.
    pub(crate) fn new(in_place: bool) -> Self {
        let table = Table::find().filter(|_| in_place);
        Shapes { all: Vec::new(), last: 0, oldest: 1, seen: [0; SEEN], table }
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

    /// Adds a shape: a template with `dynamic` placeholders, the last `fields` of which are for fields.
    pub(crate) fn add(&mut self, roots: &Roots, names: &[u8], template: VALUE, dynamic: usize, fields: usize) -> usize {
        let mut recent = Vec::new();
        recent.resize_with(fields, Recent::default);
        if self.all.len() < MOST {
            let template = roots.add(template);
            self.all.push(Shape { names: names.to_vec(), template, dynamic, recent });
            self.last = self.all.len() - 1;
        } else {
            self.last = self.oldest;
            // From 1 to the last and round again: the first stays.
            self.oldest = self.oldest % (MOST - 1) + 1;
            let shape = &mut self.all[self.last];
            roots.set(shape.template, template);
            let new = Shape { names: names.to_vec(), template: shape.template, dynamic, recent };
            let old = std::mem::replace(shape, new);
            old.recent.into_iter().for_each(|value| value.release(roots));
        }
        self.last
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
        let template = roots.get(shape.template);
        // SAFETY: a Hash, kept in `roots`.
        let env = unsafe { rb_sys::rb_hash_dup(template) };
        let (left, recent) = (shape.dynamic, &mut shape.recent);
        let mut filling = Filling { env, left, roots, recent, fixed, fields, lines, panic: None };
        match &self.table {
            Some(table) => table.fill(env, &mut filling),
            // SAFETY: `slowly` has the required type. It replaces values of existing keys, in another Hash than the one
            // walked; the argument lives in this frame.
            None => unsafe {
                rb_sys::rb_hash_foreach(template, Some(slowly), (&raw mut filling).expose_provenance() as VALUE);
            },
        }
        if let Some(panic) = filling.panic {
            resume_unwind(panic);
        }
        env
    }
}

/// The state of one pass over a copy.
struct Filling<'f> {
    env: VALUE,
    /// Placeholders not yet replaced.
    left: usize,
    roots: &'f Roots,
    recent: &'f mut [Recent],
    fixed: &'f [VALUE],
    fields: &'f [FieldAt],
    lines: &'f [u8],
    /// A panic, which must not cross Ruby's frames; it continues behind them.
    panic: Option<Box<dyn Any + Send>>,
}

impl Filling<'_> {
    /// Returns the value for a placeholder.
    fn value_of(&mut self, placeholder: VALUE) -> VALUE {
        let number = rb::fixnum(placeholder).unwrap_or_default() as usize;
        catch_unwind(AssertUnwindSafe(|| self.value(number))).unwrap_or_else(|payload| {
            self.panic = Some(payload);
            rb::NIL
        })
    }

    fn value(&mut self, number: usize) -> VALUE {
        self.left = self.left.saturating_sub(1);
        match number.checked_sub(self.fixed.len()) {
            None => self.fixed[number],
            Some(field) => self.recent[field].value(self.roots, self.fields[field].value(self.lines)),
        }
    }
}

type TableOf = unsafe extern "C" fn(VALUE, *const c_char, c_int) -> *mut st_table;
type Choose = unsafe extern "C" fn(st_data_t, st_data_t, st_data_t, c_int) -> c_int;
type Replace = unsafe extern "C" fn(*mut st_data_t, *mut st_data_t, st_data_t, c_int) -> c_int;
type ReplaceEach = unsafe extern "C" fn(*mut st_table, Choose, Replace, st_data_t) -> c_int;

/// Ruby's functions to fill a Hash's table in place. They are exported, not documented; a Ruby without them uses
/// `slowly`.
#[derive(Clone, Copy, Debug)]
struct Table {
    of: TableOf,
    replace_each: ReplaceEach,
}

const CONTINUE: c_int = 0;
const STOP: c_int = 1;
const REPLACE: c_int = 4;

impl Table {
    fn find() -> Option<Self> {
        let (of, each) = (rb::symbol(c"rb_hash_tbl")?, rb::symbol(c"rb_st_foreach_with_replace")?);
        // SAFETY: these names have had these types since Ruby 2.7.
        unsafe {
            Some(Table {
                of: std::mem::transmute::<*mut c_void, TableOf>(of),
                replace_each: std::mem::transmute::<*mut c_void, ReplaceEach>(each),
            })
        }
    }

    fn fill(&self, env: VALUE, filling: &mut Filling<'_>) {
        // SAFETY: a Hash that nobody else has seen, with too many keys for the small kind without a table. The pass
        // replaces only values, so the table does not change.
        unsafe {
            let table = (self.of)(env, c"oroshi".as_ptr(), 0);
            (self.replace_each)(table, choose, replace, std::ptr::from_mut(filling).expose_provenance() as st_data_t);
        }
    }
}

/// Selects placeholders; ends the pass after the last of them.
unsafe extern "C" fn choose(_key: st_data_t, value: st_data_t, filling: st_data_t, _error: c_int) -> c_int {
    if rb_sys::macros::FIXNUM_P(value as VALUE) {
        return REPLACE;
    }
    // SAFETY: the pointer given to `replace_each`, whose frame waits.
    let filling = unsafe { &*std::ptr::with_exposed_provenance::<Filling<'_>>(filling as usize) };
    if filling.left == 0 { STOP } else { CONTINUE }
}

/// Replaces a placeholder by its value.
unsafe extern "C" fn replace(
    _key: *mut st_data_t,
    value: *mut st_data_t,
    filling: st_data_t,
    _existing: c_int,
) -> c_int {
    // SAFETY: as in `choose`; `value` is the table's, for us to change. The garbage collector learns of the new
    // reference before it is stored, and nothing is allocated in between.
    unsafe {
        let filling = &mut *std::ptr::with_exposed_provenance_mut::<Filling<'_>>(filling as usize);
        let new = filling.value_of(*value as VALUE);
        rb_sys::rb_gc_writebarrier(filling.env, new);
        *value = new as st_data_t;
    }
    CONTINUE
}

/// Sets each key anew, for a Ruby without these functions.
unsafe extern "C" fn slowly(key: VALUE, value: VALUE, filling: VALUE) -> c_int {
    if rb_sys::macros::FIXNUM_P(value) {
        // SAFETY: the pointer given to `rb_hash_foreach`, whose frame waits.
        unsafe {
            let filling = &mut *std::ptr::with_exposed_provenance_mut::<Filling<'_>>(filling as usize);
            let new = filling.value_of(value);
            rb_sys::rb_hash_aset(filling.env, key, new);
        }
    }
    CONTINUE
}
