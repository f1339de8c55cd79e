//! The script on one load thread: set-up, each request, the end.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use mlua::{Function, LuaString, Value};
use oroshi_bench::{CoreScript, ResponseParts, ResponseView, ScriptError, ScriptFeatures};
use oroshi_script::Data;

use crate::main_state::{MainState, Task};
use crate::state::{Source, State, kind};
use crate::threads::Message;

/// The longest delay: a day, in milliseconds.
const LONGEST_DELAY_MS: f64 = 86_400_000.0;

/// The script of one load thread.
pub(crate) struct ThreadScript {
    core: usize,
    source: Arc<Source>,
    messages: Receiver<Message>,
    state: State,
    features: ScriptFeatures,
    calls: Calls,
    /// The result of `request` before the run.
    first: Option<Vec<u8>>,
    /// The headers of a response as one text.
    headers: Vec<u8>,
}

/// Functions called during the run.
#[derive(Debug)]
struct Calls {
    request: Function,
    response: Function,
    delay: Function,
}

impl ThreadScript {
    /// Sets the script up when its turn comes; returns when all threads are set up.
    pub(crate) fn bring_up(
        source: &Arc<Source>,
        main: &MainState,
        core: usize,
        messages: Receiver<Message>,
    ) -> Result<Self, ScriptError> {
        let threads = &source.threads;
        listen(source, &messages, None)?;
        if core == 0 {
            main.send(Task::Resolve(core))?;
            listen(source, &messages, None)?;
        }
        let state = State::new(source)?;
        state.load()?;
        state.begin(core)?;
        main.send(Task::Setup(core))?;
        listen(source, &messages, Some(&state))?;
        state.call_wrk("init", arguments(&state, source)?)?;

        let (features, calls) = features(&state, source)?;
        let source = Arc::clone(source);
        let mut part = Self { core, source, messages, state, features, calls, first: None, headers: Vec::new() };
        if core == 0 && part.features.request.is_none() {
            let mut first = Vec::new();
            part.append(&mut first)?;
            part.state.engine.flush();
            part.first = Some(first);
        }
        threads.pass_turn(core);
        listen(&part.source, &part.messages, Some(&part.state))?;
        part.features.peer = threads.final_peer(core);
        Ok(part)
    }

    /// Appends the result of the script's `request`.
    fn append(&self, bytes: &mut Vec<u8>) -> Result<(), ScriptError> {
        let returned: Value = self.state.call_own("request", &self.calls.request, ())?;
        take(&returned, bytes)
            .map_err(|what| ScriptError { place: self.place("request"), what: format!("request() {what}") })
    }
}

impl CoreScript for ThreadScript {
    fn features(&self) -> ScriptFeatures {
        self.features.clone()
    }

    fn begin(&mut self, end: Option<u64>) {
        self.state.engine.until(end);
    }

    fn delay(&mut self) -> Result<Duration, ScriptError> {
        let returned: Value = self.state.call_own("delay", &self.calls.delay, ())?;
        let wrong = |what: String| ScriptError {
            place: self.place("delay"),
            what: format!("delay() returned {what}: expected a number of milliseconds, from 0 to {LONGEST_DELAY_MS}"),
        };
        // As in wrk, a string is accepted if it is a number.
        let number = self.state.engine.lua().coerce_number(returned.clone()).ok().flatten();
        match number {
            Some(ms) if (0.0..=LONGEST_DELAY_MS).contains(&ms) => Ok(Duration::from_secs_f64(ms / 1e3)),
            Some(ms) if ms.abs() > 1e15 => Err(wrong(format!("{ms:e}"))),
            Some(ms) => Err(wrong(format!("{ms}"))),
            None => Err(wrong(kind(&returned))),
        }
    }

    #[inline]
    fn request(&mut self, bytes: &mut Vec<u8>) -> Result<(), ScriptError> {
        match self.first.take() {
            None => self.append(bytes),
            Some(first) => {
                bytes.extend_from_slice(&first);
                Ok(())
            }
        }
    }

