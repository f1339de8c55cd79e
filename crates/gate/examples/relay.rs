//! One core that carries every request to one target: what the engine costs, without routes.
//!
//! ```sh
//! cargo run --release -p oroshi-gate --example relay -- 127.0.0.1:8080 unix:/run/app.sock
//! ```
//!
//! It runs until it is told to end (TERM or INT), and then exits.

use std::rc::Rc;
use std::sync::Mutex;

use oroshi_gate::forward::{Call, CallTargets, Outcome, Rules, forward};
use oroshi_gate::upstream::{PoolSettings, Pools, Settings, Target};
use oroshi_net::{BoundListener, ListenOptions, Shutdown, Threads, ThreadsOptions};
use oroshi_server::{Exchange, Server};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, target] = &arguments[..] else { return Err("give the address to listen at, and the target".into()) };
    let target: Target = target.parse()?;
    let shutdown = Shutdown::on_signals()?;
    let bound = Mutex::new(Some(BoundListener::bind(listen, &ListenOptions::default())?));
    Threads::run(&ThreadsOptions::new("relay", 1), move |_| {
        let bound = bound.lock().ok().and_then(|mut bound| bound.take());
        let (shutdown, target) = (shutdown.clone(), target.clone());
        async move {
            let pools = Pools::new(Settings::default(), std::sync::Arc::default());
            let pool = pools.pool(&target, &Rc::new(PoolSettings::default()));
            let rules = Rules::default();
            let handler = async move |exchange: &mut Exchange<'_>| {
                let mut outcome = Outcome::default();
                forward(exchange, &Call::new(&rules, CallTargets::One(&pool)), &mut outcome).await
            };
            let server = Server::new(handler, oroshi_server::Settings::default());
            let listeners = bound.and_then(|bound| bound.into_listener().ok()).map(Into::into);
            server.serve(listeners, shutdown.reached(1)).await;
        }
    })?;
    Ok(())
}
