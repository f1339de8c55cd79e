//! Happy eyeballs (RFC 8305) for several addresses. Families alternate, each attempt gets a short head start, and the
//! first connection wins.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

/// Returns addresses in the order to try: families alternate, beginning with the first address's (RFC 8305, section 4).
pub(crate) fn interleaved(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let Some(first) = addresses.first() else { return Vec::new() };
    let (same, other): (Vec<IpAddr>, Vec<IpAddr>) =
        addresses.iter().partition(|address| address.is_ipv4() == first.is_ipv4());
    let (mut same, mut other) = (same.into_iter(), other.into_iter());
    let mut order = Vec::with_capacity(addresses.len());
    loop {
        let (one, two) = (same.next(), other.next());
        if one.is_none() && two.is_none() {
            return order;
        }
        order.extend(one);
        order.extend(two);
    }
}

/// Runs attempts until one succeeds. The next begins when the previous one fails, or `delay` after it began. Drops the
/// others. Returns the last error if all fail; `None` without any attempt.
pub(crate) async fn race<'a, A: 'a, T, E>(
    attempts: Vec<A>,
    delay: Duration,
    begin: impl Fn(A) -> Pin<Box<dyn Future<Output = Result<T, E>> + 'a>>,
) -> Option<Result<T, E>> {
    let mut attempts = attempts.into_iter();
    let mut running = vec![begin(attempts.next()?)];
    let mut pause = pin!(tokio::time::sleep(delay));
    poll_fn(|context| {
        loop {
            let mut last = None;
            let mut at = 0;
            while at < running.len() {
                match running[at].as_mut().poll(context) {
                    Poll::Ready(Ok(value)) => return Poll::Ready(Some(Ok(value))),
                    Poll::Ready(Err(error)) => {
                        last = Some(error);
                        drop(running.remove(at));
                    }
                    Poll::Pending => at += 1,
                }
            }
            if last.is_none() && pause.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            match attempts.next() {
                Some(attempt) => {
                    running.push(begin(attempt));
                    pause.as_mut().reset(tokio::time::Instant::now() + delay);
                }
                None if running.is_empty() => return Poll::Ready(last.map(Err)),
                None => {
                    // No attempts are left to start; only running ones remain.
                    pause.as_mut().reset(tokio::time::Instant::now() + Duration::from_secs(3600));
                }
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn families_take_turns() {
        let all: Vec<IpAddr> =
            ["::1", "::2", "::3", "1.1.1.1", "2.2.2.2"].iter().map(|text| text.parse().unwrap()).collect();
        let order: Vec<String> = interleaved(&all).iter().map(ToString::to_string).collect();
        assert_eq!(order, ["::1", "1.1.1.1", "::2", "2.2.2.2", "::3"]);
        assert!(interleaved(&[]).is_empty());
    }

    /// Attempts by their result: `ok` at once, `fail` at once, `hang` for ever.
    fn run(plan: &[&'static str], delay: Duration) -> (Option<Result<&'static str, &'static str>>, Vec<&'static str>) {
        let begun = RefCell::new(Vec::new());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let result = runtime.block_on(race(plan.to_vec(), delay, |what| {
            begun.borrow_mut().push(what);
            Box::pin(async move {
                match what {
                    what if what.starts_with("ok") => Ok(what),
                    what if what.starts_with("fail") => Err(what),
                    _ => std::future::pending().await,
                }
            })
        }));
        (result, begun.into_inner())
    }

    #[test]
    fn the_next_begins_when_one_fails_or_takes_too_long() {
        let never = Duration::from_secs(3600);
        assert_eq!(run(&["ok-1", "ok-2"], never), (Some(Ok("ok-1")), vec!["ok-1"]));
        assert_eq!(run(&["fail-1", "ok-2"], never), (Some(Ok("ok-2")), vec!["fail-1", "ok-2"]));
        assert_eq!(run(&["fail-1", "fail-2"], never).0, Some(Err("fail-2")));
        assert_eq!(run(&[], never).0, None);
        let soon = Duration::from_millis(10);
        assert_eq!(run(&["hang", "hang", "ok-3"], soon), (Some(Ok("ok-3")), vec!["hang", "hang", "ok-3"]));
        assert_eq!(run(&["hang", "fail-2", "ok-3"], soon).0, Some(Ok("ok-3")));
    }
}
