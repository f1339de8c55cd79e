//! Hundreds of agents and their coordinator on a virtual clock, with losses, partitions and deaths.

use std::collections::{BTreeMap, BinaryHeap};

use crate::agent::{Action, Agent, PATIENCE};
use crate::clock::ClockId;
use crate::coordinator::{Coordinator, Known, LOST, OUTAGE, OnLoss, Order, Wanted};
use crate::parcel::{Assembly, PLAN_BYTES, Packed};
use crate::wire::{Down, FromAgent, Job, ToAgent, Up};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// The load of the simulation: so many seconds, a delta each.
const LENGTH: u64 = 6;
/// Before it, a warm-up that is longer than the coordinator's patience.
const WARM_UP: u64 = LOST + 2 * SECOND;

/// What happens to a process or the network at a moment, until another one.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// `kill -9` of an agent.
    Agent(usize, u64),
    Coordinator(u64),
    /// Messages are lost from a moment to another.
    Partition(u64, u64),
    /// The same, and the coordinator knows it: NATS has ended, and is started again.
    Outage(u64, u64),
    /// One in so many messages is lost.
    Losses(u64),
    /// From the start on, the coordinator takes each message this long after it came.
    Behind(u64),
}

struct Simulated {
    agent: Agent,
    /// This machine's clock shows so much more than the true time.
    offset: u64,
    alive: bool,
    /// When the load started, by true time, and the deltas that it has handed over.
    load: Option<(u64, u64)>,
    /// When the load was over.
    over: Option<u64>,
    /// When the preparation will be done.
    ready_at: Option<u64>,
    /// The messages of the first agent, once for each time that this agent was told them.
    told: Vec<Vec<u8>>,
    /// The job that it was to prepare.
    job: Option<Box<Job>>,
}

enum Parcel {
    Down(Down),
    /// With the moment at which it comes.
    Up(Up, u64),
}

struct World {
    now: u64,
    random: fastrand::Rng,
    agents: Vec<Simulated>,
    coordinator: Option<Coordinator>,
    parcels: BTreeMap<(u64, u64), Parcel>,
    sent: u64,
    fault: Fault,
    /// Deltas by agent, as the coordinator added them.
    added: BTreeMap<usize, Vec<u64>>,
    result: Option<Result<(), Vec<String>>>,
    final_agents: Vec<Known>,
}

fn session() -> u64 {
    fastrand::u64(1..)
}

impl World {
    fn new(count: usize, fault: Fault, on_loss: OnLoss, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let agent = |number: usize| Simulated {
            agent: Agent::new(format!("a{number:03}"), session, PLAN_BYTES),
            offset: random.u64(0..1 << 50),
            alive: true,
            load: None,
            over: None,
            ready_at: None,
            told: Vec::new(),
            job: None,
        };
        let agents = (0..count).map(agent).collect();
        let job = Packed::new(Job::default()).unwrap();
        let coordinator = Coordinator::new(1, Wanted::Count(count), job, on_loss, 30 * SECOND, SECOND);
        Self {
            now: SECOND,
            random,
            agents,
            coordinator: Some(coordinator),
            parcels: BTreeMap::new(),
            sent: 0,
            fault,
            added: BTreeMap::new(),
            result: None,
            final_agents: Vec::new(),
        }
    }

    fn up(&mut self, up: Up) {
        let at = self.arrival();
        self.post(Parcel::Up(up, at), at + self.behind());
    }

    fn arrival(&mut self) -> u64 {
        self.now + self.random.u64(50_000..400_000)
    }

    /// How long messages wait for the coordinator.
    fn behind(&self) -> u64 {
        match self.fault {
            Fault::Behind(behind) if self.coordinator.as_ref().is_some_and(Coordinator::is_running) => behind,
            _ => 0,
        }
    }

    fn post(&mut self, parcel: Parcel, at: u64) {
        let lost = match self.fault {
            Fault::Partition(from, until) | Fault::Outage(from, until) => (from..until).contains(&self.now),
            Fault::Losses(one_in) => self.random.u64(0..one_in) == 0,
            _ => false,
        };
        if !lost {
            self.sent += 1;
            self.parcels.insert((at, self.sent), parcel);
        }
    }

