//! A timer finer than tokio's milliseconds.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::clock::monotonic_ns;

/// A timerfd for one task that paces itself.
///
/// Setting it costs one system call (`timerfd_settime`); waking costs none besides the runtime's epoll. It is never
/// read, because edge-triggered epoll reports each expiry once.
///
/// Accuracy: the kernel fires an hrtimer at the set instant, never earlier, and without the slack of epoll timeouts
/// (timer slack does not apply to timerfd). Waking the thread, and the tasks that run first, add about 20
/// microseconds on an idle core, more on a busy one.
#[derive(Debug)]
pub struct Timer {
    descriptor: AsyncFd<OwnedFd>,
    /// The instant it is set to; 0 after that has passed.
    armed: u64,
}

impl Timer {
    /// Makes a timer in the current runtime.
    ///
    /// # Errors
    /// When no descriptors are left.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    #[allow(unsafe_code)]
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let descriptor = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // SAFETY: an OwnedFd is open until it is dropped, always has the same number, and is only borrowed here.
        let descriptor = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?;
        Ok(Timer { descriptor, armed: 0 })
    }

    /// Sleeps until [`monotonic_ns`] is at least `instant`; returns at once if it already is.
    ///
    /// # Errors
    /// Only a defect can make the kernel refuse; the caller may stop.
    pub async fn sleep_until(&mut self, instant: u64) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_until(cx, instant)).await
    }

    /// [`Timer::sleep_until`] for a hand-written future: `Pending` until [`monotonic_ns`] is at least `instant`. The
    /// timer is set again only when `instant` changes.
    pub fn poll_until(&mut self, cx: &mut Context<'_>, instant: u64) -> Poll<io::Result<()>> {
        loop {
            if monotonic_ns() >= instant {
                return Poll::Ready(Ok(()));
            }
            if self.armed != instant {
                self.arm(instant)?;
            }
            // Readiness may be left from an earlier instant: then the clock decides, and the wait continues.
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
