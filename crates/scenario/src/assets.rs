//! What a page needs: style sheets, scripts and images, fetched as a browser does.

use std::collections::HashMap;
use std::rc::Rc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use mlua::{Lua, Table, Value};
use oroshi_net::Endpoint;
use oroshi_script::library::digest;
use oroshi_words::nearest;

use crate::request::{Last, Spec, perform};
use crate::response::Response;
use crate::settings::{kind, number, shown, text, truth};
use crate::thread::{Stage, Thread};
use crate::user::User;

/// Connections of a browser to one server.
const PARALLEL: usize = 6;
/// Resources of a page, unless said otherwise.
const LIMIT: usize = 100;
/// The most resources of a page.
const MOST: f64 = 10_000.0;

/// A resource of a page.
#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) url: Endpoint,
}

/// What of a page is wanted, and how it is checked.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) resources: Vec<Resource>,
    name: String,
    /// Expected digests in hexadecimal, by path: MD5, SHA-1 or SHA-256.
    digests: HashMap<String, String>,
    parallel: usize,
    points: f64,
}

/// The options of `user:assets`.
#[derive(Debug)]
pub(crate) struct Options {
    name: String,
    digests: HashMap<String, String>,
    pub(crate) limit: usize,
    pub(crate) lazy: bool,
    parallel: usize,
    points: f64,
}

impl Options {
    /// Reads the options.
    ///
    /// # Errors
    /// The first that is unknown or cannot be used, in words.
    pub(crate) fn read(table: Option<&Table>) -> Result<Self, String> {
        const KEYS: [&str; 6] = ["name", "digests", "limit", "lazy", "parallel", "points"];
        let mut options = Options {
            name: "assets".to_owned(),
            digests: HashMap::new(),
            limit: LIMIT,
            lazy: false,
            parallel: PARALLEL,
            points: 0.0,
        };
        for pair in table.iter().flat_map(|table| table.pairs::<mlua::LuaString, Value>()) {
            let (key, value) = pair.map_err(|_| "options have names, as in { limit = 10 }".to_owned())?;
            let key = key.to_string_lossy();
            match key.as_str() {
                "name" => options.name = text(&key, &value)?,
                "limit" => options.limit = number(&key, &value, 0.0, MOST)? as usize,
                "lazy" => options.lazy = truth(&key, &value)?,
                "parallel" => options.parallel = number(&key, &value, 1.0, 100.0)? as usize,
                "points" => options.points = crate::settings::number_of(&key, &value, -1e9, 1e9)?,
                "digests" => {
                    let Value::Table(table) = &value else {
                        return Err(format!("digests is {}: expected a table of paths and digests", kind(&value)));
                    };
                    for pair in table.pairs::<mlua::LuaString, Value>() {
                        let (path, digest) = pair.map_err(|_| "digests has a path that is no text".to_owned())?;
                        let digest = text("digests", &digest)?.to_ascii_lowercase();
                        if !matches!(digest.len(), 32 | 40 | 64) || !digest.bytes().all(|b| b.is_ascii_hexdigit()) {
                            return Err(format!(
                                "the digest of {} is \"{}\": expected MD5, SHA-1 or SHA-256 in hexadecimal digits",
                                shown(&path.to_string_lossy()),
                                shown(&digest)
                            ));
                        }
                        options.digests.insert(path.to_string_lossy(), digest);
                    }
                }
                _ => {
                    let meant = nearest(&key, KEYS).map(|near| format!("; did you mean `{near}`?"));
                    return Err(format!("the option `{}` is unknown{}", shown(&key), meant.unwrap_or_default()));
                }
            }
        }
        Ok(options)
    }

    /// What is wanted of a page with these resources.
    pub(crate) fn of(self, resources: Vec<Resource>) -> Wanted {
        let Options { name, digests, parallel, points, .. } = self;
        Wanted { resources, name, digests, parallel, points }
    }
}

/// A resource that was fetched.
pub(crate) struct Asset {
    response: Response,
    /// The digest that was expected, and whether it matches.
    matches: Option<bool>,
}

/// Fetches what a page needs, some at a time.
pub(crate) async fn fetch(thread: &Rc<Thread>, user: &Rc<User>, wanted: Wanted) -> Vec<Asset> {
    let Wanted { resources, name, digests, parallel, points } = wanted;
    let mut assets: Vec<Option<Asset>> = resources.iter().map(|_| None).collect();
    // In the user's own task, so that they end with it.
    let mut under_way = FuturesUnordered::new();
    let mut waiting = resources.into_iter().enumerate();
    loop {
        while thread.stage.get() == Stage::Running
            && under_way.len() < parallel
            && let Some((index, resource)) = waiting.next()
        {
            let (thread, user) = (Rc::clone(thread), Rc::clone(user));
            let spec = Spec { name: Some(name.clone()), quiet: true, ..Spec::get(resource.url) };
            under_way.push(async move { (index, perform(&thread, &user, spec).await) });
        }
        let Some((index, response)) = under_way.next().await else { break };
        if thread.stage.get() != Stage::Running {
            continue;
        }
        let path = response.url().map_or("", |url| url.target.as_str()).split('?').next().unwrap_or_default();
        let expected = digests.get(path);
        let matches = expected.map(|digest| response.is_ok() && digest_matches(digest, &response.body));
        if let Some(matches) = matches {
            thread.check(user, &format!("{name} digest"), matches, || Last::sample(thread, user, String::new()));
        }
        if points != 0.0 && response.is_ok() && matches != Some(false) {
            thread.award(user, points, &name);
        }
        assets[index] = Some(Asset { response, matches });
    }
    assets.into_iter().flatten().collect()
}

impl Asset {
    /// Converts it for scripts.
    pub(crate) fn to_lua(&self, lua: &Lua) -> mlua::Result<Table> {
        let table = lua.create_table_with_capacity(0, 7)?;
        let url = self.response.url();
        table.raw_set("url", url.map(ToString::to_string))?;
        table.raw_set("path", url.map(|url| url.target.as_str()))?;
        table.raw_set("status", self.response.status)?;
        table.raw_set("bytes", self.response.body.len())?;
        table.raw_set("md5", digest::md5(&self.response.body))?;
        table.raw_set("cached", self.response.cached)?;
        table.raw_set("ok", self.response.is_ok() && self.matches != Some(false))?;
        table.raw_set("error", self.response.error)?;
        Ok(table)
    }
}

/// Whether bytes have a digest in hexadecimal digits; its length tells which one.
fn digest_matches(digest: &str, bytes: &[u8]) -> bool {
    let found = match digest.len() {
        32 => digest::md5(bytes),
        40 => digest::sha1(bytes),
        _ => digest::sha256(bytes),
    };
    found == digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_digest_tells_which_one_it_is() {
        assert!(digest_matches("900150983cd24fb0d6963f7d28e17f72", b"abc"));
        assert!(digest_matches("a9993e364706816aba3e25717850c26c9cd0d89d", b"abc"));
        assert!(digest_matches("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", b"abc"));
        assert!(!digest_matches("900150983cd24fb0d6963f7d28e17f72", b"abd"));
    }
}
