//! N requests under way on one connection of HTTP/2 over cleartext, until COUNT are done: CPU time per request.
//!
//! ```text
//! nghttpd --no-tls -m 1000 -d FOLDER 8080
//! cargo run --release -p oroshi-client --example streams -- http://127.0.0.1:8080/index.html 1000 200000
//! ```
#![allow(clippy::print_stdout)] // it is a program

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::time::Instant;

use oroshi_client::{Client, Version};
use oroshi_net::clock::process_cpu_ns;
use oroshi_net::{Endpoint, Threads, ThreadsOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("usage: streams URL N COUNT");
    let url: Endpoint = next()?.parse()?;
    let (at_once, count): (usize, u64) = (next()?.parse()?, next()?.parse()?);
    Threads::run(&ThreadsOptions::new("streams", 1), move |_| {
        let url = url.clone();
        async move {
            let client =
                Client::builder().http2_prior_knowledge().connections(1).build_local().expect("sound settings");
            let first = client.get(&url).send().await.expect("an answer");
            assert_eq!((first.version(), first.status()), (Version::Http2, 200));
            let (cpu, start) = (process_cpu_ns(), Instant::now());
            let left = Rc::new(Cell::new(count));
            let tasks: Vec<_> = (0..at_once)
                .map(|_| {
                    let (client, url, left) = (client.clone(), url.clone(), Rc::clone(&left));
                    tokio::task::spawn_local(async move {
                        while left.get() > 0 {
                            left.set(left.get() - 1);
                            let response = client.get(&url).send().await.expect("an answer");
                            assert_eq!(response.status(), 200);
                            response.bytes().await.expect("a body");
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("no panic");
            }
            let (cpu, wall) = (process_cpu_ns() - cpu, start.elapsed());
            println!(
                "{:.2} us of CPU per request, {:.0} requests/s, {} connections",
                cpu as f64 / 1e3 / count as f64,
                count as f64 / wall.as_secs_f64(),
                client.counts().connects
            );
        }
    })?;
    Ok(())
}
