//! The floor under an HTTP load generator: the CPU time that the kernel alone needs.
//!
//! One thread, one epoll loop, a fixed request. The answer is neither parsed nor timed: its first bytes count as the
//! whole, so the server must answer in one piece (a few bytes of body). A load generator's cost above this is its own.
//!
//! ```text
//! floor ADDRESS [CONNECTIONS] [SECONDS] [close]
//! ```
//!
//! ADDRESS is `127.0.0.1:8080` or the path of a unix socket; `close` opens a connection for every request. It prints
//! requests per second, and CPU microseconds per request as user, system and total.

use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::{Errno, Result as SysResult};
use rustix::net::{self, RecvFlags, SendFlags, SocketFlags, SocketType};

mod address;
use address::Address;

const USAGE: &str = "usage: floor ADDRESS [CONNECTIONS] [SECONDS] [close]\n  \
     ADDRESS is 127.0.0.1:8080 or the path of a unix socket";

const KEPT: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
const CLOSED: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

fn main() -> ExitCode {
    let plan = match Plan::from_args(std::env::args().skip(1)) {
        Ok(plan) => plan,
        Err(what) => {
            eprintln!("floor: {what}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&plan) {
        Ok(done) => {
            println!("{}", done.line());
            ExitCode::SUCCESS
        }
        Err(what) => {
            eprintln!("floor: {what}");
            ExitCode::FAILURE
        }
    }
}

/// The parsed command line.
struct Plan {
    address: Address,
    connections: usize,
    duration: Duration,
    /// Opens a connection per request.
    close: bool,
}

impl Plan {
    fn from_args(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let address = args.next().ok_or("no ADDRESS")?.parse()?;
        let connections = match args.next() {
            Some(text) => text.parse().map_err(|_| format!("CONNECTIONS: {text:?} is not a whole number"))?,
            None => 100,
        };
        let duration = match args.next() {
            Some(text) => text
                .parse()
                .ok()
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
                .ok_or(format!("SECONDS: {text:?} is not a positive number"))?,
            None => Duration::from_secs(3),
        };
        let close = match args.next().as_deref() {
            Some("close") => true,
            Some(other) => return Err(format!("{other:?}: the fourth argument can only be `close`")),
            None => false,
        };
        Ok(Self { address, connections, duration, close })
    }
}

/// The work done, and its cost since the process started.
struct Done {
    requests: u64,
    wall: Duration,
    user: Duration,
    total: Duration,
}

impl Done {
    fn line(&self) -> String {
        let per_request = |cpu: Duration| cpu.as_secs_f64() * 1e6 / self.requests.max(1) as f64;
        format!(
            "floor rps={:.0} cpu_us_per_request user={:.3} sys={:.3} total={:.3}",
            self.requests as f64 / self.wall.as_secs_f64(),
            per_request(self.user),
            per_request(self.total.saturating_sub(self.user)),
            per_request(self.total),
        )
    }
}

/// An entry of the connection table. epoll returns its index.
struct Slot {
    socket: OwnedFd,
    /// The request is sent; the next bytes are its answer.
    sent: bool,
}

fn run(plan: &Plan) -> Result<Done, String> {
    let request = if plan.close { CLOSED } else { KEPT };
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| format!("epoll_create: {e}"))?;
    let open = |index| open(&epoll, &plan.address, request, index).map_err(|e| explain(e, &plan.address));
    let mut slots = (0..plan.connections).map(&open).collect::<Result<Vec<Slot>, String>>()?;

    let mut events = Vec::with_capacity(1024);
    let mut answer = vec![0_u8; 65536];
    let mut requests = 0;
    let nap = rustix::time::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let began = Instant::now();
    while began.elapsed() < plan.duration {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&nap)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(format!("epoll_wait: {e}")),
        }
        for event in &events {
            let index = event.data.u64() as usize;
            match turn(&mut slots[index], request, plan.close, &mut answer) {
                Ok(Turn::Waits) => {}
                Ok(Turn::Answered) => requests += 1,
                Ok(Turn::Ended) => {
                    requests += 1;
                    slots[index] = open(index)?;
                }
                // The server closed it between two requests, as servers do.
                Err(Errno::CONNRESET | Errno::PIPE) => slots[index] = open(index)?,
                Err(e) => return Err(explain(e, &plan.address)),
            }
        }
    }
    let wall = began.elapsed();
    let (user, total) = cpu_times()?;
    Ok(Done { requests, wall, user, total })
}

