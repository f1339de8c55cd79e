//! Deadlines with time as an argument.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use proptest::prelude::*;

use super::*;

#[derive(Default)]
struct Owner(Deadlines);

impl HasDeadlines for Owner {
    type Value = Deadline;

    fn deadlines(&self) -> &Deadlines {
        &self.0
    }
}

/// Counts how often a task was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Woken {
    fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

#[test]
fn only_those_whose_time_has_come_are_over() {
    let owner = Rc::new(Owner::default());
    let [early, late, never] = [(); 3].map(|()| Deadlines::register(&owner));
    early.set(10);
    late.set(20);
    let context = &Context::from_waker(Waker::noop());
    assert_eq!(owner.0.next(), 10);
    owner.0.sweep(10);
    assert!(early.poll_over(context) && !late.poll_over(context) && !never.poll_over(context));
    assert_eq!(owner.0.next(), 20);
    // A new wait is not over because the last one was.
    early.set(30);
    assert!(!early.poll_over(context));
    drop(late);
    owner.0.sweep(25);
    assert_eq!((owner.0.next(), owner.0.count()), (30, 2));
    drop(early);
    let again = Deadlines::register(&owner);
    owner.0.sweep(40);
    assert!(!again.poll_over(context), "an entry that was given back starts anew");
    assert_eq!(owner.0.next(), u64::MAX);
}

#[test]
fn a_time_that_has_passed_is_over_at_once() {
    let owner = Rc::new(Owner::default());
    let registration = Deadlines::register(&owner);
    owner.0.sweep(10);
    registration.set(10);
    assert!(registration.is_over());
    registration.set(11);
    assert!(!registration.is_over());
}

#[test]
fn a_task_is_woken_once_and_forgotten_with_its_registration() {
    let owner = Rc::new(Owner::default());
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let context = Context::from_waker(&waker);
    let registration = Deadlines::register(&owner);
    registration.set(5);
    assert!(!registration.poll_over(&context));
    owner.0.sweep(5);
    owner.0.sweep(6);
    assert_eq!(woken.take(), 1);
    registration.set(7);
    assert!(!registration.poll_over(&context));
    assert_eq!(Arc::strong_count(&woken), 3, "ours, the waker, and the registration's");
    drop(registration);
    assert_eq!(Arc::strong_count(&woken), 2);
    owner.0.sweep(7);
    assert_eq!(woken.take(), 0);
}

#[test]
fn an_entry_that_somebody_looks_at_is_not_used_again() {
    let owner = Rc::new(Owner::default());
    let registration = Deadlines::register(&owner);
    let entry = Rc::clone(registration.entry());
    registration.leave();
    assert_eq!(owner.0.count(), 0);
    drop(registration);
    let other = Deadlines::register(&owner);
    assert!(!Rc::ptr_eq(&entry, other.entry()));
    let address = Rc::as_ptr(other.entry());
    drop(other);
    assert_eq!(Rc::as_ptr(Deadlines::register(&owner).entry()), address, "the entry of the last one");
}

#[test]
fn for_ever_is_never() {
    assert_eq!(after(7, Duration::MAX), u64::MAX);
    assert_eq!(after(7, Duration::from_nanos(3)), 10);
}

#[test]
fn ticks_are_rounded_up() {
    let tick = Duration::from_millis(10);
    let counts = [0, 1, 10, 11].map(|time| ticks(Duration::from_millis(time), tick));
    assert_eq!(counts, [0, 1, 1, 2]);
    assert_eq!(ticks(Duration::MAX, Duration::ZERO), u64::MAX);
}

#[test]
fn a_pause_is_an_eighth_within_bounds() {
    let bounds = (Duration::from_millis(5), Duration::from_secs(1));
    assert_eq!(sweep_pause(Duration::from_millis(80), bounds), Duration::from_millis(10));
    assert_eq!(sweep_pause(Duration::ZERO, bounds), bounds.0);
    assert_eq!(sweep_pause(Duration::MAX, bounds), bounds.1);
}

/// Connections by the ten thousand have two of them each.
#[test]
fn a_deadline_is_small() {
    assert!(size_of::<Deadline>() <= 24, "{} bytes", size_of::<Deadline>());
    assert!(size_of::<Registration<Owner>>() <= 16, "{} bytes", size_of::<Registration<Owner>>());
}

#[derive(Clone, Debug)]
enum Step {
    Register,
    Leave(prop::sample::Index),
    Drop(prop::sample::Index),
    /// Sets a deadline this far from now.
    Set(prop::sample::Index, Option<u8>),
    Poll(prop::sample::Index),
    Sweep(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let which = any::<prop::sample::Index>;
    prop_oneof![
        3 => Just(Step::Register),
        1 => which().prop_map(Step::Leave),
        2 => which().prop_map(Step::Drop),
        5 => (which(), any::<Option<u8>>()).prop_map(|(which, ahead)| Step::Set(which, ahead)),
        5 => which().prop_map(Step::Poll),
        4 => (0u8..100).prop_map(Step::Sweep),
    ]
}

struct Modelled {
    registration: Registration<Owner>,
    woken: Arc<Woken>,
    due: u64,
    /// Its task waits for the deadline.
    waits: bool,
    has_left: bool,
}

proptest! {
    #[test]
    fn each_wait_ends_with_the_first_sweep_at_its_time_or_later(steps in prop::collection::vec(step(), 0..200)) {
        let owner = Rc::new(Owner::default());
        let (mut model, mut now) = (Vec::<Modelled>::new(), 100);
        owner.0.sweep(now);
        for step in steps {
            match step {
                Step::Register => model.push(Modelled {
                    registration: Deadlines::register(&owner),
                    woken: Arc::default(),
                    due: u64::MAX,
                    waits: false,
                    has_left: false,
                }),
                Step::Sweep(ahead) => {
                    now += u64::from(ahead);
                    owner.0.sweep(now);
                    for one in &mut model {
                        let wakes = !one.has_left && one.waits && one.due <= now;
                        prop_assert_eq!(one.woken.take(), usize::from(wakes));
                        one.waits &= !wakes;
                    }
                }
                _ if model.is_empty() => {}
                Step::Leave(which) => {
                    let one = which.get(&model);
                    one.registration.leave();
                    let place = which.index(model.len());
                    model[place].has_left = true;
                }
                Step::Drop(which) => drop(model.swap_remove(which.index(model.len()))),
                Step::Set(which, ahead) => {
                    let place = which.index(model.len());
                    // Also what is past already.
                    let due = ahead.map_or(u64::MAX, |ahead| now - 50 + u64::from(ahead));
                    model[place].due = due;
                    model[place].registration.set(due);
                }
                Step::Poll(which) => {
                    let place = which.index(model.len());
                    let one = &mut model[place];
                    let waker = Waker::from(Arc::clone(&one.woken));
                    let is_over = one.registration.poll_over(&Context::from_waker(&waker));
                    prop_assert_eq!(is_over, one.due <= now);
                    one.waits |= !is_over;
                }
            }
            let here = || model.iter().filter(|one| !one.has_left);
            prop_assert_eq!(owner.0.count(), here().count());
            // A sweep may come in vain, but is never missed.
            let earliest = here().filter(|one| one.due > now || one.waits).map(|one| one.due).min();
            prop_assert!(owner.0.next() <= earliest.unwrap_or(u64::MAX));
        }
    }
}
