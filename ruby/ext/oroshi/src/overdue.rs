//! The 504 of a request that runs too long, sent by a signal handler: Ruby may be stuck in a loop, a query or in C.
//!
//! The manager condemns a request in the scoreboard and sends SIGURG. The handler, on whatever thread the kernel
//! picks, may meet the main thread anywhere. So the right to write to the client is one atomic word: who swaps it from
//! `WAITING` writes, the other keeps its hands off. The descriptor stays open until the main thread has taken the
//! word, so the handler never writes to a number that means something else by then.

use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32};

use crate::scoreboard::Slot;

/// Nobody is to be told anything.
const NOBODY: u32 = 0;
/// The application works on a request, and no byte of an answer is out.
const WAITING: u32 = 1;
/// The handler writes its 504.
const TELLING: u32 = 2;
/// The handler has written it, and ended the sending side.
const TOLD: u32 = 3;

static RIGHT: AtomicU32 = AtomicU32::new(NOBODY);
static SOCKET: AtomicI32 = AtomicI32::new(-1);
static SLOT: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());
/// What Ruby had installed, called after ours.
static RUBYS: AtomicPtr<libc::c_void> = AtomicPtr::new(ptr::null_mut());

const ANSWER: &[u8] = b"HTTP/1.1 504 Gateway Timeout\r\nContent-Type: text/plain\r\nContent-Length: 16\r\n\
    Connection: close\r\n\r\nGateway Timeout\n";

/// The signal that the manager sends.
pub(crate) const SIGNAL: i32 = libc::SIGURG;

/// Puts the handler before the one that Ruby has installed for [`SIGNAL`].
pub(crate) fn install(slot: &'static Slot) -> std::io::Result<()> {
    SLOT.store(ptr::from_ref(slot).cast_mut(), Release);
    // SAFETY: zeros are a valid sigaction, and the handler has the type that SA_SIGINFO asks for and does only what is
    // allowed in a signal handler.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        crate::socket::checked(libc::sigaction(SIGNAL, ptr::null(), &raw mut before) as isize)?;
        let ours = handler as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
        if before.sa_sigaction == ours {
            return Ok(());
        }
        RUBYS.store(before.sa_sigaction as *mut libc::c_void, Release);
        let mut action = before;
        action.sa_sigaction = ours;
        action.sa_flags |= libc::SA_SIGINFO | libc::SA_RESTART;
        crate::socket::checked(libc::sigaction(SIGNAL, &raw const action, ptr::null_mut()) as isize)?;
    }
    Ok(())
}

/// The application is about to work on a request of this connection.
pub(crate) fn arm(socket: i32) {
    SOCKET.store(socket, Relaxed);
    RIGHT.store(WAITING, Release);
}

/// Takes the right to write to the client. False: it was given a 504, and the connection is to be dropped.
pub(crate) fn claim() -> bool {
    match RIGHT.compare_exchange(WAITING, NOBODY, AcqRel, Acquire) {
        Ok(_) | Err(NOBODY) => true,
        Err(_) => {
            // The handler runs on another thread, for some microseconds at most.
            while RIGHT.load(Acquire) == TELLING {
                std::hint::spin_loop();
            }
            RIGHT.store(NOBODY, Release);
            false
        }
    }
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno's address is the thread's own; the interrupted code must find it unchanged.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: null, or a slot that is never unmapped.
    let slot = unsafe { SLOT.load(Acquire).as_ref() };
    if let Some(slot) = slot.filter(|slot| slot.is_condemned()) {
        if RIGHT.compare_exchange(WAITING, TELLING, AcqRel, Acquire).is_ok() {
            let socket = SOCKET.load(Relaxed);
            // SAFETY: the main thread neither writes to nor closes the socket before it has looked at RIGHT. Both
            // calls are allowed in a signal handler, and neither blocks.
            unsafe {
                libc::send(socket, ANSWER.as_ptr().cast(), ANSWER.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
                libc::shutdown(socket, libc::SHUT_WR);
            }
            slot.tell();
            RIGHT.store(TOLD, Release);
        }
        let rubys = RUBYS.load(Acquire);
        if rubys as usize != libc::SIG_DFL && rubys as usize != libc::SIG_IGN {
            // SAFETY: what Ruby had installed as a handler; the two more arguments do no harm to one that takes one.
            let rubys: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(rubys) };
            rubys(signal, info, context);
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}
