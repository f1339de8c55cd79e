//! The cache with time as an argument; look-ups with a resolver under the test's control.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::*;

const TTL: Ttl = Ttl { positive: Duration::from_secs(60), negative: Duration::from_secs(5) };
const SECOND: u64 = 1_000_000_000;

fn found(last: &[u8], ttl: Option<Duration>) -> io::Result<Addresses> {
    Ok(Addresses { addresses: last.iter().map(|&last| IpAddr::from([127, 0, 0, last])).collect(), ttl })
}

fn refused() -> io::Result<Addresses> {
    Err(io::Error::other("no such host"))
}

fn first(cache: &Cache, host: &str, now: u64) -> Option<Result<IpAddr, String>> {
    cache.get(host, now).map(|answer| answer.map(|list| list[0]).map_err(|error| error.to_string()))
}

#[test]
fn answers_are_kept_for_their_own_ttl_or_that_of_the_settings() {
    let mut cache = Cache::new(TTL, 10);
    cache.put("a", found(&[1], None), 0);
    cache.put("b", found(&[2], Some(Duration::from_secs(1))), 0);
    assert_eq!(first(&cache, "a", 60 * SECOND - 1), Some(Ok([127, 0, 0, 1].into())));
    assert_eq!(first(&cache, "a", 60 * SECOND), None);
    assert_eq!(first(&cache, "b", SECOND - 1), Some(Ok([127, 0, 0, 2].into())));
    assert_eq!(first(&cache, "b", SECOND), None);
    assert_eq!(first(&cache, "c", 0), None);
}

#[test]
fn refusals_are_kept_too_but_not_as_long() {
    let mut cache = Cache::new(TTL, 10);
    cache.put("a", refused(), 0);
    assert_eq!(first(&cache, "a", 5 * SECOND - 1), Some(Err("no such host".to_owned())));
    assert_eq!(first(&cache, "a", 5 * SECOND), None);
    cache.put("a", found(&[], None), 0);
    assert_eq!(first(&cache, "a", 0), Some(Err("the name has no address".to_owned())));
}

#[test]
fn the_cache_is_bounded() {
    let mut cache = Cache::new(TTL, 2);
    cache.put("old", found(&[1], None), 0);
    cache.put("short", found(&[2], Some(Duration::from_secs(1))), 1);
    cache.put("new", found(&[3], None), 2 * SECOND);
    assert!(first(&cache, "old", 2 * SECOND).is_some(), "what is over goes first");
    cache.put("newer", found(&[4], None), 3 * SECOND);
    assert!(first(&cache, "old", 3 * SECOND).is_none(), "then what is oldest");
    assert_eq!(cache.entries.len(), 2);

    let mut cache = Cache::new(TTL, 100);
    (0..101).for_each(|number| cache.put(&format!("host-{number}"), found(&[1], None), number));
    assert_eq!(cache.entries.len(), 90, "a tenth and one make room");
    assert!(first(&cache, "host-10", 101).is_none() && first(&cache, "host-11", 101).is_some());
}

#[test]
fn what_could_be_connected_to_comes_first() {
    let mut cache = Cache::new(TTL, 10);
    cache.put("a", found(&[1, 2, 3], None), 0);
    cache.prefer("a", [127, 0, 0, 3].into());
    let order: Vec<IpAddr> = cache.get("a", 0).unwrap().unwrap().to_vec();
    assert_eq!(order, [3, 1, 2].map(|last| IpAddr::from([127, 0, 0, last])));
    cache.prefer("a", [10, 0, 0, 1].into());
    cache.prefer("b", [127, 0, 0, 1].into());
    assert_eq!(first(&cache, "a", 0), Some(Ok([127, 0, 0, 3].into())));
}

