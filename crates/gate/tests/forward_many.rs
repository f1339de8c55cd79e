//! More targets than a core keeps pools for.

mod support;

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use oroshi_gate::forward::{Call, CallTargets, Outcome, Rules, forward};
use oroshi_gate::upstream::{PoolSettings, Pools, Registry, Settings, Target};
use oroshi_net::{BoundListener, ListenOptions, Peer, ensure_descriptors};
use oroshi_server::{Exchange, Server};
use support::{Client, HANG, OK, patient};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const TARGETS: usize = 20_000;
const POOLS: usize = 2_000;

/// Answers on every address of the loopback network, on a thread of its own. The port.
fn servers() -> u16 {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
        runtime.unwrap().block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::task::spawn_local(async move {
                    let mut request = [0; 1024];
                    // Requests come one by one, each in one piece.
                    while stream.read(&mut request).await.is_ok_and(|count| count > 0) {
                        if stream.write_all(OK.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
    });
    port
}

#[test]
fn of_twenty_thousand_targets_the_last_ones_keep_their_connections() {
    ensure_descriptors(2 * POOLS as u64 + 100).unwrap();
    let port = servers();
    let bound = BoundListener::bind("127.0.0.1:0", &ListenOptions::default()).unwrap();
    let Peer::Tcp(address) = *bound.address() else { panic!("a unix socket") };
    let (end, mut ended) = tokio::sync::mpsc::channel::<()>(1);
    let registry = std::sync::Arc::<Registry>::default();
    let counting = std::sync::Arc::clone(&registry);
    let (told, tells) = mpsc::channel();
    let gate = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
        runtime.unwrap().block_on(async move {
            let pools = Pools::new(Settings { pools: POOLS, ..Settings::default() }, counting);
            let settings = Rc::new(PoolSettings { idle_timeout: Duration::from_secs(600), ..PoolSettings::default() });
            let rules = Rules::default();
            let most = Rc::new(Cell::new(0));
            let (its_pools, seen) = (pools.clone(), Rc::clone(&most));
            let handler = async move |exchange: &mut Exchange<'_>| {
                let number: u32 = exchange.head.target[1..].parse().unwrap();
                // 127.1.0.0 and those behind.
                let address = SocketAddrV4::new(Ipv4Addr::from_bits(0x7f01_0000 + number), port);
                let pool = its_pools.pool(&Target::from(Peer::Tcp(address.into())), &settings);
                seen.set(seen.get().max(its_pools.len()));
                let mut outcome = Outcome::default();
                let result = forward(exchange, &Call::new(&rules, CallTargets::One(&pool)), &mut outcome).await;
                told.send((outcome.status, outcome.reused)).unwrap();
                result
            };
            let listener = bound.into_listener().unwrap().into();
            let ended = async move {
                let _ = ended.recv().await;
            };
            Server::new(handler, patient()).serve([listener], ended).await;
            (most.get(), pools.len())
        })
    });
    let mut client = Client::new(std::net::TcpStream::connect(address).unwrap());
    let mut ask = |number: usize| {
        let request = format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.send(request).answer().text(), "ok");
        let (status, reused) = tells.recv_timeout(HANG).unwrap();
        assert_eq!(status, 200);
        reused
    };
    // Each target twice, so that what is kept for a moment is used in it.
    for number in 0..TARGETS {
        assert_eq!((ask(number), ask(number)), (false, true), "{number}");
    }
    let reused = (TARGETS - POOLS..TARGETS).filter(|&number| ask(number)).count();
    assert_eq!(reused, POOLS, "the last ones are kept");
    // Those before are not, and each takes the place of one that was not asked for the longest.
    let reused = (0..100).filter(|&number| ask(number)).count();
    assert_eq!(reused, 0);
    let reused = (TARGETS - POOLS + 100..TARGETS).filter(|&number| ask(number)).count();
    assert_eq!(reused, POOLS - 100);
    let open: u64 = registry.counts().iter().map(|target| target.counts.open).sum();
    assert_eq!(open, POOLS as u64);
    drop(client);
    end.blocking_send(()).unwrap();
    assert_eq!(gate.join().unwrap(), (POOLS, POOLS));
}