/// Opens a connection without waiting for it. A unix socket connects at once, so the request goes out here; over TCP
/// the first event reports the connection.
fn open(epoll: &OwnedFd, address: &Address, request: &[u8], index: usize) -> SysResult<Slot> {
    let socket =
        net::socket_with(address.family(), SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
    let mut slot = Slot { socket, sent: false };
    let mut wanted = epoll::EventFlags::IN | epoll::EventFlags::ET;
    match address {
        Address::Tcp(address) => {
            net::sockopt::set_tcp_nodelay(&slot.socket, true)?;
            match net::connect(&slot.socket, address) {
                Ok(()) | Err(Errno::INPROGRESS) => wanted |= epoll::EventFlags::OUT,
                Err(e) => return Err(e),
            }
        }
        Address::Unix(address) => {
            // epoll does not report a full backlog. The server needs the CPU to drain it.
            while let Err(e) = net::connect(&slot.socket, address) {
                if e != Errno::AGAIN {
                    return Err(e);
                }
                std::thread::yield_now();
            }
            send(&mut slot, request)?;
        }
    }
    epoll::add(epoll, &slot.socket, epoll::EventData::new_u64(index as u64), wanted)?;
    Ok(slot)
}

/// The result of an event on a connection.
enum Turn {
    Waits,
    /// Answered, and the next request is sent.
    Answered,
    /// Answered, and this connection's only request is done.
    Ended,
}

fn turn(slot: &mut Slot, request: &[u8], close: bool, answer: &mut [u8]) -> SysResult<Turn> {
    if !slot.sent {
        send(slot, request)?;
        return Ok(Turn::Waits);
    }
    match net::recv(&slot.socket, answer, RecvFlags::empty()) {
        Ok((_, 0)) => Err(Errno::CONNRESET),
        Ok(_) if close => Ok(Turn::Ended),
        Ok(_) => send(slot, request).map(|()| Turn::Answered),
        Err(Errno::AGAIN) => Ok(Turn::Waits),
        Err(e) => Err(e),
    }
}

/// Sends the request. It always fits, because the socket's buffer is empty.
fn send(slot: &mut Slot, request: &[u8]) -> SysResult<()> {
    slot.sent = true;
    net::send(&slot.socket, request, SendFlags::NOSIGNAL).map(|_| ())
}

/// Returns user and total CPU time of this process. The total is exact; the user's part comes in clock ticks.
fn cpu_times() -> Result<(Duration, Duration), String> {
    let exact = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let total = Duration::new(exact.tv_sec as u64, exact.tv_nsec as u32);
    let stat = std::fs::read_to_string("/proc/self/stat").map_err(|e| format!("/proc/self/stat: {e}"))?;
    // The 14th field; only the second, the program's name, can contain spaces.
    let ticks = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(11)?.parse::<f64>().ok());
    let ticks = ticks.ok_or("/proc/self/stat: no user time in it")?;
    Ok((Duration::from_secs_f64(ticks / rustix::param::clock_ticks_per_second() as f64), total))
}

fn explain(error: Errno, address: &Address) -> String {
    let hint = match error {
        Errno::MFILE | Errno::NFILE => ": more connections than open files allowed; raise `ulimit -n`",
        Errno::ADDRNOTAVAIL => ": every local port is in use or in TIME_WAIT; wait a minute, or use a unix socket",
        Errno::CONNREFUSED | Errno::NOENT => ": is the server running?",
        _ => "",
    };
    format!("{address}: {error}{hint}")
}
