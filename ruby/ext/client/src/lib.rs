//! The native part of `Oroshi::Client`: a thread with an event loop, on which `oroshi-client` carries requests out,
//! and a way for Ruby's threads and fibers to wait for what becomes of them.
//!
//! **What it knows**: the thread, the way of a request to it and of its outcome back, and what a `fork` leaves of
//! that. **What it does not know**: HTTP (`oroshi-client`), and what a Ruby user sees: arguments, responses,
//! exceptions (`ruby/lib/oroshi/client`).
//!
//! The thread never calls Ruby and never takes its lock (the GVL), and no Ruby object is held here. A call sends
//! orders; their outcomes gather in its inbox, and an eventfd says that there are some. Ruby waits for that
//! descriptor as for any other `IO`. So interrupts, `Timeout` and fiber schedulers work without a word about them
//! here.
//!
//! # Where to read
//!
//! 1. `call`: what Ruby holds while it waits; `inbox`: where outcomes gather.
//! 2. `engine`: the thread; `order`: one request on it.
//! 3. `settings`: what it was told; `outcome`: what it tells.
//! 4. `process`: what must not be touched after a `fork`.

mod call;
mod engine;
mod inbox;
mod order;
mod outcome;
mod process;
mod settings;

/// What Ruby calls when it loads the library. The macro makes a public function without a doc comment.
mod entry {
    #![allow(missing_docs)]

    use magnus::{Error, Module as _, Object as _, Ruby, function, method};

    use oroshi_client::Headers;

    use crate::call::Call;
    use crate::engine::Engine;
    use crate::settings::{self, Settings};

    #[magnus::init(name = "client_native")]
    fn init(ruby: &Ruby) -> Result<(), Error> {
        let client = ruby.define_module("Oroshi")?.define_class("Client", ruby.class_object())?;
        let native = client.define_module("Native")?;

        // One rule of what is secret for Ruby and Rust.
        native.define_singleton_method("secret?", function!(|name| Headers::is_secret(&settings::text(name)), 1))?;

        let settings = native.define_class("Settings", ruby.class_object())?;
        settings.define_singleton_method("new", function!(Settings::new, 1))?;
        settings.define_method("max_connections", method!(Settings::max_connections, 0))?;
        settings.define_method("start", method!(Settings::start, 0))?;

        let engine = native.define_class("Engine", ruby.class_object())?;
        engine.define_method("close_idle", method!(Engine::close_idle, 0))?;
        engine.define_method("close", method!(Engine::close, 0))?;
        engine.define_method("here?", method!(Engine::is_here, 0))?;

        let call = native.define_class("Call", ruby.class_object())?;
        call.define_singleton_method("new", function!(Call::new, 0))?;
        call.define_method("leads?", method!(Call::leads, 0))?;
        call.define_method("lead", method!(Call::lead, 1))?;
        call.define_method("fileno", method!(Call::fileno, 0))?;
        call.define_method("submit", method!(Call::submit, 6))?;
        call.define_method("count", method!(Call::count, 0))?;
        call.define_method("take", method!(Call::take, 0))?;
        call.define_method("finish", method!(Call::finish, 0))
    }
}
