//! The HTTP API: it routes each request to the module that answers it.

mod answer;
mod command;
mod connect;
mod identify;
mod kuiperbelt;
mod lists;
mod native;
mod origin;
mod page;
mod poll;
mod query;
mod status;

use std::rc::Rc;
use std::time::Instant;

use oroshi_server::{Error, Exchange};

use crate::hub::Hub;
use crate::plan::Serves;
use answer::{HandlerResult, Problem};

/// Answers a request from a listener, and logs it if the plan has an access log.
pub(crate) async fn answer(hub: &Rc<Hub>, serves: Serves, exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let (plan, head) = (hub.plan(), exchange.head);
    let (path, paths) = (query::split(head.target).0, &plan.paths);
    // kuiperbelt does not log the first and the last of these either.
    if !plan.access_log || path == paths.connect || path == paths.poll || path == paths.stats {
        return route(hub, serves, path, exchange).await;
    }
    if path == paths.command && plan.has_channels() {
        return route(hub, serves, path, exchange).await;
    }
    let begun = Instant::now();
    let result = route(hub, serves, path, exchange).await;
    let (status, us) = (exchange.reply.status().unwrap_or_default(), begun.elapsed().as_micros() as u64);
    tracing::info!(target: "oroshi_push::access", method = head.method, path, status, us);
    result
}

async fn route(hub: &Rc<Hub>, serves: Serves, path: &str, exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let clients = serves != Serves::Admin;
    let (plan, paths) = (hub.plan(), &hub.plan().paths);
    let polls = plan.transports.poll && path == paths.poll;
    let commands = path == paths.command && plan.has_channels();
    if clients && (path == paths.connect || polls || commands) && exchange.head.method == "OPTIONS" {
        return Box::pin(origin::preflight(hub, exchange, if commands { "POST" } else { "GET" })).await;
    }
    // Boxed, as large futures: a connection's task is as large as the largest future that it awaits.
    if clients && path == paths.connect {
        return Box::pin(connect::answer(hub, exchange)).await;
    }
    if clients && polls {
        return Box::pin(poll::answer(hub, exchange)).await;
    }
    if clients && commands {
        return Box::pin(command::answer(hub, exchange)).await;
    }
    let answered = answer_api(hub, serves, path, exchange).await;
    answer::send(exchange, answered).await
}

/// Answers requests of backends and operators.
async fn answer_api(hub: &Rc<Hub>, serves: Serves, path: &str, exchange: &mut Exchange<'_>) -> HandlerResult {
    let (plan, paths) = (hub.plan(), &hub.plan().paths);
    if path == paths.ping {
        return Ok(kuiperbelt::ping());
    }
    if serves.is_public() {
        return Err(Problem::no_route_for_clients(plan, path).into());
    }
    answer::check_page(plan, serves, exchange)?;
    if let Some(answered) = page::answer(exchange.head.method, path) {
        return answered;
    }
    answer::authorize(plan, exchange)?;
    exchange.vouch();
    if path == paths.send {
        return kuiperbelt::send(hub, exchange).await;
    }
    // Boxed like the others: large, and less frequent.
    Box::pin(async {
        match path {
            _ if path == paths.close => kuiperbelt::close(hub, exchange).await,
            _ if path == paths.broadcast => kuiperbelt::broadcast(hub, exchange).await,
            _ if path == paths.stats => kuiperbelt::stats(hub, exchange).await,
            "/status" | "/metrics" | "/openapi.json" => status::answer(hub, path, exchange).await,
            _ => native::answer(hub, path, exchange).await,
        }
    })
    .await
}
