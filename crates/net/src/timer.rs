//! A timer finer than tokio's, whose unit is the millisecond.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::clock::monotonic_ns;

/// One timerfd, for one task that paces itself. Setting it costs one system call (`timerfd_settime`), and being woken
/// by it none besides the runtime's own epoll: it is never read, as epoll, being edge-triggered, reports each expiry
/// once.
///
/// Accuracy: the kernel fires an hrtimer at the instant set, never before it and without the slack that timeouts of
/// epoll have (timer slack does not apply to timerfd). What is added is the time to wake up the thread and the tasks
/// that the runtime runs first: about 20 microseconds on an idle core, more on a busy one.
#[derive(Debug)]
pub struct Timer {
    descriptor: AsyncFd<OwnedFd>,
    /// The instant it is set to, 0 when that has passed.
    armed: u64,
}

impl Timer {
    /// A timer of the current runtime.
    ///
    /// # Errors
    /// When descriptors run out.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    #[allow(unsafe_code)]
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let descriptor = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // SAFETY: an OwnedFd is open until it is dropped, always gives the same number, and is only ever borrowed here.
        let descriptor = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?;
        Ok(Timer { descriptor, armed: 0 })
    }

    /// Sleeps until [`monotonic_ns`] is at least `instant`; not at all if it is already.
    ///
    /// # Errors
    /// Only a defect can make the kernel refuse: the caller may as well stop.
    pub async fn sleep_until(&mut self, instant: u64) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_until(cx, instant)).await
    }

    /// [`Timer::sleep_until`] for a hand-written future: `Pending` until [`monotonic_ns`] is at least `instant`. The
    /// instant may differ from call to call; the timer is set anew only when it does.
    pub fn poll_until(&mut self, cx: &mut Context<'_>, instant: u64) -> Poll<io::Result<()>> {
        loop {
            if monotonic_ns() >= instant {
                return Poll::Ready(Ok(()));
            }
            if self.armed != instant {
                self.arm(instant)?;
            }
            // Ready may be what is left of an earlier instant: then the clock says so, and the wait goes on.
            ready!(self.descriptor.poll_read_ready(cx))?.clear_ready();
        }
    }

    fn arm(&mut self, instant: u64) -> io::Result<()> {
        let at = Timespec { tv_sec: (instant / 1_000_000_000) as i64, tv_nsec: (instant % 1_000_000_000) as i64 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        timerfd_settime(self.descriptor.get_ref(), TimerfdTimerFlags::ABSTIME, &once)?;
        self.armed = instant;
        Ok(())
    }
}
