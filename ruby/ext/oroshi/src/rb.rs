//! The raw part of Ruby's C interface: what the hot path needs and magnus does not offer safely.
//!
//! Two rules keep this sound. A Ruby exception leaves by `longjmp`: call whatever may raise inside [`protect`], in a
//! closure without values that need dropping. Ruby's garbage collector looks only at the machine stack: a `VALUE` in a
//! `Vec` or a `Box` must also be in [`Roots`].

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_long, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use magnus::rb_sys::{AsRawValue, FromRawValue};
use magnus::{Error, Ruby, Value};
use rb_sys::macros::{FIX2LONG, FIXNUM_P, RARRAY_CONST_PTR, RARRAY_LEN, RB_TYPE_P, RSTRING_LEN, RSTRING_PTR};
use rb_sys::{ID, RBasic, VALUE, ruby_value_type};

/// `nil`.
pub(crate) const NIL: VALUE = rb_sys::Qnil as VALUE;
/// `true`.
pub(crate) const TRUE: VALUE = rb_sys::Qtrue as VALUE;
/// `false`.
pub(crate) const FALSE: VALUE = rb_sys::Qfalse as VALUE;

/// Returns the interpreter. Everything in this crate runs on a Ruby thread.
pub(crate) fn ruby() -> Ruby {
    // SAFETY: this crate starts no threads, and without the GVL runs only a system call (`without_gvl`).
    unsafe { Ruby::get_unchecked() }
}

/// Converts a raw value for magnus.
pub(crate) fn value(raw: VALUE) -> Value {
    // SAFETY: `raw` came from Ruby and is alive: callers hold it on the stack or in `Roots`.
    unsafe { Value::from_raw(raw) }
}

/// Returns a new binary String. May raise NoMemoryError: no frame up to the next `protect` may hold values that need
/// dropping, or the process is as good as lost anyway.
pub(crate) fn string(bytes: &[u8]) -> VALUE {
    // SAFETY: pointer and length belong to one slice, which Ruby copies.
    unsafe { rb_sys::rb_str_new(pointer(bytes), bytes.len() as c_long) }
}

/// Returns the one frozen UTF-8 String with these bytes, the same as a literal's under `frozen_string_literal`: a
/// look-up by such a literal compares only two pointers.
pub(crate) fn interned(text: &str) -> VALUE {
    // SAFETY: as for `string`; UTF-8 always exists.
    unsafe { rb_sys::rb_enc_interned_str(pointer(text.as_bytes()), text.len() as c_long, rb_sys::rb_utf8_encoding()) }
}

/// Returns a slice's address. Ruby reads the word in which even an empty text begins, so it must exist.
fn pointer(bytes: &[u8]) -> *const c_char {
    if bytes.is_empty() { c"".as_ptr() } else { bytes.as_ptr().cast() }
}

/// Returns a frozen binary String, for values that many requests share.
pub(crate) fn frozen(bytes: &[u8]) -> VALUE {
    // SAFETY: a String that was just made may be frozen.
    unsafe { rb_sys::rb_obj_freeze(string(bytes)) }
}

/// Returns an unfrozen String with the bytes of a frozen one, sharing its memory until one of them changes.
pub(crate) fn shared(root: VALUE) -> VALUE {
    // SAFETY: `root` is a String, held in `Roots`.
    unsafe { rb_sys::rb_str_dup(root) }
}

/// Returns the ID of a method name.
pub(crate) fn id(name: &std::ffi::CStr) -> ID {
    // SAFETY: a C string; Ruby keeps a copy.
    unsafe { rb_sys::rb_intern(name.as_ptr()) }
}

/// Whether a value is a String.
pub(crate) fn is_string(raw: VALUE) -> bool {
    // SAFETY: `raw` is a live value.
    unsafe { RB_TYPE_P(raw, ruby_value_type::RUBY_T_STRING) }
}

/// Whether a value is a Hash, of whatever subclass.
pub(crate) fn is_hash(raw: VALUE) -> bool {
    // SAFETY: `raw` is a live value.
    unsafe { RB_TYPE_P(raw, ruby_value_type::RUBY_T_HASH) }
}

/// Whether a value is an Array, of whatever subclass.
pub(crate) fn is_array(raw: VALUE) -> bool {
    // SAFETY: `raw` is a live value.
    unsafe { RB_TYPE_P(raw, ruby_value_type::RUBY_T_ARRAY) }
}

/// Whether a value is a plain Array: neither of a subclass nor with methods of its own.
pub(crate) fn is_plain_array(raw: VALUE) -> bool {
    // SAFETY: an Array is a heap object, which begins with RBasic.
    is_array(raw) && unsafe { (*(raw as *const RBasic)).klass == rb_sys::rb_cArray }
}

/// Returns a small Integer's value.
pub(crate) fn fixnum(raw: VALUE) -> Option<i64> {
    // SAFETY: asked only of a fixnum.
    FIXNUM_P(raw).then(|| unsafe { FIX2LONG(raw) })
}

/// Returns the bytes of a String.
///
/// # Safety
///
/// `raw` is a String that stays alive, and no Ruby code runs while the slice is in use.
pub(crate) unsafe fn bytes<'a>(raw: VALUE) -> &'a [u8] {
    // SAFETY: see above.
    unsafe { std::slice::from_raw_parts(RSTRING_PTR(raw).cast(), RSTRING_LEN(raw) as usize) }
}

