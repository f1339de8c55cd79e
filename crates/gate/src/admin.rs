//! The operators' pages: `/status`, `/metrics`, `/explain` and `/purge`.

mod metrics;
mod status;

use std::borrow::Cow;
use std::time::Duration;

use oroshi_lookup::{Explanation, StoreEntry, key};
use oroshi_server::{Error, Exchange, page};
use oroshi_words::query;
use serde_json::{Value, json};

use crate::plan::{Action, KeyFrom};
use crate::route::{Repeated, RouteQuery, readings};
use crate::site::{Site, is_key};

/// The paths of admin listeners.
const PATHS: [&str; 4] = ["/status", "/metrics", "/explain", "/purge"];

/// A response that names an error, with its status.
struct ErrorReply(u16, String);

impl From<String> for ErrorReply {
    fn from(text: String) -> Self {
        ErrorReply(400, text)
    }
}

/// Responds to a request of an operator.
pub(crate) async fn answer(site: &Site, exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let (path, query) = query::split(exchange.head.target);
    let method = exchange.head.method;
    let wanted = match path {
        "/purge" => "POST",
        _ => "GET",
    };
    let is_tcp = exchange.remote().is_some();
    let answered = if !PATHS.contains(&path) {
        Err(ErrorReply(404, format!("there is nothing at `{path}`: expected one of {}", PATHS.join(", "))))
    } else if method != wanted && !(wanted == "GET" && method == "HEAD") {
        Err(ErrorReply(405, format!("{method} is not allowed here: expected {wanted}")))
    } else if exchange.head.headers.get("origin").is_some() || page::is_foreign(&exchange.head) {
        // A page in a browser on this machine is no operator.
        Err(ErrorReply(403, "pages of browsers are not served here: expected a request without Origin".to_owned()))
    } else if is_tcp && !page::names_loopback(&exchange.head) {
        // Neither is a page whose host name resolves to this machine (DNS rebinding): its requests carry that name.
        Err(ErrorReply(403, "this is for operators: expected localhost or a loopback address in Host".to_owned()))
    } else {
        exchange.vouch();
        match path {
            "/metrics" => {
                let text = metrics::text(site).await;
                let fields = [("Content-Type", &b"text/plain; version=0.0.4; charset=utf-8"[..])];
                return exchange.reply.send(200, fields, text.as_bytes()).await;
            }
            "/status" => Ok(status::status(site).await),
            "/explain" => explain(site, query).await,
            _ => purge(site, query).await,
        }
    };
    let (status, value) = match answered {
        Ok(value) => (200, value),
        Err(ErrorReply(status, message)) => (status, json!({ "error": message })),
    };
    let mut fields = vec![("Content-Type", &b"application/json; charset=utf-8"[..])];
    if status == 405 {
        fields.push(("Allow", wanted.as_bytes()));
    }
    let mut body = value.to_string().into_bytes();
    body.push(b'\n');
    exchange.reply.send(status, fields, &body).await
}

/// Returns the values of the parameters in `known`, in that order.
fn parameters<const N: usize>(query: &str, known: [&str; N]) -> Result<[Option<String>; N], ErrorReply> {
    let mut found = [const { None }; N];
    for pair in query::pairs(query) {
        let (name, value) = pair?;
        let place = known.iter().position(|known| *known == name).ok_or_else(|| query::unknown(&name, &known))?;
        found[place] = Some(value.into_owned());
    }
    Ok(found)
}

