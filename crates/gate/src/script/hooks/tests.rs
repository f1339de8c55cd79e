use std::collections::HashMap;
use std::future::Future;

use oroshi_lookup::Stores;
use tokio::runtime::{Builder, LocalOptions};

use super::*;
use crate::script::{ApiResources, Cache, http_client};

/// More requests than values that Rust can hold of a state.
const MANY: usize = 9_000;

fn run<T>(test: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap().block_on(test)
}

fn instance(source: &str, change: impl FnOnce(&mut ScriptSettings)) -> Rc<ScriptInstance> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.lua");
    std::fs::write(&file, source).unwrap();
    let mut settings = ScriptSettings::read("test", file).unwrap();
    // Enough for slow machines and builds.
    settings.wall = Duration::from_secs(600);
    change(&mut settings);
    let counters = Arc::new(ScriptCounters::default());
    let tools = ApiResources {
        stores: Stores::start(Vec::new()).unwrap(),
        lookups: Rc::new(HashMap::new()),
        cache: Arc::new(Cache::new(1 << 20)),
        http: http_client(),
        core: 0,
        counters: Arc::clone(&counters.hooks),
    };
    let script = Script::load(&settings, tools).unwrap();
    Rc::new(ScriptInstance::new(script, settings, counters, Rc::default()).unwrap())
}

#[test]
fn requests_that_are_under_way_hold_nothing_that_the_state_has_few_of() {
    let source = "local n = 0
        function on_request(request) n = n + 1 request.ctx.n = n request.ctx.self = request end
        function on_key(request) return (request.ctx.self == request and '' or 'another of ') .. request.ctx.n end";
    run(async {
        let instance = instance(source, |_| {});
        let mut open = Vec::new();
        for _ in 0..MANY {
            let hooks = RequestHooks::begin(&instance, &Request::plain());
            hooks.on_request().await.unwrap();
            open.push(hooks);
        }
        for (place, hooks) in open.iter().enumerate() {
            assert_eq!(hooks.on_key().await.unwrap(), Some((place + 1).to_string()));
        }
        // The next request takes a free number, without the old object.
        open.truncate(1);
        let hooks = RequestHooks::begin(&instance, &Request::plain());
        hooks.on_request().await.unwrap();
        assert_eq!(hooks.on_key().await.unwrap(), Some((MANY + 1).to_string()));
        assert_eq!(open[0].on_key().await.unwrap().as_deref(), Some("1"));
        assert_eq!(instance.known.used.get() as usize, MANY);
        drop((open, hooks));
        assert_eq!(instance.known.free.borrow().len(), MANY);
        assert!(instance.known.table.is_empty());
    });
}

#[test]
fn a_place_to_go_to_is_short() {
    let source = "local places = { { upstream = ('u'):rep(4096) }, { upstream = ('u'):rep(4097) }, ('t'):rep(4097),
            { 'a:80', ('t'):rep(4097) }, { { to = ('t'):rep(4097) } } }
        local n = 0 function on_route() n = n + 1 return places[n] end";
    run(async {
        let instance = instance(source, |_| {});
        let hooks = RequestHooks::begin(&instance, &Request::plain());
        assert!(matches!(hooks.on_route().await, Ok(RouteDecision::Upstream(name)) if name.len() == 4096));
        for _ in 0..4 {
            let error = hooks.on_route().await.unwrap_err().to_string();
            assert!(error.ends_with("each of at most 4096 bytes (it has 4097)"), "{error}");
        }
    });
}
