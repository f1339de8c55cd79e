//! The native core of the oroshi gem: a worker that waits, parses, calls the Rack application and writes, all on Ruby's
//! main thread, or on each of several Ruby threads. Beside each runs one native thread, the watcher. During a long call
//! it reads requests, hands them to other workers, and ends clients that send too slowly. It starts after the fork; a
//! process that the application forks has none.
//!
//! **It knows** sockets, HTTP/1.1 (by `oroshi-http1`), Rack's rules on the wire. **It does not know** processes,
//! configuration, the source of listeners, nor signals, except one: these are Ruby's part (`ruby/lib/oroshi`).
//!
//! # Where to read
//!
//! 1. `worker`: what Ruby holds; `settings`: its input; `stop`: how it ends.
//! 2. `engine`: the loop; `parking`: a connection's next state; `stopping`: the end of the loop; `accept`: new
//!    connections; `poll`, `socket`: the system calls; `connection`: the table of waiting connections; `watcher`: reads
//!    connections while the application works; `handover`: moves requests from a busy worker to an idle one; `crash`:
//!    and from one that crashes; `peers`, `waker`: wakes idle workers.
//! 3. `exchange`: one request, from its bytes to the application and back; `after`: callbacks behind it; `hints`: early
//!    hints before its answer; `queue_time`: how long it waited before.
//! 4. `env`, `shapes`, `values`: the environment, and why it costs so little; `request`: its body.
//! 5. `respond`, `head`, `output`: the answer; `budget`: limits of memory and descriptors; `progress_deadline`: limits
//!    of time; `pressure`: which clients go when a limit is reached; `stream`: a body in pieces; `hijack`: sockets
//!    given away; `present`: how Ruby objects reach their exchange; `client_wait`: the few waits within it.
//! 6. `siblings`, `io_bound`: several threads in one worker.
//! 7. `scoreboard`, `slot`, `overdue`, `title`, `log`, `complain`: what others see.
//! 8. `rb`: Ruby's C interface, and the two rules that keep its use sound.

mod accept;
mod after;
mod budget;
mod client_wait;
mod clock;
mod complain;
mod connection;
mod crash;
mod engine;
mod env;
mod exchange;
mod forked;
mod handover;
mod head;
mod hijack;
mod hints;
mod io_bound;
mod log;
mod output;
mod overdue;
mod parking;
mod peers;
mod poll;
mod present;
mod pressure;
mod progress_deadline;
mod queue_time;
mod rb;
mod request;
mod respond;
mod scoreboard;
mod settings;
mod shapes;
mod siblings;
mod slot;
mod socket;
mod stop;
mod stopping;
mod stream;
mod title;
mod values;
mod waker;
mod watcher;
mod worker;

/// The entry point that Ruby calls. The macro makes a public function without a doc comment.
mod entry {
    #![allow(missing_docs)]

    use magnus::{Error, Module as _, Object as _, Ruby, TypedData as _, function, method};

    use crate::scoreboard::Scoreboard;
    use crate::worker::Worker;

    #[magnus::init(name = "native")]
    fn init(ruby: &Ruby) -> Result<(), Error> {
        let native = ruby.define_module("Oroshi")?.define_module("Native")?;

        let scoreboard = native.define_class("Scoreboard", ruby.class_object())?;
        scoreboard.define_singleton_method("new", function!(Scoreboard::new, -1))?;
        scoreboard.define_method("slots", method!(Scoreboard::workers, 0))?;
        scoreboard.define_method("clear", method!(Scoreboard::clear, 1))?;
        scoreboard.define_method("read", method!(Scoreboard::read, 1))?;
        scoreboard.define_method("overdue", method!(Scoreboard::overdue, 1))?;
        scoreboard.define_method("ending", method!(Scoreboard::end, 1))?;
        scoreboard.define_method("condemn", method!(Scoreboard::condemn, 2))?;
        scoreboard.define_method("condemned", method!(Scoreboard::condemned, 1))?;

        let worker = native.define_class("Worker", ruby.class_object())?;
        worker.define_singleton_method("new", function!(Worker::new, -1))?;
        worker.define_method("run", method!(Worker::run, 0))?;
        worker.define_method("stop", method!(Worker::stop, 0))?;
        worker.define_method("stop_now", method!(Worker::stop_now, 0))?;
        worker.define_method("resume", method!(Worker::resume, 0))?;
        worker.define_method("hand_over", method!(Worker::hand_over, 0))?;
        worker.define_method("flush_log", method!(Worker::flush_log, 0))?;
        worker.define_method("wants_replacing?", method!(Worker::wants_replacing, 0))?;

        let hijack = native.define_class("Hijack", ruby.class_object())?;
        hijack.define_method("call", method!(crate::hijack::call, 0))?;

        let io_bound = native.define_class("IoBound", ruby.class_object())?;
        io_bound.define_method("call", method!(crate::io_bound::call, 0))?;

        let hints = native.define_class("EarlyHints", ruby.class_object())?;
        hints.define_method("call", method!(crate::hints::call, 1))?;

        // The first look-up of a class calls Ruby while it holds a lock. Another thread that then wanted the class
        // would wait for that lock, and hold the GVL that the first one needs. Here is no other thread yet.
        let _ = (Scoreboard::class(ruby), Worker::class(ruby));

        native.define_singleton_method("adopt_orphans", function!(crate::worker::adopt_orphans, 0))?;
        native.define_singleton_method("end_with_parent", function!(crate::worker::end_with_parent, 1))?;
        native.define_singleton_method("refuse_new", function!(crate::worker::refuse_new, 1))?;
        Ok(())
    }
}
