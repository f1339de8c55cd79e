//! What a script says about its run, in `options { ... }`, and what the command line says instead.

use std::time::Duration;

use mlua::{Table, Value};
use oroshi_bench::{Spacing, Stage};
use oroshi_words::{nearest, units};

use crate::ramp::{self, Ramp};

/// Users, where nobody says how many.
const USERS: usize = 10;
/// The most users at a time in the open model, where nobody says how many.
const ARRIVING_USERS: usize = 1_000;
/// Length of a run, where nobody says how long.
const DURATION: Duration = Duration::from_secs(10);
/// The most users of a run.
const MOST_USERS: f64 = 1_000_000.0;
/// Timeout of a request, unless said otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The largest body of a response, bytes as decoded, unless said otherwise.
const BODY_BYTES: u64 = 16 << 20;
/// Memory of each thread's state, bytes, unless said otherwise.
const MEMORY: usize = 1 << 30;
/// The least memory that a state needs, bytes.
const LEAST_MEMORY: u64 = 4 << 20;

/// Settings of a run; `None`: not said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The URL to which paths are relative.
    pub url: Option<String>,
    /// Users in the closed model; the most users in the open one.
    pub users: Option<usize>,
    /// How the number of users changes.
    pub ramp: Option<Ramp>,
    /// Journeys per second by stages: the open model.
    pub stages: Option<Vec<Stage>>,
    /// How gaps between arrivals of users are drawn.
    pub spacing: Option<Spacing>,
    /// Journeys per user.
    pub iterations: Option<u64>,
    /// Journeys in total.
    pub journeys: Option<u64>,
    /// Length of the measured part.
    pub duration: Option<Duration>,
    /// Time before it.
    pub warmup: Option<Duration>,
    /// Timeout of a request with its redirects.
    pub timeout: Option<Duration>,
    /// The seed of all choices.
    pub seed: Option<u64>,
    /// The most redirects that a request follows.
    pub redirects: Option<u32>,
    /// Whether each journey begins without cookies and cache.
    pub fresh: Option<bool>,
    /// Whether each journey begins without connections.
    pub reconnect: Option<bool>,
    /// Whether users cache pages too, and not only what `assets` fetches.
    pub cache: Option<bool>,
    /// Header fields of all requests.
    pub headers: Vec<(String, String)>,
    /// The largest body of a response, bytes as decoded.
    pub body_bytes: Option<u64>,
    /// Memory of each thread's state, bytes.
    pub memory: Option<usize>,
}

/// What decides when journeys begin.
#[derive(Clone, Debug, PartialEq)]
pub enum Model {
    /// Each user begins its next journey after the last one.
    Closed(Ramp),
    /// Users arrive by a timetable, as long as fewer than the most are busy.
    Open {
        /// Journeys per second over time.
        stages: Vec<Stage>,
        /// How gaps are drawn.
        spacing: Spacing,
    },
}

impl Settings {
    /// Takes what `flags` say, and these settings where they say nothing.
    #[must_use]
    pub fn with(self, flags: Settings) -> Settings {
        // A flag for one model replaces the script's other one.
        let (ramp, stages) = match (&flags.ramp, &flags.stages, flags.users) {
            (Some(_), ..) => (flags.ramp.clone(), None),
            (None, Some(_), _) => (None, flags.stages.clone()),
            (None, None, Some(_)) => (None, self.stages.clone()),
            (None, None, None) => (self.ramp.clone(), self.stages.clone()),
        };
        // So does a length of another kind.
        let says_length = flags.duration.is_some() || flags.iterations.is_some() || flags.journeys.is_some();
        let (duration, iterations, journeys) = if says_length {
            (flags.duration, flags.iterations, flags.journeys)
        } else {
            (self.duration, self.iterations, self.journeys)
        };
        Settings {
            url: flags.url.or(self.url),
            users: flags.users.or(self.users),
            ramp,
            stages,
            spacing: flags.spacing.or(self.spacing),
            iterations,
            journeys,
            duration,
            warmup: flags.warmup.or(self.warmup),
            timeout: flags.timeout.or(self.timeout),
            seed: flags.seed.or(self.seed),
            redirects: flags.redirects.or(self.redirects),
            fresh: flags.fresh.or(self.fresh),
            reconnect: flags.reconnect.or(self.reconnect),
            cache: flags.cache.or(self.cache),
            headers: self.headers.into_iter().chain(flags.headers).collect(),
            body_bytes: flags.body_bytes.or(self.body_bytes),
            memory: flags.memory.or(self.memory),
        }
    }

