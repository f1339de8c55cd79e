//! Wishes of a journey: a request, the assets of a page, a pause.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;

use oroshi_net::monotonic_ns;

use crate::assets;
use crate::request::perform;
use crate::state::Got;
use crate::thread::{Thread, Wish};
use crate::user::User;

/// Pause after a request that failed, nanoseconds.
const BACKOFF: u64 = 1_000_000;

/// Carries out a wish. Lets other tasks run in any case: journeys whose wishes never wait would otherwise hold up the
/// end of the run, and of a phase.
pub(crate) async fn fulfil(thread: &Rc<Thread>, user: &Rc<User>, wish: Wish) -> Got {
    let mut work = pin!(obtain(thread, user, wish));
    let mut waited = false;
    let got = poll_fn(|cx| {
        let polled = work.as_mut().poll(cx);
        waited |= polled.is_pending();
        polled
    })
    .await;
    if !waited {
        tokio::task::yield_now().await;
    }
    got
}

async fn obtain(thread: &Rc<Thread>, user: &Rc<User>, wish: Wish) -> Got {
    if !matches!(wish, Wish::Request(_)) {
        // Only a request that comes first was due when the user arrived.
        user.due.set(None);
    }
    match wish {
        Wish::Request(spec) => {
            let response = perform(thread, user, *spec).await;
            if response.error.is_some() {
                // A server that is not there is not to be hammered.
                thread.sleeper.sleep_until(monotonic_ns() + BACKOFF).await;
            }
            Got::response(response)
        }
        Wish::Assets(wanted) => Got::Assets(assets::fetch(thread, user, *wanted).await),
        Wish::Think(think) => {
            let pause = think.draw(&mut user.choices.borrow_mut());
            thread.sleeper.sleep_until(monotonic_ns() + pause.as_nanos() as u64).await;
            Got::Paused(pause.as_secs_f64())
        }
    }
}