/// Returns a resolver that reports its queries, and answers on command.
fn held() -> (Lookup, mpsc::Receiver<String>, mpsc::Sender<io::Result<Addresses>>) {
    let (asked, questions) = mpsc::channel();
    let (answer, answers) = mpsc::channel();
    let answers = Mutex::new(answers);
    let lookup: Lookup = Arc::new(move |host: &str| {
        asked.send(host.to_owned()).unwrap();
        lock(&answers).recv().unwrap_or_else(|_| refused())
    });
    (lookup, questions, answer)
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

async fn resolve(names: &RefCell<Names>, host: &str) -> Answer {
    let mut waiter = None;
    std::future::poll_fn(|context| names.borrow_mut().poll(host, &mut waiter, context)).await
}

#[test]
fn who_asks_at_the_same_time_shares_one_look_up() {
    let (lookup, questions, answer) = held();
    let names = RefCell::new(Names::new(lookup, TTL));
    let context = Context::from_waker(Waker::noop());
    // The first task stops waiting, which must not affect the others.
    assert!(names.borrow_mut().poll("a", &mut None, &context).is_pending());
    assert!(names.borrow_mut().poll("a", &mut None, &context).is_pending());
    assert_eq!(questions.recv().unwrap(), "a");
    answer.send(found(&[9], None)).unwrap();
    let list = block_on(resolve(&names, "a")).unwrap();
    assert_eq!(*list, [IpAddr::from([127, 0, 0, 9])]);
    assert_eq!(*block_on(resolve(&names, "a")).unwrap(), *list, "from the cache");
    assert!(questions.try_recv().is_err() && names.borrow().queries.is_empty());
}

#[test]
fn answers_that_nobody_comes_for_do_not_pile_up() {
    let names = RefCell::new(Names::new(Arc::new(|_| found(&[1], None)), TTL));
    let context = Context::from_waker(Waker::noop());
    for number in 0..200 {
        let host = format!("host-{number}");
        assert!(names.borrow_mut().poll(&host, &mut None, &context).is_pending());
        let query = Arc::clone(&names.borrow().queries[host.as_str()]);
        while lock(&query.state).found.is_none() {
            std::thread::yield_now();
        }
    }
    assert!(names.borrow().queries.len() <= TIDY, "{names:?}");
    assert_eq!(*block_on(resolve(&names, "host-0")).unwrap(), [IpAddr::from([127, 0, 0, 1])]);
}

#[test]
fn a_ttl_of_nothing_still_answers_those_who_waited() {
    let lookup: Lookup = Arc::new(|_| found(&[1], Some(Duration::ZERO)));
    let names = RefCell::new(Names::new(lookup, TTL));
    assert_eq!(block_on(resolve(&names, "a")).unwrap().len(), 1);
}

#[test]
fn a_look_up_that_panics_is_a_failure() {
    let lookup: Lookup = Arc::new(|_| panic!("a defect of the resolver's, which this test wants"));
    let names = RefCell::new(Names::new(lookup, TTL));
    let error = block_on(resolve(&names, "a")).unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
}

#[test]
fn however_many_names_there_are_few_threads_look_them_up() {
    let (lookup, questions, answer) = held();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, highest) = (Arc::clone(&running), Arc::clone(&most));
    let lookup: Lookup = Arc::new(move |host: &str| {
        highest.fetch_max(counted.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let found = lookup(host);
        counted.fetch_sub(1, Ordering::SeqCst);
        found
    });
    let names = RefCell::new(Names::new(lookup, TTL));
    let context = Context::from_waker(Waker::noop());
    let hosts: Vec<String> = (0..2 * THREADS).map(|n| format!("host-{n}")).collect();
    for host in &hosts {
        assert!(names.borrow_mut().poll(host, &mut None, &context).is_pending());
    }
    for _ in 0..THREADS {
        questions.recv().unwrap();
    }
    for _ in &hosts {
        answer.send(found(&[1], None)).unwrap();
    }
    for host in &hosts {
        assert!(block_on(resolve(&names, host)).is_ok());
    }
    assert_eq!(most.load(Ordering::SeqCst), THREADS);
}

struct Bell;

impl std::task::Wake for Bell {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn who_leaves_is_forgotten_and_so_is_a_look_up_that_was_not_begun() {
    let (lookup, questions, answer) = held();
    let names = RefCell::new(Names::new(lookup, TTL));
    let bell = Arc::new(Bell);
    let waker = Waker::from(Arc::clone(&bell));
    let context = Context::from_waker(&waker);
    let ask = |host: &str| {
        let mut waiter = None;
        assert!(names.borrow_mut().poll(host, &mut waiter, &context).is_pending());
        waiter
    };
    let begun: Vec<Waiter> = (0..THREADS).map(|number| ask(&format!("begun-{number}"))).collect();
    for _ in &begun {
        questions.recv().unwrap();
    }
    let (first, second, alone) = (ask("shared"), ask("shared"), ask("alone"));
    names.borrow_mut().leave("shared", first);
    names.borrow_mut().leave("alone", alone);
    (0..THREADS).for_each(|number| names.borrow_mut().leave(&format!("begun-{number}"), begun[number]));
    assert_eq!(Arc::strong_count(&bell), 3, "ours, the waker, and the second asker's");
    assert_eq!((names.borrow().queries.len(), lock(&names.borrow().threads.jobs).queue.len()), (THREADS + 1, 1));
    drop(answer);
    assert!(block_on(resolve(&names, "shared")).is_err());
    names.borrow_mut().leave("shared", second);
    assert_eq!(questions.try_iter().collect::<Vec<_>>(), ["shared"], "and nobody else is asked for");
}

#[test]
fn names_whose_servers_do_not_answer_hold_up_nobody_else() {
    let (stuck, questions, answer) = held();
    let lookup: Lookup = Arc::new(move |host: &str| if host == "good" { found(&[1], None) } else { stuck(host) });
    let names = RefCell::new(Names::new(lookup, TTL));
    let context = Context::from_waker(Waker::noop());
    for number in 0..THREADS / 2 {
        assert!(names.borrow_mut().poll(&format!("stuck-{number}"), &mut None, &context).is_pending());
        questions.recv().unwrap();
    }
    assert!(block_on(resolve(&names, "good")).is_ok());
    drop(answer);
}
