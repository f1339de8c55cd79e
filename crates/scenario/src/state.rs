//! A Lua state with a script in it, for one thread.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mlua::{Function, MultiValue, Table};
use oroshi_bench::ScriptError;
use oroshi_script::{ConfinedOptions, Coroutine, Engine, Error, Handle, Progress, Report};

use crate::api::{self, Declared};
use crate::files::Files;
use crate::response::Response;
use crate::thread::{Stage, Thread, Wish};
use crate::user::User;

/// A collection is due when scripts hold so many bytes of bodies: Lua does not know of them.
const HELD_BYTES: usize = 64 << 20;

/// From so many waiting journeys on, their coroutines are kept in the state's registry.
const PARK_FROM: usize = 1_000;

/// A script's text and limits, for all of its states.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) file: PathBuf,
    pub(crate) text: Arc<[u8]>,
    /// The files beside it.
    pub(crate) files: Arc<Files>,
    /// The longest uninterrupted run of a call.
    pub(crate) limit: Duration,
    /// Handles of all states, to end their calls from other threads.
    handles: Mutex<Vec<Handle>>,
    /// A call that cannot be ended.
    stuck: Arc<Mutex<Option<ScriptError>>>,
}

/// A state, and the functions that Rust calls.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) engine: Engine,
    pub(crate) thread: Rc<Thread>,
    pub(crate) declared: Declared,
    file: String,
    journey: Function,
    phase: Function,
    watch: Function,
    score: Function,
    /// Journeys that wait.
    waiting: Cell<usize>,
    /// When scripts hold so many bytes of bodies, a collection is due.
    collect_at: Cell<usize>,
}

/// What a journey has come to after a resume.
pub(crate) enum Step {
    /// It waits for this.
    Waits(Wish),
    /// It has ended.
    Ended,
}

impl Source {
    pub(crate) fn new(file: &Path, text: Vec<u8>, files: Arc<Files>, limit: Duration) -> Self {
        Self {
            file: file.to_owned(),
            text: text.into(),
            files,
            limit,
            handles: Mutex::default(),
            stuck: Arc::default(),
        }
    }

    /// Returns the same script without states.
    pub(crate) fn anew(&self) -> Self {
        Self {
            file: self.file.clone(),
            text: Arc::clone(&self.text),
            files: Arc::clone(&self.files),
            limit: self.limit,
            handles: Mutex::default(),
            stuck: Arc::default(),
        }
    }

