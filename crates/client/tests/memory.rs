//! What a request costs in memory, counted at the allocator: this thread's allocations alone, so not the server's.
//! A binary of its own, as `allocation_counter` brings an allocator for all of it.
#![allow(clippy::print_stdout)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oroshi_client::local;
use oroshi_server::Exchange;
use support::{Running, builder, keeping};
use tokio::runtime::LocalRuntime;
use tokio::sync::Semaphore;

fn runtime() -> LocalRuntime {
    tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default()).unwrap()
}

#[test]
fn a_request_under_way_costs_less_than_two_kilobytes() {
    const MORE: usize = 1000;
    let (arrived, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (counter, gate) = (Arc::clone(&arrived), Arc::clone(&go));
    let server = Running::start(keeping(), async move |exchange: &mut Exchange<'_>| {
        counter.fetch_add(1, Ordering::SeqCst);
        let _ = gate.acquire().await;
        exchange.reply.send(200, [], b"hello").await
    });
    let runtime = runtime();
    let client = runtime.block_on(async { builder().build_local().unwrap() });
    let url: oroshi_net::Endpoint = server.url("/a/path/of/the/usual/length?and=a&query").parse().unwrap();
    let (ok, before) = (std::rc::Rc::new(std::cell::Cell::new(0)), std::cell::Cell::new(0));
    let begin = |count: usize| {
        allocation_counter::measure(|| {
            runtime.block_on(async {
                for _ in 0..count {
                    let (request, ok) = (client.get(&url), std::rc::Rc::clone(&ok));
                    tokio::task::spawn_local(async move {
                        let response = request.send().await.unwrap();
                        ok.set(ok.get() + usize::from(response.text().await.unwrap() == "hello"));
                    });
                }
                before.set(before.get() + count);
                while arrived.load(Ordering::SeqCst) < before.get() {
                    tokio::task::yield_now().await;
                }
            });
        })
    };
    begin(50);
    let held = begin(MORE);
    let each = held.bytes_current / MORE as i64;
    println!("{each} bytes for each request under way"); // seen with --nocapture
    assert!((1..2048).contains(&each), "{each} bytes for each request, its task and its socket included");
    assert_eq!(client.counts().in_flight, MORE + 50);

    let after = allocation_counter::measure(|| {
        runtime.block_on(async {
            go.add_permits(2 * MORE);
            while ok.get() < MORE + 50 {
                tokio::task::yield_now().await;
            }
        });
    });
    let freed = -after.bytes_current / MORE as i64;
    assert!(freed > each * 2 / 5, "idle connections cost less than requests: {freed} of {each} bytes freed");
    runtime.block_on(async { client.close_idle() });
    assert_eq!(client.counts().open, 0);
    server.stop();
}

/// Allocations of one request on a kept connection, from the call to the text.
fn per_request(client: &local::Client, runtime: &LocalRuntime, url: &oroshi_net::Endpoint) -> u64 {
    const REQUESTS: u64 = 1000;
    let counted = allocation_counter::measure(|| {
        runtime.block_on(async {
            for _ in 0..REQUESTS {
                assert_eq!(client.get(url).send().await.unwrap().text().await.unwrap(), "hello");
            }
        });
    });
    counted.count_total / REQUESTS
}

#[test]
fn a_request_on_a_kept_connection_allocates_little() {
    let server =
        Running::start(keeping(), async |exchange: &mut Exchange<'_>| exchange.reply.send(200, [], b"hello").await);
    let runtime = runtime();
    let client = runtime.block_on(async { builder().build_local().unwrap() });
    let url = server.url("/").parse().unwrap();
    per_request(&client, &runtime, &url);
    let allocations = per_request(&client, &runtime, &url);
    // The endpoint and the request, the pool's key, exchange and seat, the head's parts, the answer, the body.
    assert!(allocations <= 18, "{allocations} allocations for a request");
    server.stop();
}

/// 100,000 requests, or as many as `OROSHI_SOAK` says: memory does not grow with their number.
#[test]
fn memory_is_flat() {
    let requests: usize =
        std::env::var("OROSHI_SOAK").map_or(100_000, |text| text.parse().expect("OROSHI_SOAK is a number"));
    const AT_ONCE: usize = 64;
    let server = Running::start(keeping(), async |exchange: &mut Exchange<'_>| {
        // Some in chunks, some to be left, some that cost their connection.
        match exchange.head.target {
            "/chunks" => {
                exchange.reply.begin(200, [], None)?;
                exchange.reply.write(b"hel").await?;
                exchange.reply.write(b"lo").await?;
                exchange.reply.finish()
            }
            "/away" => exchange.reply.send(302, [("Location", &b"/"[..])], b"").await,
            "/close" => {
                exchange.reply.close();
                exchange.reply.send(200, [], b"hello").await
            }
            _ => exchange.reply.send(200, [], b"hello").await,
        }
    });
    let runtime = runtime();
    let client = runtime.block_on(async { builder().connections(AT_ONCE / 2).build_local().unwrap() });
    let run = |requests: usize| {
        runtime.block_on(async {
            let left = std::rc::Rc::new(std::cell::Cell::new(requests));
            let tasks: Vec<_> = (0..AT_ONCE)
                .map(|_| {
                    let (client, left) = (client.clone(), std::rc::Rc::clone(&left));
                    let urls = ["/", "/chunks", "/away", "/close"].map(|target| server.url(target));
                    tokio::task::spawn_local(async move {
                        while let number @ 1.. = left.get() {
                            left.set(number - 1);
                            // Mostly plain ones; a connection for one in a hundred.
                            let url = match number % 100 {
                                0 => &urls[3],
                                1 => &urls[2],
                                2..20 => &urls[1],
                                _ => &urls[0],
                            };
                            let response = client.get(url).send().await.unwrap();
                            if number % 7 > 0 {
                                assert_eq!(response.text().await.unwrap(), "hello");
                            }
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
    };
    run(5_000);
    let counted = allocation_counter::measure(|| run(requests));
    assert!(counted.bytes_current.abs() < 64 * 1024, "{counted:?} after {requests} requests");
    assert!(counted.bytes_max < 1 << 20, "{counted:?}");
    let counts = client.counts();
    assert_eq!((counts.in_flight, counts.waiting, counts.open), (0, 0, counts.idle));
    assert_eq!((counts.requests, counts.failures), (requests as u64 + 5_000, 0));
    server.stop();
}
