//! The hub's HTTP side: who is asked for what.

mod answer;
mod connect;
mod kuiperbelt;
mod native;
pub(crate) mod poll;
pub(crate) mod query;
mod status;

use std::rc::Rc;

use oroshi_server::{Error, Exchange};

use crate::hub::Hub;
use crate::plan::Serves;
use answer::Problem;

/// Answers a request that came in through a door.
pub(crate) async fn answer(hub: &Rc<Hub>, serves: Serves, exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let (path, _) = query::split(exchange.head.target);
    let (clients, backends) = (serves != Serves::Admin, serves != Serves::Sessions);
    let paths = &hub.plan().paths;
    // What is large and seldom is boxed, as a connection's task is as large as the largest of its waits.
    if clients && path == paths.connect {
        return Box::pin(connect::answer(hub, exchange)).await;
    }
    if clients && path == paths.poll {
        return Box::pin(poll::answer(hub, exchange)).await;
    }
    if path == paths.ping {
        return kuiperbelt::ping(exchange).await;
    }
    if !backends {
        return Problem::no_route(path).send(exchange).await;
    }
    if !answer::is_authorized(hub.plan(), exchange) {
        return answer::unauthorized(exchange).await;
    }
    if path == paths.send {
        return kuiperbelt::send(hub, exchange).await;
    }
    Box::pin(async {
        match path {
            _ if path == paths.close => kuiperbelt::close(hub, exchange).await,
            _ if path == paths.broadcast => kuiperbelt::broadcast(hub, exchange).await,
            _ if path == paths.stats => kuiperbelt::stats(hub, exchange).await,
            "/status" | "/metrics" | "/openapi.json" => status::answer(hub, exchange).await,
            _ => native::answer(hub, exchange).await,
        }
    })
    .await
}
