//! The native part of `Oroshi::Client`: a thread with an event loop, on which `oroshi-client` carries out requests.
//! Ruby's threads and fibers wait for their outcomes.
//!
//! **It knows** the thread, how requests and outcomes travel, and which of it survives a `fork`. **It does not know**
//! HTTP (`oroshi-client`), nor what a Ruby user sees: arguments, responses, exceptions (`ruby/lib/oroshi/client`).
//!
//! The thread never calls Ruby, never takes Ruby's lock (the GVL), and holds no Ruby object. A call sends requests; its
//! inbox collects outcomes and makes an eventfd readable. Ruby waits for that descriptor as for any other `IO`, so
//! interrupts, `Timeout` and fiber schedulers need no code here.
//!
//! # Where to read
//!
//! 1. `call`: what Ruby holds while it waits; `inbox`: the outcomes.
//! 2. `engine`: the thread; `request`: one request on it.
//! 3. `settings`: its input; `outcome`: its output.
//! 4. `process`: protection after a `fork`.

mod call;
mod engine;
mod inbox;
mod outcome;
mod process;
mod request;
mod settings;

/// The entry point that Ruby calls. The macro makes a public function without a doc comment.
mod entry {
    #![allow(missing_docs)]

    use magnus::{Error, Module as _, Object as _, Ruby, TypedData as _, function, method};

    use oroshi_client::Headers;

    use crate::call::Call;
    use crate::engine::Engine;
    use crate::settings::{self, Settings};

    #[magnus::init(name = "client_native")]
    fn init(ruby: &Ruby) -> Result<(), Error> {
        let client = ruby.define_module("Oroshi")?.define_class("Client", ruby.class_object())?;
        let native = client.define_module("Native")?;

        // Ruby and Rust share one rule for secrets.
        native.define_singleton_method("secret?", function!(|name| Headers::is_secret(&settings::text(name)), 1))?;

        // A URL relative to another, by the client's own rules, unix sockets included.
        native.define_singleton_method("join", function!(settings::join, 2))?;

        let settings = native.define_class("Settings", ruby.class_object())?;
        settings.define_singleton_method("new", function!(Settings::new, 1))?;
        settings.define_method("max_connections", method!(Settings::max_connections, 0))?;
        settings.define_method("start", method!(Engine::start, 0))?;
        settings.define_method("cookies?", method!(Settings::has_cookies, 0))?;
        settings.define_method("cookie", method!(Settings::cookie, 2))?;
        settings.define_method("set_cookie", method!(Settings::set_cookie, 3))?;
        settings.define_method("clear_cookies", method!(Settings::clear_cookies, 0))?;

        let engine = native.define_class("Engine", ruby.class_object())?;
        engine.define_method("close_idle", method!(Engine::close_idle, 0))?;
        engine.define_method("close", method!(Engine::close, 0))?;
        engine.define_method("here?", method!(Engine::is_here, 0))?;

        let call = native.define_class("Call", ruby.class_object())?;
        call.define_singleton_method("new", function!(Call::new, 0))?;
        call.define_method("attached?", method!(Call::is_attached, 0))?;
        call.define_method("attach", method!(Call::attach, 1))?;
        call.define_method("fileno", method!(Call::fileno, 0))?;
        call.define_method("submit", method!(Call::submit, 6))?;
        call.define_method("count", method!(Call::count, 0))?;
        call.define_method("take", method!(Call::take, 0))?;
        call.define_method("finish", method!(Call::finish, 0))?;

        // The first look-up of a class calls Ruby while it holds a lock. Another thread that then wanted the class
        // would wait for that lock, and hold the GVL that the first one needs. Here is no other thread yet.
        let _ = (Settings::class(ruby), Engine::class(ruby), Call::class(ruby));
        Ok(())
    }
}