    /// Ends all calls, now and later.
    pub(crate) fn interrupt(&self) {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Handle::interrupt);
    }

    /// Returns the error of a call that cannot be ended.
    pub(crate) fn stuck(&self) -> Option<ScriptError> {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl State {
    /// Makes a state and runs the script's top level in it.
    ///
    /// # Errors
    /// The script's first mistake.
    pub(crate) fn load(source: &Source, thread: &Rc<Thread>, memory: usize) -> Result<Self, ScriptError> {
        let stuck = Arc::clone(&source.stuck);
        let tell = move |report: Report| {
            if let Report::Stuck(error) = report {
                stuck.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(script_error(error));
            }
        };
        let files = Arc::clone(&source.files);
        let options = ConfinedOptions {
            memory,
            jit: true,
            instructions: u64::MAX,
            limit: source.limit,
            tell: Box::new(tell),
            read: Box::new(move |path| files.module(path)),
        };
        let engine = Engine::confined(&source.file, options).map_err(script_error)?;
        source.handles.lock().unwrap_or_else(PoisonError::into_inner).push(engine.handle());
        let declared = Rc::new(RefCell::new(Declared::default()));
        let file = source.file.display().to_string();
        api::install(&engine, thread, &declared).map_err(|error| ScriptError { place: file, what: error.what })?;
        engine.load_source(&source.text).map_err(script_error)?;
        if let Some(declarations) = thread.declarations.take() {
            declarations.complete().map_err(|what| ScriptError { place: source.file.display().to_string(), what })?;
        }
        thread.stage.set(Stage::Running);
        thread.tally.replace(crate::tally::Tally::new(thread.scenarios.borrow().len()));
        let own = |name: &str| -> Result<Function, ScriptError> {
            let own = engine.own().map(|own| own.raw_get(name));
            own.and_then(Result::ok).ok_or_else(|| ScriptError {
                place: source.file.display().to_string(),
                what: format!("the API lacks `{name}`: a defect"),
            })
        };
        let (journey, phase, watch, score) = (own("journey")?, own("phase")?, own("watch")?, own("score_of")?);
        let declared = declared.take();
        let (waiting, collect_at) = (Cell::new(0), Cell::new(HELD_BYTES));
        let file = source.file.display().to_string();
        Ok(State {
            file,
            engine,
            thread: Rc::clone(thread),
            declared,
            journey,
            phase,
            watch,
            score,
            waiting,
            collect_at,
        })
    }

    /// Begins a journey of a user in a scenario.
    pub(crate) fn begin_journey(&self, user: &Rc<User>, scenario: usize) -> Result<(Coroutine, Step), Error> {
        let call = self.engine.coroutine("scenario", &self.journey, u64::MAX)?;
        self.go_on(call, user, (scenario + 1, user.id as f64, user.journey.get() as f64))
    }

    /// Begins a phase beside the load.
    pub(crate) fn begin_phase(&self, user: &Rc<User>, name: &'static str) -> Result<(Coroutine, Step), Error> {
        let call = self.engine.coroutine(name, &self.phase, u64::MAX)?;
        self.go_on(call, user, name)
    }

    /// Hands a journey what it waited for.
    pub(crate) fn resume(&self, call: Coroutine, user: &Rc<User>, got: Got) -> Result<(Coroutine, Step), Error> {
        let lua = self.engine.lua();
        let values = self.engine.with_room(|_| match &got {
            Got::Response(response) => {
                let mut response = response.borrow_mut();
                // Tried again if memory was short: then it is still here.
                let Some(made) = response.take() else { return Ok(MultiValue::new()) };
                mlua::IntoLuaMulti::into_lua_multi(lua.create_userdata(made)?, lua)
            }
            Got::Assets(assets) => {
                let assets = assets.iter().map(|asset| asset.to_lua(lua)).collect::<mlua::Result<Vec<Table>>>()?;
                mlua::IntoLuaMulti::into_lua_multi(lua.create_sequence_from(assets)?, lua)
            }
            Got::Paused(seconds) => mlua::IntoLuaMulti::into_lua_multi(*seconds, lua),
        });
        let values = values.map_err(|error| Error {
            place: call.place().unwrap_or_default(),
            what: format!("what it waited for cannot be handed over: {error}"),
            kind: oroshi_script::Kind::Memory,
        })?;
        self.go_on(call, user, values)
    }

    fn go_on(
        &self,
        mut call: Coroutine,
        user: &Rc<User>,
        args: impl mlua::IntoLuaMulti,
    ) -> Result<(Coroutine, Step), Error> {
        let thread = &self.thread;
        thread.wish.replace(None);
        thread.current.replace(Some(Rc::clone(user)));
        let progress = self.engine.resume(&mut call, args);
        thread.current.replace(None);
        if thread.held.get() > self.collect_at.get() {
            self.engine.collect();
            // Responses that scripts still use stay: without this, each call would collect again.
            self.collect_at.set(HELD_BYTES.max(2 * thread.held.get()));
        }
        match progress? {
            Progress::Returned(_) => Ok((call, Step::Ended)),
            Progress::Waits => match thread.wish.take() {
                Some(wish) => {
                    if self.waiting.get() > PARK_FROM {
                        self.engine.park(&mut call)?;
                    }
                    Ok((call, Step::Waits(wish)))
                }
                None => Err(Error {
                    place: call.place().unwrap_or_default(),
                    what: "it waits for nothing".to_owned(),
                    kind: oroshi_script::Kind::Runtime,
                }),
            },
        }
    }

    /// The script's file, for messages.
    pub(crate) fn file(&self) -> String {
        self.file.clone()
    }

    /// Calls a function of `every`.
    pub(crate) fn watch(&self, index: usize, progress: Table) -> Result<(), ScriptError> {
        self.engine.call("every", &self.watch, (index + 1, progress)).map_err(script_error)
    }

    /// Calls the formula of the score.
    pub(crate) fn score(&self, result: Table) -> Result<f64, ScriptError> {
        self.engine.call("score", &self.score, result).map_err(script_error)
    }

    /// Counts a journey that begins to wait, or one that no longer does.
    pub(crate) fn count_waiting(&self, more: bool) {
        let waiting = self.waiting.get();
        self.waiting.set(if more { waiting + 1 } else { waiting.saturating_sub(1) });
    }
}

/// What a journey waited for.
pub(crate) enum Got {
    Response(RefCell<Option<Response>>),
    Assets(Vec<crate::assets::Asset>),
    /// Seconds.
    Paused(f64),
}

impl Got {
    pub(crate) fn response(response: Response) -> Self {
        Got::Response(RefCell::new(Some(response)))
    }
}

/// Converts the engine's error.
pub(crate) fn script_error(error: Error) -> ScriptError {
    ScriptError { place: error.place, what: error.what }
}
