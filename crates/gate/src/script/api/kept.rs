//! `gate.cache`: the functions behind it.

use std::sync::Arc;

use mlua::{IntoLuaMulti, Lua, MultiValue, Value};
use oroshi_script::{Data, DataError};

use super::args::{Args, CallError, kind};
use super::{ApiContext, Charge, Library, WaitResult, later, now};
use crate::script::cache::{Cache, CacheError, CacheLookup, KEY_BYTES};

pub(super) fn add(library: &Library<'_>) -> mlua::Result<()> {
    let charge = Charge::new(library)?;
    library.add("gate.cache.get", move |lua, host, args| {
        let key = key(lua, args)?;
        match cache(host)?.get(&key) {
            // The second result tells a cached nil from a missing value.
            Some(value) => {
                charge.bytes(value.bytes())?;
                now(lua, (value.to_lua(lua)?, true))
            }
            None => now(lua, (Value::Nil, false)),
        }
    })?;
    let charge = Charge::new(library)?;
    library.add("gate.cache.set", move |lua, host, args| {
        let key = key(lua, args)?;
        let cache = cache(host)?;
        let copied = Data::from_lua_within(&args.next(), cache.most());
        // A value that is too large was copied up to the limit.
        charge.bytes(copied.as_ref().map_or_else(|_| cache.most(), Data::bytes))?;
        let value = match copied {
            Err(DataError::TooLarge(limit)) => Err(CacheError::TooLarge { limit }),
            value => Ok(value.map_err(|error| CallError::new(format!("value: {error}")))?),
        };
        let ttl = args.ttl()?;
        match value.and_then(|value| cache.set(&key, value, ttl)) {
            Ok(()) => now(lua, true),
            Err(error) => now(lua, (Value::Nil, error.to_string(), "too-large")),
        }
    })?;
    library.add("gate.cache.delete", |lua, host, args| {
        let key = key(lua, args)?;
        now(lua, cache(host)?.delete(&key))
    })?;
    library.add("gate.cache.incr", |lua, host, args| {
        let key = key(lua, args)?;
        let more = args.optional_number("n")?.unwrap_or(1.0);
        let ttl = args.ttl()?;
        match cache(host)?.incr(&key, more, ttl) {
            Ok(sum) => now(lua, sum),
            Err(error) => now(lua, (Value::Nil, error.to_string(), "not-a-number")),
        }
    })?;
    // The parts of `gate.cache.fetch`.
    library.add_as("gate.cache.ask", "gate.cache.fetch", |lua, host, args| {
        let key = key(lua, args)?;
        // Validates the time to live before the function makes a value.
        args.ttl()?;
        if host.tickets.borrow().iter().any(|ticket| ticket.is_for(&key)) {
            return Err(CallError::new(
                "this is called by its own function for the same key, and would wait for itself",
            ));
        }
        let cache = Arc::clone(cache(host)?);
        match cache.ask(&key) {
            CacheLookup::Made(mut made) => later(async move {
                loop {
                    // The maker has left: the first caller to ask again takes over.
                    let outcome = made.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
                    match outcome {
                        Some(Ok(values)) => return WaitResult::Made(values),
                        Some(Err(why)) => {
                            return WaitResult::Raised(format!(
                                "gate.cache.fetch: its function failed elsewhere: {why}"
                            ));
                        }
                        None => match cache.ask(&key) {
                            CacheLookup::Made(other) => made = other,
                            asked => return WaitResult::Asked(asked),
                        },
                    }
                }
            }),
            mut asked => now(lua, self::asked(lua, host, &mut asked)?),
        }
    })?;
    library.add_as("gate.cache.made", "gate.cache.fetch", |lua, host, args| {
        let key = key(lua, args)?;
        // From here on, any failure passes the ticket to the next caller.
        let Some(ticket) = ticket(host, &key) else { return now(lua, ()) };
        let ttl = args.ttl()?;
        let results = args.rest();
        let mut most = cache(host)?.most();
        let copied = |value| {
            let data = Data::from_lua_within(value, most)?;
            most = most.saturating_sub(data.bytes());
            Ok(data)
        };
        let results = results.iter().map(copied).collect::<Result<Vec<_>, _>>();
        match results {
            Ok(results) => drop(ticket.made(results, ttl)),
            // A value that is too large is not cached. This call still returns it; waiting callers make it themselves.
            Err(DataError::TooLarge(_)) => drop(ticket),
            Err(error) => {
                ticket.failed(&error.to_string());
                return Err(CallError::new(error.to_string()));
            }
        }
        now(lua, ())
    })?;
    library.add_as("gate.cache.failed", "gate.cache.fetch", |lua, host, args| {
        let key = key(lua, args)?;
        if let Some(ticket) = ticket(host, &key) {
            match args.next() {
                Value::String(why) => ticket.failed(&why.to_string_lossy()),
                other => ticket.failed(&format!("with an error that is {}", kind(&other))),
            }
        }
        now(lua, ())
    })
}

/// Returns the result of asking: `"known", value`, or `"make"`, if this call now has the ticket.
pub(super) fn asked(lua: &Lua, host: &ApiContext, asked: &mut CacheLookup) -> mlua::Result<MultiValue> {
    match asked {
        CacheLookup::Known(value) => ("known", value.to_lua(lua)?).into_lua_multi(lua),
        CacheLookup::Make(ticket) => {
            let make = "make".into_lua_multi(lua)?;
            // The call owns the ticket from now on.
            host.tickets.borrow_mut().extend(ticket.take());
            Ok(make)
        }
        CacheLookup::Made(_) => Err(mlua::Error::runtime("somebody else makes it")),
    }
}

fn ticket(host: &ApiContext, key: &[u8]) -> Option<crate::script::cache::Ticket> {
    let mut tickets = host.tickets.borrow_mut();
    let place = tickets.iter().position(|ticket| ticket.is_for(key))?;
    Some(tickets.swap_remove(place))
}

fn cache(host: &ApiContext) -> Result<&Arc<Cache>, CallError> {
    Ok(&host.tools()?.cache)
}

fn key(lua: &Lua, args: &mut Args) -> Result<Vec<u8>, CallError> {
    let key = args.text(lua, "key")?.as_bytes().to_vec();
    if key.len() > KEY_BYTES {
        return Err(args.wrong("key", &format!("has {} bytes: expected at most {KEY_BYTES}", key.len())));
    }
    Ok(key)
}