    fn orders(&mut self, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Send(down) => {
                    let at = self.arrival();
                    self.post(Parcel::Down(down), at);
                }
                Order::Add(index, delta) => {
                    let number = u64::from(delta[0]);
                    self.added.entry(index).or_default().push(number);
                    if number + 1 == LENGTH || delta[1] == 1 {
                        self.coordinator.as_mut().unwrap().ended(index);
                    }
                }
                Order::Over(result) => {
                    self.final_agents = self.coordinator.as_ref().unwrap().agents().to_vec();
                    self.result.get_or_insert(result);
                }
                Order::Starts(_) | Order::Note(_) => {}
            }
        }
    }

    fn actions(&mut self, index: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(up) => self.up(up),
                Action::Prepare(job) => {
                    let simulated = &mut self.agents[index];
                    simulated.ready_at = Some(self.now + 50 * MS);
                    simulated.job = Some(job);
                }
                Action::Start(at) => {
                    let start = at.saturating_sub(self.agents[index].offset).max(self.now);
                    self.agents[index].load = Some((start, 0));
                }
                Action::Published(sent) => self.agents[index].told.push(sent),
                Action::Stop => {
                    let simulated = &mut self.agents[index];
                    simulated.ready_at = None;
                    let actions = match simulated.load.take() {
                        Some((_, deltas)) => {
                            simulated.over = Some(self.now);
                            simulated.agent.delta(vec![deltas as u8, 1], true)
                        }
                        None => simulated.agent.failed(vec!["ended".to_owned()]),
                    };
                    self.actions(index, actions);
                }
            }
        }
    }

    /// One step of a millisecond.
    fn step(&mut self) {
        self.now += MS;
        match self.fault {
            Fault::Agent(index, at) if self.now >= at => {
                if self.agents[index].load.take().is_some() {
                    self.agents[index].over = Some(self.now);
                }
                self.agents[index].alive = false;
            }
            Fault::Coordinator(at) if self.now >= at => self.coordinator = None,
            Fault::Outage(from, until) if self.now == from || self.now == until => {
                self.coordinator.as_mut().unwrap().link(self.now == until, self.now);
            }
            _ => {}
        }
        while let Some(entry) = self.parcels.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let at = entry.key().0;
            match entry.remove() {
                Parcel::Down(down) => {
                    for index in 0..self.agents.len() {
                        let simulated = &mut self.agents[index];
                        if simulated.alive {
                            let actions = simulated.agent.message(down.clone(), at + simulated.offset);
                            self.actions(index, actions);
                        }
                    }
                }
                Parcel::Up(up, at) => {
                    if let Some(coordinator) = &mut self.coordinator {
                        let orders = coordinator.message(up, at);
                        self.orders(orders);
                    }
                }
            }
        }
        let taken = self.now.saturating_sub(self.behind());
        if self.now.is_multiple_of(10 * MS)
            && self.result.is_none()
            && let Some(coordinator) = &mut self.coordinator
        {
            let orders = coordinator.tick(self.now, taken);
            self.orders(orders);
        }
        for index in 0..self.agents.len() {
            self.step_agent(index);
        }
    }

    fn step_agent(&mut self, index: usize) {
        let now = self.now;
        let simulated = &mut self.agents[index];
        if !simulated.alive {
            return;
        }
        let mut actions = Vec::new();
        if simulated.ready_at.is_some_and(|at| now >= at) {
            simulated.ready_at = None;
            actions.extend(simulated.agent.prepared());
        }
        if let Some((start, deltas)) = &mut simulated.load
            && now >= *start + WARM_UP + (*deltas + 1) * SECOND
        {
            *deltas += 1;
            let (number, last) = (*deltas - 1, *deltas == LENGTH);
            actions.extend(simulated.agent.delta(vec![number as u8, u8::from(last)], last));
            if index == 0 && number == 1 {
                actions.extend(simulated.agent.published(vec![42]));
            }
            if last {
                simulated.load = None;
                simulated.over = Some(now);
            }
        }
        if now.is_multiple_of(100 * MS) {
            actions.extend(simulated.agent.tick(now + simulated.offset));
        }
        self.actions(index, actions);
    }

    /// Runs until the coordinator is done or dead, and all loads have ended.
    fn run(&mut self) {
        let until = self.now + 120 * SECOND;
        while self.now < until {
            self.step();
            let done = self.result.is_some() || self.coordinator.is_none();
            if done && self.agents.iter().all(|simulated| simulated.load.is_none() && simulated.ready_at.is_none()) {
                return;
            }
        }
        panic!("{:?}: something hangs: {:?}", self.fault, self.result);
    }
}