    /// Finds settings that exclude each other.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Some(stages) = &self.stages else { return Ok(()) };
        if stages.iter().all(|stage| stage.rate <= 0.0) {
            return Err("rate is 0, so that no journey ever begins: expected more".to_owned());
        }
        if self.ramp.is_some() {
            return Err("ramp, and rate or stages: expected one: users in a closed loop, or arrivals".to_owned());
        }
        if self.iterations.is_some() {
            return Err("iterations (--iterations) are journeys of each user, and users of a rate come and go: expected journeys (-n), the number of all"
                .to_owned());
        }
        Ok(())
    }

    /// Returns the most users at a time.
    #[must_use]
    pub fn most_users(&self) -> usize {
        match &self.ramp {
            Some(ramp) => ramp.most().max(1) as usize,
            None => self.users.unwrap_or(if self.stages.is_some() { ARRIVING_USERS } else { USERS }),
        }
    }

    /// Returns what decides when journeys begin.
    #[must_use]
    pub fn model(&self) -> Model {
        match (&self.stages, &self.ramp) {
            (Some(stages), _) => {
                Model::Open { stages: stages.clone(), spacing: self.spacing.unwrap_or(Spacing::Constant) }
            }
            (None, Some(ramp)) => Model::Closed(ramp.clone()),
            (None, None) => Model::Closed(Ramp::constant(self.users.unwrap_or(USERS) as u64)),
        }
    }

    /// Returns the length of the measured part: what was said, or the stages' length. `None`: until all journeys are
    /// done.
    #[must_use]
    pub fn length(&self) -> Option<Duration> {
        let counted = self.iterations.is_some() || self.journeys.is_some();
        let staged = match (&self.stages, &self.ramp) {
            (Some(stages), _) => stages.iter().map(|stage| stage.duration).sum(),
            (None, Some(ramp)) => ramp.length(),
            (None, None) => Duration::ZERO,
        };
        let own = Some(staged).filter(|length| !length.is_zero());
        // After its stages a timetable has no arrivals that could complete a number of journeys.
        let ends = !counted || self.stages.is_some();
        self.duration.or(own.filter(|_| ends)).or((!counted).then_some(DURATION))
    }

    /// Returns the timeout of a request.
    #[must_use]
    pub fn request_timeout(&self) -> Duration {
        self.timeout.unwrap_or(TIMEOUT)
    }

    /// Returns the largest body of a response, bytes.
    #[must_use]
    pub fn largest_body(&self) -> u64 {
        self.body_bytes.unwrap_or(BODY_BYTES)
    }

    /// Returns the memory of a state, bytes.
    #[must_use]
    pub fn state_memory(&self) -> usize {
        self.memory.unwrap_or(MEMORY)
    }

    /// Reads the table of `options { ... }`.
    ///
    /// # Errors
    /// The first key that is unknown or has a value of the wrong kind, in words.
    pub(crate) fn read(table: &Table) -> mlua::Result<Self> {
        let mut settings = Settings::default();
        let mut mistake = None;
        table.for_each(|key: Value, value: Value| {
            if mistake.is_none() {
                mistake = match key.as_string().and_then(|key| key.to_str().ok()) {
                    Some(key) => settings.set(&key, &value).err(),
                    None => Some("expected names, as in options { users = 10 }".to_owned()),
                };
            }
            Ok(())
        })?;
        match mistake {
            None => Ok(settings),
            Some(what) => Err(mlua::Error::runtime(format!("options: {what}"))),
        }
    }

    fn set(&mut self, key: &str, value: &Value) -> Result<(), String> {
        const KEYS: [&str; 19] = [
            "url",
            "users",
            "ramp",
            "rate",
            "stages",
            "spacing",
            "iterations",
            "journeys",
            "duration",
            "warmup",
            "timeout",
            "seed",
            "redirects",
            "fresh",
            "reconnect",
            "cache",
            "headers",
            "body_limit",
            "memory",
        ];
        match key {
            "url" => self.url = Some(text(key, value)?),
            "users" => self.users = Some(number(key, value, 1.0, MOST_USERS)? as usize),
            "ramp" => {
                let stages: Vec<ramp::Stage> = pairs(key, value, MOST_USERS)?.into_iter().map(ramp_stage).collect();
                self.ramp = Some(Ramp::new(0, &stages)?);
            }
            "rate" => {
                let rate = number_of(key, value, 0.0, 1e6)?;
                self.stages = Some(vec![Stage { duration: Duration::ZERO, rate }]);
            }
            "stages" => {
                let stages = pairs(key, value, 1e6)?;
                self.stages = Some(stages.into_iter().map(|(duration, rate)| Stage { duration, rate }).collect());
            }
            "spacing" => {
                self.spacing = Some(match text(key, value)?.as_str() {
                    "constant" => Spacing::Constant,
                    "poisson" => Spacing::Poisson,
                    other => return Err(format!("spacing is \"{other}\": expected \"constant\" or \"poisson\"")),
                });
            }
            "iterations" => self.iterations = Some(number(key, value, 1.0, 1e15)?),
            "journeys" => self.journeys = Some(number(key, value, 1.0, 1e15)?),
            "duration" => self.duration = Some(some_time(key, value)?),
            "warmup" => self.warmup = Some(time(key, value)?),
            "timeout" => self.timeout = Some(some_time(key, value)?),
            "seed" => self.seed = Some(number(key, value, 0.0, 9e15)?),
            "redirects" => self.redirects = Some(number(key, value, 0.0, 100.0)? as u32),
            "fresh" => self.fresh = Some(truth(key, value)?),
            "reconnect" => self.reconnect = Some(truth(key, value)?),
            "cache" => self.cache = Some(truth(key, value)?),
            "headers" => self.headers = header_fields(key, value)?,
            "body_limit" => self.body_bytes = Some(size(key, value)?),
            "memory" => {
                let bytes = size(key, value)?;
                if bytes < LEAST_MEMORY {
                    return Err(format!("memory is {bytes} bytes: expected at least {LEAST_MEMORY}"));
                }
                self.memory = Some(usize::try_from(bytes).unwrap_or(usize::MAX));
            }
            _ => {
                let meant = nearest(key, KEYS).map(|near| format!("; did you mean `{near}`?"));
                return Err(format!("`{key}` is unknown{}", meant.unwrap_or_default()));
            }
        }
        Ok(())
    }
}

