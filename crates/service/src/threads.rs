//! The threads of a service: their options, readiness, the end.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use oroshi_net::notify::ServiceManager;
use oroshi_net::{CpuList, Shutdown, ThreadsOptions};

/// Returns the options of threads named `name-0`..., which end together if one panics.
pub fn thread_options(name: &str, threads: usize, cpus: Option<&CpuList>, shutdown: &Shutdown) -> ThreadsOptions {
    let mut options = ThreadsOptions::new(name, threads);
    options.cpus = cpus.cloned();
    options.stop = Some(shutdown.clone());
    options
}

/// Tells the service manager, if there is one, that the service is ready (sd_notify(3)).
pub fn notify_ready() {
    ServiceManager::find().tell("READY=1\n");
}

/// Runs `work` to its end, or drops it at the second shutdown request.
pub async fn until_second_request(shutdown: &Shutdown, work: impl Future<Output = ()>) {
    let (mut work, mut second) = (pin!(work), pin!(shutdown.reached(2)));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Pending => second.as_mut().poll(context),
        ended => ended,
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_ends_by_itself_and_at_the_second_request() {
        let shutdown = Shutdown::new();
        until_second_request(&shutdown, std::future::ready(())).await;
        shutdown.request();
        let mut pending = pin!(until_second_request(&shutdown, std::future::pending()));
        let polled = poll_fn(|context| Poll::Ready(pending.as_mut().poll(context))).await;
        assert!(polled.is_pending(), "one request lets the work go on");
        shutdown.request();
        pending.await;
    }
}