#[test]
fn all_start_together_and_every_delta_comes_once() {
    let mut world = World::new(200, Fault::None, OnLoss::Abort, 1);
    let mut starts = BinaryHeap::new();
    while world.result.is_none() {
        world.step();
        if starts.is_empty() && world.agents.iter().all(|simulated| simulated.load.is_some()) {
            starts.extend(world.agents.iter().filter_map(|simulated| simulated.load.map(|(start, _)| start)));
        }
    }
    assert_eq!(world.result, Some(Ok(())));
    let (first, last) = (starts.iter().min().unwrap(), starts.iter().max().unwrap());
    let bound = world.final_agents.iter().filter_map(|agent| agent.clock.bound()).max().unwrap();
    assert!(starts.len() == 200 && last - first <= 2 * bound, "{} ns apart, bound {bound} ns", last - first);
    assert!(world.added.values().all(|deltas| *deltas == (0..LENGTH).collect::<Vec<_>>()));
}

/// The coordinator's work, in messages: it makes or reads each of them, and does little else. What that costs in CPU
/// time is measured with real messages (`make agent-cost`).
#[test]
fn a_run_has_few_messages_per_agent() {
    let mut world = World::new(200, Fault::None, OnLoss::Abort, 1);
    let mut before = None;
    while world.result.is_none() {
        world.step();
        if before.is_none() && world.agents.iter().all(|simulated| simulated.load.is_some()) {
            before = Some((world.now, world.sent));
        }
    }
    let (since, preparing) = before.unwrap();
    // Thirty questions about the clock, their answers, and a dozen others.
    assert!(preparing <= 75 * 200, "{} messages per agent before the start", preparing / 200);
    let seconds = (world.now - since).div_ceil(SECOND);
    let most = 200 * (5 * seconds + 5);
    assert!(world.sent - preparing <= most, "{} messages in {seconds} s", world.sent - preparing);
}

/// Agents that name the coordinator's clock start at the same moment, whatever the network does.
#[test]
fn agents_on_one_clock_start_without_an_error_of_clocks() {
    let mut world = World::new(20, Fault::None, OnLoss::Abort, 1);
    let clock = Some(ClockId::new("one"));
    world.coordinator = world.coordinator.take().map(|coordinator| coordinator.with_clock(clock));
    for (index, simulated) in world.agents.iter_mut().enumerate() {
        // Some have the name by mistake.
        simulated.offset = if index < 15 { 0 } else { index as u64 * SECOND };
        simulated.agent = Agent::new(format!("a{index:03}"), session, PLAN_BYTES).with_clock(clock);
    }
    let mut starts = Vec::new();
    while world.result.is_none() {
        world.step();
        if starts.is_empty() && world.agents.iter().all(|simulated| simulated.load.is_some()) {
            starts.extend(world.agents.iter().filter_map(|simulated| simulated.load.map(|(start, _)| start)));
        }
    }
    assert_eq!(world.result, Some(Ok(())));
    assert!(starts[..15].iter().all(|start| *start == starts[0]), "{starts:?}");
    for (start, known) in starts.iter().zip(&world.final_agents) {
        let bound = known.clock.bound().unwrap();
        assert_eq!(bound == 0, known.name.as_str() < "a015", "{known:?}");
        assert!(start.abs_diff(starts[0]) <= bound, "{start} of {known:?}");
    }
}

#[test]
fn lost_messages_and_short_partitions_change_nothing() {
    for (seed, fault) in [
        Fault::Losses(3),
        Fault::Losses(10),
        Fault::Partition(5 * SECOND, 8 * SECOND),
        Fault::Partition(10 * SECOND, 13 * SECOND),
        Fault::Partition(1500 * MS, 3 * SECOND),
    ]
    .into_iter()
    .enumerate()
    {
        let mut world = World::new(8, fault, OnLoss::Abort, seed as u64);
        world.run();
        assert_eq!(world.result, Some(Ok(())), "{fault:?}");
        assert_eq!(world.added.len(), 8, "{fault:?}");
        for deltas in world.added.values() {
            assert_eq!(*deltas, (0..LENGTH).collect::<Vec<_>>(), "{fault:?}");
        }
        assert!(world.final_agents.iter().all(|agent| agent.lost.is_none()), "{fault:?}");
        let told: Vec<_> = world.agents.iter().map(|simulated| simulated.told.clone()).collect();
        assert!(told[0].is_empty() && told[1..].iter().all(|told| *told == [[42]]), "{fault:?}: {told:?}");
    }
}

