//! Running out of file descriptors. Alone in its process, whose limit it lowers.

mod support;

use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use oroshi_client::Deadlines;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::nginx;
use support::{HANG, block_on, builder, patient, told};

/// The limit is the whole process's: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Leaves room for seven more descriptors. Returns the limit as it was.
fn leave_seven() -> Rlimit {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(open + 7), maximum: limit.maximum }).unwrap();
    limit
}

#[test]
fn beyond_the_descriptors_requests_wait() {
    const REQUESTS: usize = 60;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // In a process of its own, as the limit is for the client to meet.
    let Some(nginx) = nginx::start("beyond_the_descriptors_requests_wait") else { return };
    block_on(async {
        let client = builder().build_local().unwrap();
        let limit = leave_seven();
        let tasks: Vec<_> = (0..REQUESTS)
            .map(|_| {
                let request = client.get(&nginx.http);
                tokio::task::spawn_local(async move { request.send().await?.text().await })
            })
            .collect();
        let mut texts = Vec::new();
        for task in tasks {
            texts.push(task.await.unwrap());
        }
        setrlimit(Resource::Nofile, limit).unwrap();
        for text in texts {
            assert_eq!(text.map_err(|error| told(&error)).unwrap(), "hello from nginx");
        }
        let counts = client.counts();
        assert!(counts.connects < REQUESTS as u64, "others waited for a connection: {counts:?}");
        assert_eq!((counts.failures, counts.in_flight, counts.waiting), (0, 0, 0));
    });
    // A cap that the process cannot have is lowered beforehand.
    let client = oroshi_client::Client::builder().connections(usize::MAX / 2).build_local().unwrap();
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    assert!((client.counts().connections as u64) < limit, "{:?} of {limit}", client.counts());
}

/// Connections to it are made by the kernel; nobody ever answers, and it needs no descriptor for them.
fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    (listener, url)
}

#[test]
fn who_waits_profits_when_there_are_descriptors_again() {
    const REQUESTS: usize = 12;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (_listener, url) = silent();
    block_on(async {
        let client = builder().build_local().unwrap();
        let limit = leave_seven();
        let tasks: Vec<_> = (0..REQUESTS).map(|_| tokio::task::spawn_local(client.get(&url).send())).collect();
        while client.counts().waiting == 0 {
            tokio::task::yield_now().await;
        }
        setrlimit(Resource::Nofile, limit).unwrap();
        // Nobody comes, and nothing comes back: only time passes.
        let mut tick = tokio::time::interval(Duration::from_millis(5));
        let all = async {
            while client.counts().connects < REQUESTS as u64 {
                tick.tick().await;
            }
        };
        let done = tokio::time::timeout(HANG, all).await;
        assert!(done.is_ok(), "{:?}", client.counts());
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    });
}

#[test]
fn the_time_in_line_counts_on_however_often_there_is_no_descriptor() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (_listener, url) = silent();
    block_on(async {
        // Longer than the client makes do with what it has, so that it tries in vain in between.
        let deadlines = Deadlines { queue: Duration::from_millis(1500), ..patient() };
        let client = builder().deadlines(deadlines).build_local().unwrap();
        let limit = leave_seven();
        let (failed, mut failures) = tokio::sync::mpsc::unbounded_channel();
        let tasks: Vec<_> = (0..12)
            .map(|_| {
                let (request, failed) = (client.get(&url), failed.clone());
                tokio::task::spawn_local(async move { failed.send(request.send().await.unwrap_err()) })
            })
            .collect();
        let error = failures.recv().await.unwrap();
        setrlimit(Resource::Nofile, limit).unwrap();
        assert_eq!(error.name(), "queue-timeout", "{}", told(&error));
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    });
}