/// Explains which way a request would go, and why.
async fn explain(site: &Site, query: &str) -> Result<Value, ErrorReply> {
    let [host, path, method, looked_up] = parameters(query, ["host", "path", "method", "key"])?;
    let (path, method) = (path.unwrap_or_else(|| "/".to_owned()), method.unwrap_or_else(|| "GET".to_owned()));
    let host = host.unwrap_or_default();
    let canonical = match &*host {
        "" => String::new(),
        host => key::host(host.as_bytes()).map_err(|error| format!("`{host}` is no host: {error}"))?.into_owned(),
    };
    // Routes ignore the query.
    let path = path.split('?').next().unwrap_or_default();
    let read = readings(path).map_err(|error| format!("`{path}`: {error}"))?;
    let plain = read.plain.clone().into_owned();
    let plan = &site.generation.plan;
    // Conditions on header fields count as unmet, because the query has no header fields.
    let query = RouteQuery {
        host: &canonical,
        path: &plain,
        method: &method,
        headers: Default::default(),
        repeated: Repeated::Any,
    };
    let found = plan.table.find(&query);
    if read.others().any(|path| plan.table.find(&RouteQuery { path, ..query }) != found) {
        return Err(format!("`{path}` can be read in two ways, which take different routes: it is answered 400").into());
    }
    let Some(place) = found else {
        return Ok(json!({ "host": canonical, "path": plain, "route": null, "answer": plan.no_route.status }));
    };
    let route = &plan.routes[place];
    let mut told = json!({ "host": canonical, "path": plain, "route": route.name });
    if let Some(script) = route.script {
        told["script"] = status::script(&plan.scripts[script]);
    }
    match &route.action {
        Action::Forward(upstream) => {
            let upstream = &plan.upstreams[*upstream];
            told["upstream"] = json!(upstream.name);
            told["balance"] = json!(upstream.policy.name());
            let class = upstream.pool.class;
            told["targets"] = upstream
                .targets
                .iter()
                .map(|(target, weight)| status::target(site, &target.to_string(), class, Some(*weight)))
                .collect();
        }
        Action::Redirect { status, .. } => told["redirect"] = json!(status),
        Action::Answer(answer) => told["answer"] = json!(answer.status),
        Action::Lookup(lookup) => explain_lookup(site, *lookup, &canonical, &plain, looked_up, &mut told).await?,
    }
    Ok(told)
}

/// Looks a key up, and adds the result and the tiers that have the key to `told`. Without a `key`, the look-up's rule
/// takes the key from the host or the path.
async fn explain_lookup(
    site: &Site,
    place: usize,
    host: &str,
    path: &str,
    key: Option<String>,
    told: &mut Value,
) -> Result<(), ErrorReply> {
    let (found, lookup) = (&site.generation.plan.lookups[place], &site.generation.lookups[place]);
    let key = key.map_or_else(|| key_of(site, &found.key, host, path), Ok)?;
    if !is_key(&key) {
        return Err(format!(
            "{key:?} is no key, and requests with it are not looked up: expected 1 to 1024 bytes of text"
        )
        .into());
    }
    told["lookup"] = json!(found.settings.name);
    told["key"] = json!(key);
    // Reads the tiers before the look-up fills the memory.
    let explanation = lookup.explain(&key).await;
    let answer = lookup.get(&key).answer().await;
    told["outcome"] = json!(answer.outcome.name());
    told["tier"] = json!(answer.tier.as_str());
    told["age_s"] = seconds(answer.age);
    told["ttl_left_s"] = seconds(answer.ttl_left);
    match &answer.outcome {
        oroshi_lookup::Outcome::Invalid(why) => told["why"] = json!(&**why),
        oroshi_lookup::Outcome::StoreDown(error) | oroshi_lookup::Outcome::Stale(_, error) => {
            told["why"] = json!(error.to_string());
        }
        _ => {}
    }
    if let Some(targets) = answer.outcome.targets() {
        let class = found.pool.class;
        told["targets"] = targets
            .iter()
            .map(|(target, weight)| status::target(site, &target.to_string(), class, Some(weight)))
            .collect();
        told["balance"] = json!(found.policy.name());
    }
    told["tiers"] = tiers(&explanation);
    Ok(())
}

/// Returns the key of a request for this host and path.
///
/// # Errors
/// If the key comes from something else, or the request has none.
fn key_of(site: &Site, from: &KeyFrom, host: &str, path: &str) -> Result<String, String> {
    let key = match from {
        KeyFrom::Host => Some(host.to_owned()).filter(|host| !host.is_empty()),
        KeyFrom::Segment(number) => path.split('/').nth(*number).map(str::to_owned),
        KeyFrom::Header(name) => {
            return Err(format!("the look-up goes by the header {name}: expected its value in key="));
        }
        KeyFrom::Script(place) => {
            let name = &site.generation.plan.scripts[*place].settings.name;
            return Err(format!("the look-up goes by what the script `{name}` says: expected its key in key="));
        }
    };
    key.ok_or_else(|| "there is no key to look up: expected host= or key=".to_owned())
}