/// Takes a time above 0.
fn some_time(key: &str, value: &Value) -> Result<Duration, String> {
    let time = time(key, value)?;
    if time.is_zero() { Err(format!("{key} is 0: expected a time such as \"5s\"")) } else { Ok(time) }
}

/// Takes a table of header fields that can be sent.
pub(crate) fn header_fields(key: &str, value: &Value) -> Result<Vec<(String, String)>, String> {
    let fields = fields(key, value)?;
    for (name, value) in &fields {
        check_header(name, value).map_err(|why| format!("{key}: {why}"))?;
    }
    Ok(fields)
}

/// Checks that a header field can be sent, and is a script's to set.
pub(crate) fn check_header(name: &str, value: &str) -> Result<(), String> {
    let shown = shown(name);
    if let Err(why) = oroshi_client::check_field(name) {
        return Err(format!("the field `{shown}` cannot be set: {why}"));
    }
    let fits = oroshi_client::Headers::new().set(name, value);
    fits.map_err(|_| {
        format!("the field `{shown}` cannot be sent: expected a token, and a value without control characters")
    })
}

/// Converts a pair of a table to a stage of a ramp.
fn ramp_stage((duration, users): (Duration, f64)) -> ramp::Stage {
    ramp::Stage { duration, users: users as u64 }
}

/// Returns what a value is, for messages.
pub(crate) fn kind(value: &Value) -> String {
    match value {
        Value::Nil => "nothing".to_owned(),
        Value::String(text) => format!("\"{}\"", shown(&text.to_string_lossy())),
        Value::Integer(n) => n.to_string(),
        Value::Number(n) => n.to_string(),
        Value::Boolean(is) => is.to_string(),
        other => format!("a {}", other.type_name()),
    }
}

/// A text as messages quote it.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 80;
    let cut = text.floor_char_boundary(MOST);
    let more = if cut < text.len() { "..." } else { "" };
    format!("{}{more}", text[..cut].escape_debug())
}

