//! An agent with its load: carries out what the state machine says.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use oroshi_bench::{Delta, Observer, PartObserver, Plan, RunError, push, run_part};
use oroshi_net::{Shutdown, monotonic_ns};
use oroshi_words::{hidden, with_causes};

use crate::agent::{Action, Agent};
use crate::bus::{Arrival, Bus};
use crate::clock::ClockId;
use crate::wire::{self, Direction, Job, Key};

/// How often the agent looks at the time.
const TICK: Duration = Duration::from_millis(100);
/// How long an agent that ends waits for the end of its load.
const LEAVE: Duration = Duration::from_secs(5);

/// Reads jobs, and speaks to people.
pub trait Surroundings: Debug + Send + Sync {
    /// Reads the words of a job as the command line does, and checks the agent's limits. The second value is kept until
    /// the load has ended.
    ///
    /// # Errors
    /// All mistakes.
    fn read(&self, job: &Job) -> Result<(Assignment, Box<dyn Send>), Vec<String>>;

    /// The largest plan that the agent takes, bytes.
    fn most_plan(&self) -> u64;

    /// Tells something.
    fn say(&self, text: &str);
}

/// The load that an agent carries out.
#[derive(Debug)]
pub enum Assignment {
    /// A load of requests.
    Requests(Box<Plan>),
    /// A load on a hub.
    Subscriptions(Box<push::Plan>),
}

/// What a load tells.
enum News {
    Prepared,
    Failed(Vec<String>),
    Counted(Vec<u8>, bool),
    Published(Vec<u8>),
}

/// The load of a job, on a thread of its own.
struct Work {
    starts: Sender<u64>,
    published: Sender<Vec<u8>>,
    stop: Arc<AtomicBool>,
    /// Whether it has counted anything.
    counts: bool,
}

/// Serves until `shutdown` asks for the end.
pub fn serve(bus: &Bus, key: &Key, group: &str, name: String, around: &Arc<dyn Surroundings>, shutdown: &Shutdown) {
    let mut server = Server {
        bus,
        key,
        group,
        agent: Agent::new(name, wire::random, around.most_plan()).with_clock(ClockId::own()),
        around,
        news: channel(),
        work: None,
        told: None,
    };
    let mut leaving = None;
    let mut ticked = Instant::now();
    loop {
        match bus.arrivals().recv_timeout(TICK) {
            Ok(Arrival::Frame(frame, at)) => server.frame(&frame, at),
            Ok(Arrival::Note(note)) => around.say(&note),
            Ok(Arrival::Woken | Arrival::Link(_)) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        server.listen();
        if ticked.elapsed() >= TICK {
            ticked = Instant::now();
            let actions = server.agent.tick(monotonic_ns());
            server.perform(actions);
        }
        if shutdown.count() > 0 {
            let since = *leaving.get_or_insert_with(Instant::now);
            if let Some(work) = &server.work {
                work.stop.store(true, Ordering::Relaxed);
            }
            if !server.agent.is_loading() || since.elapsed() > LEAVE {
                return;
            }
        }
    }
}

struct Server<'s> {
    bus: &'s Bus,
    key: &'s Key,
    group: &'s str,
    agent: Agent,
    around: &'s Arc<dyn Surroundings>,
    news: (Sender<News>, Receiver<News>),
    work: Option<Work>,
    /// The last trouble with a frame that was told.
    told: Option<wire::WireError>,
}