/// Describes the value of a key in each tier.
fn tiers(explanation: &Explanation) -> Value {
    let held = |held: &StoreEntry| match held {
        StoreEntry::Targets(targets) => json!({ "has": targets.to_string() }),
        StoreEntry::Negative => json!({ "has": "a note that there is none" }),
        StoreEntry::Invalid(why) => json!({ "invalid": &**why }),
        StoreEntry::Missing => json!({ "has": null }),
        StoreEntry::Failed(error) => json!({ "failed": error.to_string() }),
    };
    let mut told = json!({ "in_flight": explanation.in_flight });
    if let Some(kept) = &explanation.memory {
        told["memory"] = json!({
            "from": kept.from.as_str(),
            "age_s": seconds(kept.age),
            "ttl_left_s": seconds(kept.ttl_left),
            "stale_left_s": seconds(kept.stale_left),
        });
        match &kept.value {
            Ok(targets) => told["memory"]["has"] = json!(targets.to_string()),
            Err(None) => told["memory"]["has"] = json!("a note that there is none"),
            Err(Some(why)) => told["memory"]["invalid"] = json!(&**why),
        }
    }
    if let Some((has, servers)) = &explanation.memcached {
        told["memcached"] = held(has);
        told["memcached"]["servers"] = servers.iter().map(status::server).collect();
    }
    if let Some((has, state)) = &explanation.sql {
        told["sql"] = held(has);
        told["sql"]["store"] = status::database(state);
    }
    told
}

/// Removes a key, all keys with a prefix, all keys, or the certificate of a name from memory.
async fn purge(site: &Site, query: &str) -> Result<Value, ErrorReply> {
    let known = ["lookup", "key", "prefix", "all", "everywhere", "certificate"];
    let [name, key, prefix, all, everywhere, certificate] = parameters(query, known)?;
    for (name, value) in [("all", &all), ("everywhere", &everywhere)] {
        if let Some(value) = value.as_ref().filter(|value| *value != "1") {
            return Err(format!("{name}=`{value}` is not understood: expected {name}=1, or none").into());
        }
    }
    let generation = &site.generation;
    if let Some(certificate) = certificate {
        if name.is_some() || key.is_some() || prefix.is_some() || all.is_some() || everywhere.is_some() {
            return Err("certificate=... stands alone: expected no other parameter".to_owned().into());
        }
        let certificates = generation.certificates.as_ref().filter(|certificates| certificates.lookup().is_some());
        let certificates = certificates
            .ok_or_else(|| ErrorReply(404, "no certificates are looked up: expected [tls.lookup]".to_owned()))?;
        return Ok(json!({ "forgotten": usize::from(certificates.purge(&certificate)) }));
    }
    let names: Vec<&str> = generation.lookups.iter().map(|lookup| &*lookup.settings().name).collect();
    let chosen: Vec<_> = match &name {
        Some(name) => generation.lookups.iter().filter(|lookup| lookup.settings().name == *name).collect(),
        None => generation.lookups.iter().collect(),
    };
    if chosen.is_empty() {
        let name = name.unwrap_or_default();
        return Err(ErrorReply(404, format!("there is no look-up `{name}`: expected one of {}", names.join(", "))));
    }
    if everywhere.is_some() && key.is_none() {
        let why =
            "everywhere=1 goes with key=... alone: memcached has no list of its keys, and may have others' beside ours";
        return Err(why.to_owned().into());
    }
    let mut forgotten = 0;
    match (key, prefix, all) {
        (Some(key), None, None) => {
            for (lookup, plan) in generation.lookups.iter().zip(&generation.plan.lookups) {
                if !chosen.iter().any(|chosen| std::ptr::eq(*chosen, lookup)) {
                    continue;
                }
                // In the spelling that requests use.
                let key = match plan.key {
                    KeyFrom::Host => key::host(key.as_bytes()).map_or_else(|_| key.clone(), Cow::into_owned),
                    _ => key.clone(),
                };
                let gone = match everywhere {
                    None => lookup.purge(&key),
                    Some(_) => {
                        lookup.purge_everywhere(&key).await.map_err(|error| ErrorReply(502, error.to_string()))?
                    }
                };
                forgotten += usize::from(gone);
            }
        }
        (None, Some(prefix), None) if !prefix.is_empty() => {
            forgotten = chosen.iter().map(|lookup| lookup.purge_prefix(&prefix)).sum();
        }
        (None, None, Some(_)) => forgotten = chosen.iter().map(|lookup| lookup.purge_prefix("")).sum(),
        _ => return Err("expected exactly one of key=..., prefix=..., all=1 and certificate=...".to_owned().into()),
    }
    Ok(json!({ "forgotten": forgotten }))
}

fn seconds(time: Duration) -> Value {
    json!(time.as_millis() as f64 / 1e3)
}