/// Returns the elements of an Array.
///
/// # Safety
///
/// `raw` is an Array that stays alive, and no Ruby code runs while the slice is in use.
pub(crate) unsafe fn elements<'a>(raw: VALUE) -> &'a [VALUE] {
    // SAFETY: see above.
    unsafe { std::slice::from_raw_parts(RARRAY_CONST_PTR(raw), RARRAY_LEN(raw) as usize) }
}

/// Calls a method; an exception becomes an error.
pub(crate) fn call(receiver: VALUE, method: ID, arguments: &[VALUE]) -> Result<VALUE, Error> {
    protect(|| call_raising(receiver, method, arguments))
}

/// Calls a method. May raise: use it within `protect`.
pub(crate) fn call_raising(receiver: VALUE, method: ID, arguments: &[VALUE]) -> VALUE {
    // SAFETY: live values, and the right number of arguments.
    unsafe { rb_sys::rb_funcallv(receiver, method, arguments.len() as c_int, arguments.as_ptr()) }
}

/// Whether an object has a public method of this name.
pub(crate) fn responds(raw: VALUE, method: ID) -> Result<bool, Error> {
    // SAFETY: a live value; `respond_to?` is Ruby code and may raise.
    protect(|| if unsafe { rb_sys::rb_respond_to(raw, method) } != 0 { TRUE } else { FALSE }).map(|it| it == TRUE)
}

/// Runs `function`, and returns an error if it raised, threw or was told to end. A panic continues behind Ruby's
/// frames.
pub(crate) fn protect(mut function: impl FnMut() -> VALUE) -> Result<VALUE, Error> {
    let mut panic = None;
    let result = magnus::rb_sys::protect(|| {
        catch_unwind(AssertUnwindSafe(&mut function)).unwrap_or_else(|payload| {
            panic = Some(payload);
            NIL
        })
    });
    match panic {
        Some(payload) => resume_unwind(payload),
        None => result,
    }
}

/// Runs `function` while other Ruby threads may run. It must not touch Ruby. A signal, or a thread that wants this one
/// to end, interrupts its system call; Ruby's handlers run before this returns.
pub(crate) fn without_gvl<T>(mut function: impl FnMut() -> T) -> Result<T, Error> {
    struct Job<'f, T> {
        function: &'f mut dyn FnMut() -> T,
        result: Option<T>,
    }
    unsafe extern "C" fn run<T>(job: *mut c_void) -> *mut c_void {
        // SAFETY: the pointer given below, while that frame waits.
        let job = unsafe { &mut *job.cast::<Job<'_, T>>() };
        job.result = Some((job.function)());
        std::ptr::null_mut()
    }
    let mut job = Job { function: &mut function, result: None };
    let pointer: *mut Job<'_, T> = &raw mut job;
    protect(|| {
        // SAFETY: `run` has the type that Ruby asks for. RUBY_UBF_IO is the constant -1: interrupt by a signal.
        unsafe {
            rb_sys::rb_thread_call_without_gvl(
                Some(run::<T>),
                pointer.cast(),
                std::mem::transmute::<isize, rb_sys::rb_unblock_function_t>(-1),
                std::ptr::null_mut(),
            );
        }
        NIL
    })?;
    job.result.ok_or_else(|| Error::new(ruby().exception_runtime_error(), "the wait did not begin"))
}

/// Returns the address of a Ruby function that not every version has.
pub(crate) fn symbol(name: &std::ffi::CStr) -> Option<*mut c_void> {
    // SAFETY: a C string, looked up in what is loaded.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// Values that the native side keeps: marked as long as their owner lives, and not moved.
#[derive(Debug, Default)]
pub(crate) struct Roots(UnsafeCell<RootSlots>);

/// The values of [`Roots`], by slot.
#[derive(Debug, Default)]
struct RootSlots {
    values: Vec<VALUE>,
    /// Slots without a value.
    free: Vec<usize>,
}

impl Roots {
    /// Keeps a value; returns its slot.
    pub(crate) fn add(&self, raw: VALUE) -> usize {
        // SAFETY: one thread at a time (the GVL), and nothing below allocates from Ruby: no mark sees it half done.
        let all = unsafe { &mut *self.0.get() };
        match all.free.pop() {
            Some(place) => {
                all.values[place] = raw;
                place
            }
            None => {
                all.values.push(raw);
                all.values.len() - 1
            }
        }
    }

    /// Releases a value; its slot is used again.
    pub(crate) fn release(&self, place: usize) {
        // SAFETY: as in `add`.
        let all = unsafe { &mut *self.0.get() };
        all.values[place] = NIL;
        all.free.push(place);
    }

    /// Replaces the value in a slot.
    pub(crate) fn set(&self, place: usize, raw: VALUE) {
        // SAFETY: as in `add`.
        unsafe { (&mut *self.0.get()).values[place] = raw };
    }

    /// Returns the value in a slot.
    pub(crate) fn get(&self, place: usize) -> VALUE {
        // SAFETY: as in `add`.
        unsafe { (&*self.0.get()).values[place] }
    }

    /// Marks all values, for the owner's mark function.
    pub(crate) fn mark(&self) {
        // SAFETY: the garbage collector runs between two uses of the above, never within one.
        for &raw in unsafe { &(&*self.0.get()).values } {
            // SAFETY: the value was alive when it was added, and has been marked ever since.
            unsafe { rb_sys::rb_gc_mark(raw) };
        }
    }
}

/// Returns the raw value of a magnus one.
pub(crate) fn raw(value: impl AsRawValue) -> VALUE {
    value.as_raw()
}