    fn response(&mut self, answer: &ResponseView) -> Result<(), ScriptError> {
        let Some(wanted) = self.features.responses else { return Ok(()) };
        let string = |bytes: &[u8]| -> Result<LuaString, ScriptError> {
            self.state.engine.lua().create_string(bytes).map_err(|error| self.state.ours(&error))
        };
        let headers = if wanted.headers {
            self.headers.clear();
            for (name, value) in answer.headers() {
                for piece in [name, value] {
                    // http1 accepts no line break within a name or value.
                    self.headers.extend_from_slice(piece);
                    self.headers.push(b'\n');
                }
            }
            Some(string(&self.headers)?)
        } else {
            None
        };
        let body = if wanted.body { Some(string(&answer.body)?) } else { None };
        self.state.call_own("response", &self.calls.response, (answer.status, headers, body))
    }

    #[inline]
    fn stopped(&self) -> bool {
        self.source.threads.is_stopped(self.core)
    }

    fn place(&self, function: &str) -> String {
        self.state.place(function)
    }

    fn leave(&mut self) {
        self.state.engine.until(None);
        // Ends with an error when there is nothing more to wait for.
        let _ = listen(&self.source, &self.messages, Some(&self.state));
    }
}

impl fmt::Debug for ThreadScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadScript").field("core", &self.core).field("terms", &self.features).finish_non_exhaustive()
    }
}

/// Answers messages to this thread until the awaited one arrives.
fn listen(source: &Source, messages: &Receiver<Message>, state: Option<&State>) -> Result<(), ScriptError> {
    for ask in messages {
        match (ask, state) {
            (Message::Turn | Message::Go, _) => return Ok(()),
            (Message::Done(result), _) => return result,
            (Message::End, _) => break,
            (Message::Get(name, reply), Some(state)) => {
                let _ = reply.send(state.get(&name));
            }
            (Message::Set(name, value, reply), Some(state)) => {
                let _ = reply.send(state.set(&name, value).map(|()| Data::Nil));
            }
            // The script has no object for this thread yet.
            (Message::Get(..) | Message::Set(..), None) => {}
        }
    }
    Err(source.threads.end_reason())
}

/// Makes the arguments of `init`: the URL, then the script's own.
fn arguments(state: &State, source: &Source) -> Result<mlua::Table, ScriptError> {
    let options = &source.options;
    let made = state.engine.lua().create_table().and_then(|args| {
        args.raw_set(0, options.typed.as_str())?;
        for (i, arg) in options.args.iter().enumerate() {
            args.raw_set(i + 1, arg.as_str())?;
        }
        Ok(args)
    });
    made.map_err(|error| state.ours(&error))
}

/// Determines the script's features from the functions that it defines.
fn features(state: &State, source: &Source) -> Result<(ScriptFeatures, Calls), ScriptError> {
    let calls = Calls { request: state.own("request")?, response: state.own("response")?, delay: state.own("delay")? };
    let (responds, arguments): (bool, usize) = state.call_own("response", &state.own("responds")?, ())?;
    let mut features = ScriptFeatures {
        peer: None,
        request: None,
        delays: state.global("delay").is_some(),
        responses: responds.then_some(ResponseParts { headers: arguments >= 2, body: arguments >= 3 }),
    };
    if state.global("request").is_none() {
        let mut request = Vec::new();
        let returned: Value = state.call_own("wrk.request", &calls.request, ())?;
        take(&returned, &mut request).map_err(|what| source.threads.error(format!("wrk.request() {what}")))?;
        features.request = Some(request);
    }
    Ok((features, calls))
}

/// Appends a script's result as its request.
#[inline]
fn take(returned: &Value, bytes: &mut Vec<u8>) -> Result<(), String> {
    if let Value::String(request) = returned {
        let request = request.as_bytes();
        if !request.is_empty() {
            bytes.extend_from_slice(&request);
            return Ok(());
        }
    }
    Err(no_request(returned))
}

#[cold]
fn no_request(returned: &Value) -> String {
    let what = match returned {
        Value::String(_) => "an empty string".into(),
        Value::Integer(number) => format!("a number ({number})"),
        Value::Number(number) => format!("a number ({number})"),
        other => kind(other),
    };
    format!("returned {what}: expected a string of one or more whole requests, such as wrk.format() makes")
}
