//! Requests on routes with scripts: calls the hooks and acts on their results.

use oroshi_lookup::Targets;
use oroshi_server::{Error, Exchange};

use super::{Extras, Parts, RoutedRequest, Site, hash_by, send_answer};
use crate::failure::SCRIPT_FAILED;
use crate::forward::{Inspect, forward, request_id};
use crate::plan::{Action, Answer, KeyFrom, Route, Script};
use crate::record::Record;
use crate::script::hooks::{Inspector, RequestHooks, RouteDecision};
use crate::script::{ErrorKind, Hook, Reply, Request, ScriptError};

/// A failed call of a hook.
struct Failed(Hook, ScriptError);

/// The decision of the hooks before the request goes anywhere.
struct Decision {
    direction: RouteDecision,
    /// The key of the look-up.
    key: Option<String>,
}

impl Site {
    /// Calls the scripts of a route and acts on their decision.
    pub(super) async fn run_scripts<'s>(
        &'s self,
        exchange: &mut Exchange<'_>,
        record: &mut Record<'s, '_>,
        route: &'s Route,
        parts: Parts<'_>,
    ) -> Result<(), Error> {
        let plan = &self.generation.plan;
        let id = request_id(exchange, &route.rules);
        record.outcome.request_id = id;
        let query = parts.query.strip_prefix('?').unwrap_or(parts.query);
        let request = Request::new(exchange, (parts.host, &parts.read.plain, query), &route.name, id);
        let mut hooks = None;
        let decision = match self.call_hooks(route, &request, &mut hooks, record).await {
            Ok(decision) => decision,
            Err(Failed(hook, error)) => {
                if let Some(hooks) = &hooks {
                    hooks.instance().tell(hook, &error);
                }
                return send_failure(exchange, route, &error, record).await;
            }
        };
        // The gateway forwards the request as it is now; later changes would be lost.
        request.fields().seal();
        let (edits, target) = (request.fields().edits(), request.target());
        let inspector = route.script.and(hooks).and_then(|hooks| hooks.inspector());
        let extras = Extras {
            edits: &edits,
            target: target.as_deref(),
            inspect: inspector.as_ref().map(|inspector: &Inspector| -> &dyn Inspect { inspector }),
            key: decision.key.as_deref(),
        };
        match decision.direction {
            RouteDecision::Reply(reply) => send_reply(exchange, &reply, record).await,
            RouteDecision::Own => {
                self.act(exchange, record, &RoutedRequest { route, action: &route.action, parts, extras: &extras })
                    .await
            }
            RouteDecision::Upstream(name) => match plan.upstreams.iter().position(|upstream| upstream.name == name) {
                Some(place) => {
                    let action = &Action::Forward(place);
                    self.act(exchange, record, &RoutedRequest { route, action, parts, extras: &extras }).await
                }
                None => {
                    let script = route.script.map_or("", |script| &plan.scripts[script].settings.name);
                    let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
                    record.outcome.detail =
                        format!("script `{script}`: on_route names the upstream `{shown}`, which there is not");
                    self.invalid(exchange, route, record).await
                }
            },
            RouteDecision::Targets(targets) => {
                let Some(place) = route.script else { return self.invalid(exchange, route, record).await };
                let (script, finder) = (&plan.scripts[place], &self.scripts[place].1);
                let targets = match parse(&targets, script) {
                    Ok(targets) => targets,
                    Err(why) => {
                        record.outcome.detail = format!("script `{}`: {why}", script.settings.name);
                        return self.invalid(exchange, route, record).await;
                    }
                };
                let Some(destination) = finder.destination(&self.pools, &targets) else {
                    return self.invalid(exchange, route, record).await;
                };
                let key = hash_by(&script.hash, script.policy, exchange, parts.host);
                let call = extras.call(route, &parts, (destination.to(), key), &self.generation.counters);
                forward(exchange, &call, &mut record.outcome).await
            }
        }
    }

    /// Calls the hooks that run before forwarding. Leaves the hooks of the current script in `hooks`.
    async fn call_hooks(
        &self,
        route: &Route,
        request: &Request,
        hooks: &mut Option<RequestHooks>,
        record: &mut Record<'_, '_>,
    ) -> Result<Decision, Failed> {
        let mut decision = Decision { direction: RouteDecision::Own, key: None };
        if let Some(place) = route.script {
            let begun = RequestHooks::begin(&self.scripts[place].0, request);
            let asked = hooks.insert(begun);
            if asked.has(Hook::Log) {
                record.hooks = Some(Box::new(asked.clone()));
            }
            if asked.has(Hook::Request)
                && let Some(reply) = asked.on_request().await.map_err(|error| Failed(Hook::Request, error))?
            {
                decision.direction = RouteDecision::Reply(reply);
                return Ok(decision);
            }
            if asked.has(Hook::Route) {
                decision.direction = asked.on_route().await.map_err(|error| Failed(Hook::Route, error))?;
            }
        }
        if let (RouteDecision::Own, Action::Lookup(lookup)) = (&decision.direction, &route.action)
            && let KeyFrom::Script(place) = self.generation.plan.lookups[*lookup].key
        {
            let instance = &self.scripts[place].0;
            let failed = |error| Failed(Hook::Key, error);
            let asked = match hooks.as_ref().filter(|hooks| hooks.is_to(instance)) {
                Some(same) => same.clone(),
                None => RequestHooks::begin(instance, request),
            };
            decision.key = match asked.on_key().await {
                Ok(key) => key,
                Err(error) => {
                    // The caller logs the error for this script.
                    *hooks = Some(asked);
                    return Err(failed(error));
                }
            };
        }
        Ok(decision)
    }

    async fn invalid(
        &self,
        exchange: &mut Exchange<'_>,
        route: &Route,
        record: &mut Record<'_, '_>,
    ) -> Result<(), Error> {
        record.why = "invalid";
        if let Some(place) = route.script {
            self.scripts[place].0.tell_invalid(&record.outcome.detail);
        }
        let answer = route.script.map(|script| &self.generation.plan.scripts[script].invalid);
        let answer = answer.unwrap_or(&self.generation.plan.no_route);
        if route.rules.settings().explain {
            return send_explained(exchange, answer, record).await;
        }
        send_answer(exchange, answer, record).await
    }
}

