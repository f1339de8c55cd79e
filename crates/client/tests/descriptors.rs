//! Running out of file descriptors. Alone in its process, whose limit it lowers.

mod support;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::nginx::Nginx;
use support::{block_on, builder, told};

#[test]
fn beyond_the_descriptors_requests_wait() {
    const REQUESTS: usize = 60;
    // In a process of its own, as the limit is for the client to meet.
    let Some(nginx) = Nginx::start("beyond_the_descriptors_requests_wait") else { return };
    block_on(async {
        let client = builder().build_local().unwrap();
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(open + 7), maximum: limit.maximum }).unwrap();
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