/// A coordinator whose machine is too slow for the messages loses no agent, and does not get ever more messages.
#[test]
fn a_coordinator_that_is_behind_loses_no_agent() {
    let mut sent = Vec::new();
    for fault in [Fault::None, Fault::Behind(SECOND), Fault::Behind(LOST + SECOND), Fault::Behind(20 * SECOND)] {
        let mut world = World::new(50, fault, OnLoss::Abort, 1);
        world.run();
        assert_eq!(world.result, Some(Ok(())), "{fault:?}");
        assert!(world.final_agents.iter().all(|agent| agent.lost.is_none()), "{fault:?}");
        assert_eq!(world.added.len(), 50, "{fault:?}");
        assert!(world.added.values().all(|deltas| *deltas == (0..LENGTH).collect::<Vec<_>>()), "{fault:?}");
        sent.push(world.sent);
    }
    // The run ends later by so much: both sides say twice per second that they live, and some deltas come twice.
    for (index, seconds) in [1, 6, 20].into_iter().enumerate() {
        let most = sent[0] + 50 * (6 * seconds + 3 * LENGTH);
        assert!(sent[index + 1] <= most, "{sent:?}: at most {most} when behind by {seconds} s");
    }
}

/// A job whose file cannot be compressed.
fn large_job(bytes: usize) -> Job {
    let mut random = fastrand::Rng::with_seed(3);
    Job { files: vec![("rows.csv".to_owned(), (0..bytes).map(|_| random.u8(..)).collect())], ..Job::default() }
}

/// A world whose plan travels in pieces to agents that take plans of `most` bytes.
fn with_large_plan(fault: Fault, bytes: usize, most: u64) -> World {
    let mut world = World::new(3, fault, OnLoss::Abort, bytes as u64);
    let job = Packed::new(large_job(bytes)).unwrap();
    world.coordinator = Some(Coordinator::new(1, Wanted::Count(3), job, OnLoss::Abort, 20 * SECOND, SECOND));
    for (index, simulated) in world.agents.iter_mut().enumerate() {
        simulated.agent = Agent::new(format!("a{index:03}"), session, most);
    }
    world
}

#[test]
fn a_large_plan_comes_in_pieces_though_messages_are_lost() {
    let faults = [Fault::None, Fault::Losses(3), Fault::Losses(10), Fault::Partition(1200 * MS, 3 * SECOND)];
    for fault in faults {
        let mut world = with_large_plan(fault, 5_000_000, PLAN_BYTES);
        world.run();
        assert_eq!(world.result, Some(Ok(())), "{fault:?}");
        for (index, simulated) in world.agents.iter().enumerate() {
            let expected = Job { index, of: 3, ..large_job(5_000_000) };
            assert!(simulated.job.as_deref() == Some(&expected), "{fault:?}: agent {index} has another job");
        }
    }
}

#[test]
fn a_plan_beyond_the_agents_limit_is_refused_by_its_name() {
    let mut world = with_large_plan(Fault::None, 3_000_000, 2_000_000);
    world.run();
    let Some(Err(mistakes)) = &world.result else { panic!("{:?}", world.result) };
    assert!(mistakes.len() == 3 && mistakes[0].starts_with("a000: a plan of 30000"), "{mistakes:?}");
    assert!(mistakes[2].ends_with("this agent's --max-plan is 2000000"), "{mistakes:?}");
    // They are free again.
    for _ in 0..10_000 {
        world.step();
    }
    assert!(world.agents.iter().all(|simulated| simulated.job.is_none() && !simulated.agent.is_loading()));
}

#[test]
fn a_run_with_a_large_plan_is_collected_with_its_plan() {
    let mut world = with_large_plan(Fault::Coordinator(9 * SECOND), 4_000_000, PLAN_BYTES);
    world.run();
    for _ in 0..12_000 {
        world.step();
    }
    let offset = world.agents[1].offset;
    let mut ask = |session, body| world.agents[1].agent.message(Down { run: 1, session, body }, world.now + offset);
    let [Action::Send(up)] = &ask(0, ToAgent::Collect)[..] else { panic!("it keeps nothing") };
    let FromAgent::KeepsLarge(name, 1, 3, parcel, 1..) = &up.body else { panic!("{:?}", up.body) };
    assert_eq!(name, "a001");
    let mut assembly = Assembly::new(parcel.clone(), PLAN_BYTES).unwrap();
    let mut got = None;
    while got.is_none() {
        let actions = ask(up.session, ToAgent::Wants(assembly.next()));
        assert!(!actions.is_empty());
        for action in actions {
            let Action::Send(Up { body: FromAgent::Piece(number, piece), .. }) = action else { panic!("{action:?}") };
            got = assembly.take(number, &piece).unwrap();
        }
    }
    assert!(got.is_some_and(|job| job.files == large_job(4_000_000).files));
}