/// Checks the targets that a script names against those that it may name.
fn parse(targets: &[(String, u32)], script: &Script) -> Result<Targets, String> {
    let one = |(text, weight): &(String, u32)| match Targets::parse(text.as_bytes(), &script.allow) {
        Ok(Targets::One(target)) => Ok((target, *weight)),
        Ok(Targets::Many(_)) => Err(format!("`{text}` stands for several targets: expected a list of single ones")),
        Err(error) => Err(error.to_string()),
    };
    if let [(text, _)] = targets {
        return Targets::parse(text.as_bytes(), &script.allow).map_err(|error| error.to_string());
    }
    let targets: Vec<_> = targets.iter().map(one).collect::<Result<_, _>>()?;
    Ok(Targets::Many(targets.into()))
}

/// Sends a response that a script made.
async fn send_reply(exchange: &mut Exchange<'_>, reply: &Reply, record: &mut Record<'_, '_>) -> Result<(), Error> {
    let fields = reply.headers.iter().map(|(name, value)| (&**name, &**value));
    record.own = Some((reply.status, reply.body.len() as u64));
    exchange.reply.send(reply.status, fields, &reply.body).await
}

/// Responds that a script failed. Details follow only if the route explains failures.
async fn send_failure(
    exchange: &mut Exchange<'_>,
    route: &Route,
    error: &ScriptError,
    record: &mut Record<'_, '_>,
) -> Result<(), Error> {
    record.why = "script";
    record.outcome.detail = error.to_string();
    let answer = match error.kind {
        // The next request may find room.
        ErrorKind::Overload => {
            Answer { retry_after: Some(1), ..Answer::text(503, "too many requests wait for a script of this gateway") }
        }
        _ => Answer::text(500, SCRIPT_FAILED),
    };
    if route.rules.settings().explain {
        return send_explained(exchange, &answer, record).await;
    }
    send_answer(exchange, &answer, record).await
}

/// Sends a response together with the detail for the log.
async fn send_explained(
    exchange: &mut Exchange<'_>,
    answer: &Answer,
    record: &mut Record<'_, '_>,
) -> Result<(), Error> {
    let text = format!("{}{}\n", String::from_utf8_lossy(&answer.body), record.outcome.detail);
    send_answer(exchange, &Answer { body: text.into_bytes().into(), ..answer.clone() }, record).await
}
