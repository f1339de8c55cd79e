//! Tests of scripts with real stores.

#[path = "../../../../lookup/tests/peers/mod.rs"]
mod peers;

mod api;
mod calls;
mod kept;

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use oroshi_lookup::{SqlSettings, StoreKind, StoreSettings, Stores};
use tempfile::TempDir;
use tokio::runtime::{Builder, LocalOptions};

use super::*;
use crate::script::{Cache, DeclaredLookup, http_client};

/// Scripts in a temporary folder, with their tools.
pub(super) struct Bench {
    folder: TempDir,
    pub(super) stores: Vec<StoreSettings>,
    pub(super) lookups: HashMap<String, DeclaredLookup>,
    pub(super) cache: Arc<Cache>,
    pub(super) change: fn(&mut ScriptSettings),
}

impl Bench {
    pub(super) fn new() -> Self {
        let cache = Arc::new(Cache::new(4 << 20));
        let folder = TempDir::new().unwrap();
        Bench { folder, stores: Vec::new(), lookups: HashMap::new(), cache, change: |_| {} }
    }

    pub(super) fn with(change: fn(&mut ScriptSettings)) -> Self {
        Bench { change, ..Self::new() }
    }

    pub(super) fn sqlite(mut self, name: &str, database: &peers::Sqlite) -> Self {
        let kind = StoreKind::Sql(SqlSettings { rows: 100, ..SqlSettings::new(database.url()) });
        self.stores.push(StoreSettings { name: name.to_owned(), kind });
        self
    }

    pub(super) fn settings(&self, source: &str) -> ScriptSettings {
        let file = self.folder.path().join("a.lua");
        std::fs::write(&file, source).unwrap();
        let mut settings = ScriptSettings::read("test", file).unwrap();
        // Enough for slow machines and builds; tests of this limit set their own.
        settings.wall = Duration::from_secs(600);
        (self.change)(&mut settings);
        settings
    }

    pub(super) fn tools(&self) -> ApiResources {
        ApiResources {
            stores: Stores::start(self.stores.clone()).unwrap(),
            lookups: Rc::new(self.lookups.clone()),
            cache: Arc::clone(&self.cache),
            http: http_client(),
            core: 3,
            counters: Arc::default(),
        }
    }

    pub(super) fn load(&self, source: &str) -> Result<Rc<Script>, ScriptError> {
        Script::load(&self.settings(source), self.tools())
    }
}

/// Runs a test on a runtime like a core's.
pub(super) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
    runtime.block_on(test)
}

/// Returns the result of a script's `on_request` as text.
pub(super) fn given(bench: &Bench, source: &str) -> String {
    run(async { shown(bench.load(source).unwrap().call(Hook::Request, ()).await) })
}

/// Returns the result of an `on_request` with this body, which is the script's first line.
pub(super) fn body(bench: &Bench, body: &str) -> String {
    given(bench, &format!("function on_request() {body} end"))
}

pub(super) fn shown(result: Result<MultiValue, ScriptError>) -> String {
    match result {
        Ok(values) => values.iter().map(|value| value.to_string().unwrap()).collect::<Vec<_>>().join(" "),
        Err(error) => told(&error),
    }
}

/// Returns an error without its folder.
pub(super) fn told(error: &ScriptError) -> String {
    let (path, line) = error.place.split_once(".lua").unwrap_or((&error.place, ""));
    let name = path.rsplit('/').next().unwrap();
    format!("{} {name}.lua{line}: {}", error.kind.name(), error.what)
}

pub(super) const SHORT: Duration = Duration::from_millis(50);