/// Takes a text, or a number as text.
pub(crate) fn text(key: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => {
            text.to_str().map(|text| text.to_owned()).map_err(|_| format!("{key} is not UTF-8: expected a text"))
        }
        Value::Integer(n) => Ok(n.to_string()),
        Value::Number(n) => Ok(n.to_string()),
        other => Err(format!("{key} is {}: expected a text", kind(other))),
    }
}

/// Takes a number within bounds.
pub(crate) fn number_of(key: &str, value: &Value, least: f64, most: f64) -> Result<f64, String> {
    let number = match value {
        Value::Integer(n) => *n as f64,
        Value::Number(n) => *n,
        other => return Err(format!("{key} is {}: expected a number", kind(other))),
    };
    if !(least..=most).contains(&number) {
        return Err(format!("{key} is {number}: expected {least} to {most}"));
    }
    Ok(number)
}

/// Takes a whole number within bounds.
pub(crate) fn number(key: &str, value: &Value, least: f64, most: f64) -> Result<u64, String> {
    let number = number_of(key, value, least, most)?;
    if number.fract() != 0.0 {
        return Err(format!("{key} is {number}: expected a whole number"));
    }
    Ok(number as u64)
}

/// Takes a length of time: seconds, or a text such as `500ms`.
pub(crate) fn time(key: &str, value: &Value) -> Result<Duration, String> {
    match value {
        Value::Integer(_) | Value::Number(_) => number_of(key, value, 0.0, 1e9).map(Duration::from_secs_f64),
        Value::String(text) => {
            let text = text.to_string_lossy();
            units::parse_time(&text).map_err(|why| format!("{key} is \"{}\": {why}", shown(&text)))
        }
        other => Err(format!("{key} is {}: expected seconds, or a time such as \"500ms\"", kind(other))),
    }
}

pub(crate) fn truth(key: &str, value: &Value) -> Result<bool, String> {
    value.as_boolean().ok_or_else(|| format!("{key} is {}: expected true or false", kind(value)))
}

/// Takes bytes: a number, or a text such as `16M`.
fn size(key: &str, value: &Value) -> Result<u64, String> {
    match value {
        Value::String(text) => {
            let text = text.to_string_lossy();
            units::parse_count(&text).map_err(|why| format!("{key} is \"{}\": {why}", shown(&text)))
        }
        value => number(key, value, 1.0, 1e15),
    }
}

/// Takes a table of names and values.
pub(crate) fn fields(key: &str, value: &Value) -> Result<Vec<(String, String)>, String> {
    let Value::Table(table) = value else {
        return Err(format!("{key} is {}: expected a table, as in {{ [\"Accept\"] = \"text/html\" }}", kind(value)));
    };
    let mut fields = Vec::new();
    for pair in table.pairs::<Value, Value>() {
        let (name, value) = pair.map_err(|error| error.to_string())?;
        let name = match &name {
            Value::String(name) => name.to_string_lossy(),
            other => return Err(format!("{key} has {} as a name: expected a text", kind(other))),
        };
        match &value {
            // Several fields of one name.
            Value::Table(list) => {
                for value in list.sequence_values::<Value>() {
                    let value = value.map_err(|error| error.to_string())?;
                    fields.push((name.clone(), text(&name, &value)?));
                }
            }
            value => fields.push((name.clone(), text(&name, value)?)),
        }
    }
    // A table has no order of its own, and requests shall not differ from run to run.
    fields.sort();
    Ok(fields)
}

/// Takes `{{"30s", 100}, {"1m", 20}}`.
fn pairs(key: &str, value: &Value, most: f64) -> Result<Vec<(Duration, f64)>, String> {
    let expected =
        || format!("{key} is {}: expected stages, as in {{ {{\"30s\", 100}}, {{\"1m\", 20}} }}", kind(value));
    let Value::Table(table) = value else { return Err(expected()) };
    let mut stages = Vec::new();
    for stage in table.sequence_values::<Value>() {
        let stage = stage.map_err(|error| error.to_string())?;
        let Value::Table(stage) = stage else { return Err(expected()) };
        let (first, second): (Value, Value) =
            (stage.raw_get(1).unwrap_or(Value::Nil), stage.raw_get(2).unwrap_or(Value::Nil));
        stages.push((time(key, &first)?, number_of(key, &second, 0.0, most)?));
    }
    if stages.is_empty() {
        return Err(expected());
    }
    Ok(stages)
}