#[test]
fn an_agent_may_die_at_any_moment() {
    for moment in 0..50 {
        let at = SECOND + moment * 330 * MS;
        let on_loss = if moment % 2 == 0 { OnLoss::Abort } else { OnLoss::Continue };
        let mut world = World::new(4, Fault::Agent(1, at), on_loss, moment);
        world.run();
        match world.result.as_ref().unwrap() {
            // It died before the start, and is named.
            Err(mistakes) => {
                assert!(mistakes.iter().any(|m| m.contains("a001") || m.contains("found")), "{mistakes:?}");
            }
            Ok(()) => {
                let lost: Vec<&str> =
                    world.final_agents.iter().filter(|a| a.lost.is_some()).map(|a| a.name.as_str()).collect();
                let all = world.added.get(&1).is_some_and(|deltas| deltas.len() as u64 == LENGTH);
                assert_eq!(lost, if all { vec![] } else { vec!["a001"] }, "killed at {at}");
                for index in [0, 2, 3] {
                    let deltas = &world.added[&index];
                    assert_eq!(*deltas, (0..deltas.len() as u64).collect::<Vec<_>>());
                    assert!(on_loss == OnLoss::Abort || deltas.len() as u64 == LENGTH, "{deltas:?}");
                }
            }
        }
    }
}

#[test]
fn no_load_goes_on_without_its_coordinator_and_results_are_kept() {
    for moment in 0..50 {
        let at = SECOND + moment * 330 * MS;
        let mut world = World::new(3, Fault::Coordinator(at), OnLoss::Abort, moment);
        world.run();
        let over = world.agents.iter().filter_map(|simulated| simulated.over);
        assert!(over.clone().all(|over| over <= at + PATIENCE + SECOND), "{:?} after {at}", over.collect::<Vec<_>>());
        // A new coordinator collects what they keep.
        let had_load = world.agents.iter().any(|simulated| simulated.over.is_some());
        for _ in 0..12_000 {
            world.step();
        }
        for simulated in &mut world.agents {
            let collect = Down { run: 1, session: 0, body: ToAgent::Collect };
            let actions = simulated.agent.message(collect, world.now + simulated.offset);
            assert_eq!(!actions.is_empty(), had_load && simulated.over.is_some());
            assert!(!simulated.agent.is_loading());
        }
    }
}

#[test]
fn nats_may_vanish_for_good_and_nothing_hangs() {
    for moment in 0..50 {
        let at = SECOND + moment * 330 * MS;
        let mut world = World::new(3, Fault::Partition(at, u64::MAX), OnLoss::Continue, moment);
        world.run();
        let over = world.agents.iter().filter_map(|simulated| simulated.over).max();
        assert!(over.is_none_or(|over| over <= at.max(SECOND) + PATIENCE + SECOND), "{over:?} after {at}");
        assert!(world.now <= at + crate::coordinator::FINDING + 35 * SECOND + LOST);
    }
}

#[test]
fn an_outage_of_nats_ends_the_load_and_its_counts_come_afterwards() {
    for moment in 0..50 {
        // Around the start, which is about two seconds after the beginning, and later.
        let at = 3 * SECOND + moment * 330 * MS;
        let length = (1 + moment % 10 * 5) * SECOND;
        let mut world = World::new(4, Fault::Outage(at, at + length), OnLoss::Abort, moment);
        world.run();
        assert_eq!(world.result, Some(Ok(())), "{:?}", world.fault);
        assert!(world.final_agents.iter().all(|agent| agent.lost.is_none()), "{:?}", world.fault);
        let over = world.agents.iter().filter_map(|simulated| simulated.over);
        let (over, counted) = (over.max().unwrap(), world.added.len());
        assert_eq!(counted, 4, "{:?}: all counts come, if late", world.fault);
        let ended_early = world.added.values().any(|deltas| (deltas.len() as u64) < LENGTH);
        assert!(!ended_early || over <= at + PATIENCE + SECOND, "no load goes on without its coordinator");
        assert!(length >= PATIENCE - SECOND || !ended_early, "{:?}: a short outage changes nothing", world.fault);
    }
}

#[test]
fn the_coordinator_does_not_wait_for_nats_forever() {
    let mut world = World::new(2, Fault::Outage(8 * SECOND, u64::MAX), OnLoss::Abort, 1);
    world.run();
    assert_eq!(world.result, Some(Ok(())));
    assert!(world.final_agents.iter().all(|agent| agent.lost.is_some()));
    assert!(world.now <= 8 * SECOND + OUTAGE + LOST + SECOND, "{}", world.now);
}
