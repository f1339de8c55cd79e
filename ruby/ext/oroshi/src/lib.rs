//! The native core of the oroshi gem: a worker that waits, parses, calls the Rack application and writes, all on Ruby's
//! main thread. Beside it runs one thread, the watcher. During a long call it reads requests, hands them to other workers, and
//! ends clients that drip. It starts after the fork, and a process that the application forks does without it.
//!
//! **What it knows**: sockets, HTTP/1.1 (by `oroshi-http1`), Rack's rules on the wire. **What it does not know**: processes,
//! signals but one, configuration, where listeners come from: that is Ruby's part (`ruby/lib/oroshi`).
//!
//! # Where to read
//!
//! 1. `worker`: what Ruby holds; `settings`: what it was told.
//! 2. `engine`: the loop; `parking`: where connections go; `stopping`: its end; `accept`: where connections come from; `poll`, `socket`: the system calls; `connection`: what
//!    waits for what; `watcher`: who reads connections while the application works;
//!    `handover`: how requests get from a busy worker to an idle one; `crash`: and from one that ends.
//! 3. `exchange`: one request, from its bytes to the application and back.
//! 4. `env`, `shapes`, `values`: the environment, and why it costs so little; `request`: its body.
//! 5. `respond`, `head`, `output`: the answer; `budget`: what waits for clients; `patience`: for how long; `pressure`: who goes when there is no room; `stream`: one that comes piece by piece; `hijack`: sockets given away;
//!    `present`: how Ruby objects reach the exchange that they belong to; `client_wait`: the few waits within it.
//! 6. `scoreboard`, `overdue`, `title`, `log`: what others see of it.
//! 7. `rb`: Ruby's C interface, and the two rules that keep its use sound.

mod accept;
mod budget;
mod client_wait;
mod clock;
mod connection;
mod crash;
mod engine;
mod env;
mod exchange;
mod forked;
mod handover;
mod head;
mod hijack;
mod log;
mod output;
mod overdue;
mod parking;
mod patience;
mod peers;
mod poll;
mod present;
mod pressure;
mod rb;
mod request;
mod respond;
mod scoreboard;
mod settings;
mod shapes;
mod socket;
mod stopping;
mod stream;
mod title;
mod values;
mod watcher;
mod worker;

/// What Ruby calls when it loads the library. The macro makes a public function without a doc comment.
mod entry {
    #![allow(missing_docs)]

    use magnus::{Error, Module as _, Object as _, Ruby, function, method};

    use crate::scoreboard::Scoreboard;
    use crate::worker::Worker;

    #[magnus::init(name = "native")]
    fn init(ruby: &Ruby) -> Result<(), Error> {
        let native = ruby.define_module("Oroshi")?.define_module("Native")?;

        let scoreboard = native.define_class("Scoreboard", ruby.class_object())?;
        scoreboard.define_singleton_method("new", function!(Scoreboard::new, 2))?;
        scoreboard.define_method("slots", method!(Scoreboard::slots, 0))?;
        scoreboard.define_method("clear", method!(Scoreboard::clear, 1))?;
        scoreboard.define_method("read", method!(Scoreboard::read, 1))?;
        scoreboard.define_method("overdue", method!(Scoreboard::overdue, 1))?;
        scoreboard.define_method("ending", method!(Scoreboard::end, 1))?;
        scoreboard.define_method("condemn", method!(Scoreboard::condemn, 2))?;

        let worker = native.define_class("Worker", ruby.class_object())?;
        worker.define_singleton_method("new", function!(Worker::new, -1))?;
        worker.define_method("run", method!(Worker::run, 0))?;
        worker.define_method("stop", method!(Worker::stop, 0))?;
        worker.define_method("stop_now", method!(Worker::stop_now, 0))?;
        worker.define_method("hand_over", method!(Worker::hand_over, 0))?;
        worker.define_method("flush_log", method!(Worker::flush_log, 0))?;
        worker.define_method("wants_replacing?", method!(Worker::wants_replacing, 0))?;

        let hijack = native.define_class("Hijack", ruby.class_object())?;
        hijack.define_method("call", method!(crate::hijack::call, 0))?;

        native.define_singleton_method("refuse_new", function!(crate::worker::refuse_new, 1))?;
        Ok(())
    }
}
