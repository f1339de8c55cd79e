//! Threads with runtimes, and their timer.

use std::cell::Cell;
use std::rc::Rc;
use std::task::Poll;

use crate::common::on_a_core;
use oroshi_net::threads::ThreadsError;
use oroshi_net::{CpuList, Shutdown, Threads, ThreadsOptions, Timer, available_cpus, monotonic_ns};

#[test]
fn each_core_works_for_itself_and_gives_back_its_value() {
    let mut options = ThreadsOptions::new("work", 3);
    options.event_interval = Some(7);
    let values = Threads::run(&options, |core| async move {
        let shared = Rc::new(Cell::new(0));
        let tasks: Vec<_> = (0..10)
            .map(|number| {
                let shared = Rc::clone(&shared);
                tokio::task::spawn_local(async move { shared.set(shared.get() + number) })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        tokio::time::sleep(std::time::Duration::ZERO).await;
        (core.index, core.count, std::thread::current().name().unwrap().to_owned(), shared.get())
    })
    .unwrap();
    assert_eq!(values, [0, 1, 2].map(|index| (index, 3, format!("work-{index}"), 45)));
}

#[test]
fn cores_are_pinned_to_the_cpus_of_the_list() {
    let available = available_cpus().unwrap();
    let last = available.iter().last().unwrap();
    let mut options = ThreadsOptions::new("pinned", 2);
    options.cpus = Some(last.to_string().parse().unwrap());
    let threads = Threads::start(&options, |core| async move { (core.cpus, available_cpus().unwrap()) }).unwrap();
    let given: CpuList = last.to_string().parse().unwrap();
    assert!(threads.positions().iter().all(|core| core.cpus == given));
    for (said, found) in threads.join().unwrap() {
        assert_eq!(said, given);
        assert_eq!(found, given);
    }
    assert_eq!(available_cpus().unwrap(), available, "the starting thread stays where it was");

    options.cpus = Some("0-1023".parse().unwrap());
    if available.len() < 1024 {
        let error = Threads::start(&options, |_| async {}).unwrap_err();
        assert!(matches!(error, ThreadsError::Cpu { .. }), "{error}");
        assert!(error.to_string().ends_with(&format!("available are {available}")), "{error}");
    }
}

#[test]
fn a_panic_is_an_error_and_ends_the_others() {
    let stop = Shutdown::new();
    let mut options = ThreadsOptions::new("panic", 3);
    options.stop = Some(stop.clone());
    let error = Threads::run(&options, move |core| {
        let stop = stop.clone();
        async move {
            assert_ne!(core.index, 1, "this panic is part of the test");
            stop.reached(1).await;
        }
    })
    .unwrap_err();
    assert!(matches!(error, ThreadsError::Panicked { index: 1 }), "{error}");
}

#[test]
fn tasks_that_are_left_are_dropped() {
    struct Left(Shutdown);
    impl Drop for Left {
        fn drop(&mut self) {
            self.0.request();
        }
    }
    let dropped = Shutdown::new();
    let seen = dropped.clone();
    Threads::run(&ThreadsOptions::new("left", 1), move |_| {
        let left = Left(seen.clone());
        async move {
            tokio::task::spawn_local(async move {
                let _left = left;
                std::future::pending::<()>().await;
            });
            tokio::task::yield_now().await;
        }
    })
    .unwrap();
    assert_eq!(dropped.count(), 1);
}

#[test]
fn a_timer_never_wakes_early() {
    on_a_core(async {
        let mut timer = Timer::new().unwrap();
        for microseconds in [0, 1, 20, 500, 50, 3000, 100] {
            let instant = monotonic_ns() + microseconds * 1000;
            timer.sleep_until(instant).await.unwrap();
            assert!(monotonic_ns() >= instant);
        }
        timer.sleep_until(0).await.unwrap();
    });
}

#[test]
fn a_timer_can_be_moved_either_way() {
    on_a_core(async {
        let mut timer = Timer::new().unwrap();
        let now = monotonic_ns();
        // Set far away, then near; set near, left to expire, then set further.
        for instants in [[now + 3_600_000_000_000, now + 2_000_000], [now + 1_000, now + 5_000_000]] {
            let first = instants[0];
            let pending = std::future::poll_fn(|cx| Poll::Ready(timer.poll_until(cx, first).is_pending())).await;
            assert!(pending || first <= monotonic_ns());
            while monotonic_ns() < now + 1_500_000 {
                tokio::task::yield_now().await;
            }
            timer.sleep_until(instants[1]).await.unwrap();
            assert!(monotonic_ns() >= instants[1]);
        }
    });
}

#[test]
fn timers_of_one_core_do_not_disturb_each_other() {
    on_a_core(async {
        let start = monotonic_ns();
        let tasks = [3, 1, 2].map(|place| {
            tokio::task::spawn_local(async move {
                let mut timer = Timer::new().unwrap();
                for round in 1..=5 {
                    let instant = start + (round * 3 + place) * 500_000;
                    timer.sleep_until(instant).await.unwrap();
                    assert!(monotonic_ns() >= instant);
                }
            })
        });
        for task in tasks {
            task.await.unwrap();
        }
    });
}