impl Server<'_> {
    fn frame(&mut self, frame: &[u8], at: u64) {
        match wire::open(self.key, Direction::Down, self.group, frame) {
            Ok(down) => {
                let actions = self.agent.message(down, at);
                self.perform(actions);
            }
            Err(error) => {
                if self.told.replace(error) != Some(error) {
                    self.around.say(&format!("a message was refused: {error}"));
                }
            }
        }
    }

    /// Takes the news of the load.
    fn listen(&mut self) {
        while let Ok(news) = self.news.1.try_recv() {
            let actions = match news {
                News::Prepared => self.agent.prepared(),
                News::Published(sent) => self.agent.published(sent),
                News::Failed(mistakes) => {
                    self.work = None;
                    self.around.say(&format!("no load: {}", mistakes.join("; ")));
                    self.agent.failed(mistakes)
                }
                News::Counted(delta, last) => {
                    if let Some(work) = self.work.as_mut().filter(|work| !work.counts) {
                        work.counts = true;
                        self.around.say("the coordinator gets the first counts");
                    }
                    if last {
                        self.work = None;
                        self.around.say("the load has ended");
                    }
                    self.agent.delta(delta, last)
                }
            };
            self.perform(actions);
        }
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(up) => match wire::seal(self.key, Direction::Up, self.group, &up) {
                    Ok(frame) => self.bus.send(None, frame),
                    Err(error) => self.around.say(&format!("a message cannot be sent: {error}")),
                },
                Action::Prepare(job) => {
                    // The words may have secrets in headers and bodies.
                    let words = hidden::program(job.words.iter().cloned()).join(" ");
                    self.around.say(&format!("part {} of {}: {words}", job.index + 1, job.of));
                    self.prepare(job);
                }
                Action::Start(at) => {
                    if let Some(work) = &self.work {
                        // The load may have failed meanwhile.
                        let _ = work.starts.send(at);
                    }
                }
                Action::Published(sent) => {
                    if let Some(work) = &self.work {
                        let _ = work.published.send(sent);
                    }
                }
                Action::Stop => {
                    self.around.say("the load is to end");
                    if let Some(work) = &self.work {
                        work.stop.store(true, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    fn prepare(&mut self, job: Box<Job>) {
        let ((starts, starting), (published, publishing)) = (channel(), channel());
        let stop = Arc::new(AtomicBool::new(false));
        let tells = Tells { news: self.news.0.clone(), waker: self.bus.waker() };
        let mut load = Load { tells: tells.clone(), starting, publishing, stop: Arc::clone(&stop) };
        let around = Arc::clone(self.around);
        let spawned = thread::Builder::new().name("agent-load".to_owned()).spawn(move || {
            let (assignment, held) = match around.read(&job) {
                Ok(read) => read,
                Err(mistakes) => return load.tells.tell(News::Failed(mistakes)),
            };
            let done = match assignment {
                Assignment::Requests(plan) => run_part(*plan, &mut load).map(drop),
                Assignment::Subscriptions(plan) => push::run_part(*plan, &mut load).map(drop),
            };
            if let Err(error) = done {
                let text = match error {
                    RunError::Cancelled => "ended before it began".to_owned(),
                    error => with_causes(&error),
                };
                load.tells.tell(News::Failed(vec![text]));
            }
            drop(held);
        });
        match spawned {
            Ok(_) => self.work = Some(Work { starts, published, stop, counts: false }),
            Err(error) => tells.tell(News::Failed(vec![format!("no thread can be started: {error}")])),
        }
    }
}

#[derive(Clone)]
struct Tells {
    news: Sender<News>,
    waker: Sender<Arrival>,
}

impl Tells {
    fn tell(&self, news: News) {
        // Nobody listens any more only when the agent ends.
        let _ = self.news.send(news);
        let _ = self.waker.send(Arrival::Woken);
    }
}

/// The observer of a part.
struct Load {
    tells: Tells,
    starting: Receiver<u64>,
    /// The messages that another agent has published.
    publishing: Receiver<Vec<u8>>,
    stop: Arc<AtomicBool>,
}

impl Load {
    /// Waits for the moment to start.
    fn await_start(&mut self) -> Option<u64> {
        self.tells.tell(News::Prepared);
        while !self.cancelled() {
            match self.starting.recv_timeout(Duration::from_millis(20)) {
                Ok(at) => return Some(at),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        None
    }

    fn hand_over<T: serde::Serialize>(&self, delta: &T, last: bool) {
        match wire::encode(delta) {
            Ok(bytes) => self.tells.tell(News::Counted(bytes, last)),
            Err(error) => self.tells.tell(News::Failed(vec![error.to_string()])),
        }
    }
}

impl Observer for Load {
    fn cancelled(&mut self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl PartObserver for Load {
    fn ready(&mut self) -> Option<u64> {
        self.await_start()
    }

    fn delta(&mut self, delta: Delta) {
        self.hand_over(&delta, delta.is_last());
    }
}

impl push::PartObserver for Load {
    fn ready(&mut self) -> Option<u64> {
        self.await_start()
    }

    fn publish(&mut self, sent: &push::Sent) {
        match wire::encode(sent) {
            Ok(bytes) => self.tells.tell(News::Published(bytes)),
            Err(error) => self.tells.tell(News::Failed(vec![error.to_string()])),
        }
    }

    fn published(&mut self) -> Option<push::Sent> {
        // The coordinator has the right key: what it says is what the other agent said.
        self.publishing.try_recv().ok().and_then(|bytes| wire::decode(&bytes).ok())
    }

    fn delta(&mut self, delta: push::Delta) {
        self.hand_over(&delta, delta.is_last());
    }
}
