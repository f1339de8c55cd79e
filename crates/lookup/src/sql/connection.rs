//! A connection to a database, with the drivers of sqlx.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use oroshi_words::Secret;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{
    AssertSqlSafe, Column as _, ConnectOptions as _, Connection as _, Either, Executor as _, Row as _, SqlSafeStr as _,
    Statement as _, TypeInfo as _, ValueRef as _,
};

use crate::answer::Failure;
use crate::settings::SqlSettings;

/// The address and credentials of a database.
#[derive(Clone)]
pub(crate) enum Database {
    Sqlite(Box<SqliteConnectOptions>),
    MySql(Box<MySqlConnectOptions>),
    Postgres(Box<PgConnectOptions>),
}

/// An authenticated connection. It caches its prepared statements.
pub(super) enum Connection {
    Sqlite(SqliteConnection),
    MySql(MySqlConnection),
    Postgres(PgConnection),
}

/// Limits of a result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) rows: usize,
    pub(super) bytes: usize,
    /// Whether rows beyond `rows` are ignored instead of being an error.
    pub(super) first_only: bool,
}

/// A value from a database, or for one.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// NULL.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl Value {
    /// Returns the value as text, without a copy if it is text already; `None` for NULL.
    pub(super) fn into_bytes(self) -> Option<Vec<u8>> {
        match self {
            Value::Null => None,
            Value::Bool(value) => Some(value.to_string().into_bytes()),
            Value::Int(value) => Some(value.to_string().into_bytes()),
            Value::Float(value) => Some(value.to_string().into_bytes()),
            Value::Text(text) => Some(text.into_bytes()),
            Value::Bytes(bytes) => Some(bytes),
        }
    }

    fn size(&self) -> usize {
        match self {
            Value::Text(text) => text.len(),
            Value::Bytes(bytes) => bytes.len(),
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => 8,
        }
    }
}

/// The result of a query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// The columns' names; empty if there are no rows.
    pub columns: Vec<String>,
    /// The rows, each with a value for every column.
    pub rows: Vec<Vec<Value>>,
}

/// Reads a database's URL, and adds the password.
///
/// # Errors
/// A description of the expected form, without the URL, which may hold a password.
pub(crate) fn parse_url(settings: &SqlSettings) -> Result<Database, String> {
    let url = settings.url.reveal();
    let password = settings.password.as_ref().map(Secret::reveal);
    let scheme = url.split(':').next().unwrap_or_default();
    let wrong = |expected: &str| format!("the URL cannot be read: expected {expected}");
    match scheme {
        "sqlite" => {
            let options = SqliteConnectOptions::from_str(url).map_err(|_| wrong("sqlite:/path/file.db"))?;
            // A client that holds a lock for longer than this is as good as frozen.
            let options = options.busy_timeout(settings.query_timeout).disable_statement_logging();
            Ok(Database::Sqlite(Box::new(options)))
        }
        "mysql" | "mariadb" => {
            let options = MySqlConnectOptions::from_str(url);
            let mut options = options
                .map_err(|_| wrong("mysql://user@host:port/database, with `?socket=/path` for a unix socket"))?;
            options = password.into_iter().fold(options, MySqlConnectOptions::password);
            // Keep the server's session settings: they determine the meaning of a query.
            let options = options.pipes_as_concat(false).no_engine_substitution(false).timezone(None);
            Ok(Database::MySql(Box::new(options.disable_statement_logging())))
        }
        "postgres" | "postgresql" => {
            let options = PgConnectOptions::from_str(url);
            let mut options = options
                .map_err(|_| wrong("postgres://user@host:port/database, with `?host=/folder` for a unix socket"))?;
            options = password.into_iter().fold(options, PgConnectOptions::password);
            Ok(Database::Postgres(Box::new(options.disable_statement_logging())))
        }
        _ => Err(wrong("sqlite:/path/file.db, mysql://user@host/database or postgres://user@host/database")),
    }
}

/// The passwords in a store's settings, beside the URL and in it. Never shown.
pub(super) struct Secrets(Vec<Box<str>>);

impl Secrets {
    pub(super) fn of(settings: &SqlSettings) -> Self {
        let url = settings.url.reveal();
        let behind = url.split_once("://").map_or("", |(_, rest)| rest);
        let (before, query) = behind.split_once('?').unwrap_or((behind, ""));
        let authority = before.split('/').next().unwrap_or_default();
        let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
        let in_user = user.split_once(':').map(|(_, password)| password);
        let in_query = query.split('&').filter_map(|pair| pair.strip_prefix("password="));
        let mut secrets: Vec<Box<str>> = Vec::new();
        for written in in_user.into_iter().chain(in_query) {
            secrets.push(unescaped(written).into());
            secrets.push(written.into());
        }
        secrets.extend(settings.password.as_ref().map(|password| password.reveal().into()));
        secrets.retain(|secret| !secret.is_empty());
        Secrets(secrets)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secrets)")
    }
}

/// Decodes percent escapes of a part of a URL. Invalid UTF-8 is replaced.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        match part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend_from_slice(&part.as_bytes()[2..]);
            }
            None => {
                bytes.push(b'%');
                bytes.extend_from_slice(part.as_bytes());
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Database {
    /// Removes the user and the `secrets` from a message of the database.
    pub(super) fn hide(&self, words: Box<str>, secrets: &Secrets) -> Box<str> {
        let user = match self {
            Database::Sqlite(_) => return words,
            Database::MySql(at) => at.get_username(),
            Database::Postgres(at) => at.get_username(),
        };
        let mut hidden = words.into_string();
        for quote in ['\'', '"', '`'] {
            let named = format!("{quote}{user}{quote}");
            if !user.is_empty() && hidden.contains(&named) {
                hidden = hidden.replace(&named, &format!("{quote}...{quote}"));
            }
        }
        // MySQL's limits on connections name the user without quotes: `StoreUser gate already has more than ...`.
        if let Some(rest) = hidden.strip_prefix("User ").and_then(|rest| rest.strip_prefix(user))
            && rest.starts_with(' ')
        {
            hidden = format!("User ...{rest}");
        }
        for secret in &secrets.0 {
            if hidden.contains(&**secret) {
                hidden = hidden.replace(&**secret, "...");
            }
        }
        hidden.into()
    }

    /// Connects, and asks the server to end queries after `limit`. Abandoned queries would otherwise continue there and
    /// occupy one of its connections.
    pub(super) async fn connect(&self, limit: Duration) -> Result<Connection, Failure> {
        let connected = match self {
            Database::Sqlite(options) => options.connect().await.map(Connection::Sqlite),
            Database::MySql(options) => connect_mysql(options, limit).await.map(Connection::MySql),
            Database::Postgres(options) => connect_postgres(options, limit).await.map(Connection::Postgres),
        };
        connected.map_err(|error| match failure(error) {
            Failure::InvalidReply(what) => Failure::InvalidReply(what),
            Failure::Refused(why) | Failure::Lost(why) | Failure::Connect(why) => Failure::Connect(why),
            other => other,
        })
    }
}

async fn connect_mysql(options: &MySqlConnectOptions, limit: Duration) -> Result<MySqlConnection, sqlx::Error> {
    let mut connection = options.connect().await?;
    // The commands of MariaDB and of MySQL, which refuse each other's; older versions have neither.
    let limits = [
        format!("max_statement_time = {:.3}", limit.as_secs_f64()),
        format!("max_execution_time = {}", limit.as_millis()),
    ];
    for limit in limits {
        match sqlx::raw_sql(AssertSqlSafe(format!("SET SESSION {limit}"))).execute(&mut connection).await {
            Err(sqlx::Error::Database(_)) => {}
            done => return done.map(|_| connection),
        }
    }
    Ok(connection)
}

async fn connect_postgres(options: &PgConnectOptions, limit: Duration) -> Result<PgConnection, sqlx::Error> {
    let mut connection = options.connect().await?;
    let limit = format!("SET statement_timeout = {}", limit.as_millis());
    sqlx::raw_sql(AssertSqlSafe(limit)).execute(&mut connection).await?;
    Ok(connection)
}

/// Shows the database without user and password.
impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, socket, host, port, database) = match self {
            Database::Sqlite(options) => return write!(f, "sqlite:{}", options.get_filename().display()),
            Database::MySql(at) => ("mysql", at.get_socket(), at.get_host(), at.get_port(), at.get_database()),
            Database::Postgres(at) => ("postgres", at.get_socket(), at.get_host(), at.get_port(), at.get_database()),
        };
        match socket {
            Some(socket) => write!(f, "{kind}:{}", socket.display())?,
            None => write!(f, "{kind}://{host}:{port}")?,
        }
        write!(f, "/{}", database.unwrap_or_default())
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Database({self})")
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}

impl Connection {
    /// Checks that the server still answers.
    pub(super) async fn ping(&mut self) -> Result<(), Failure> {
        let answered = match self {
            Connection::Sqlite(connection) => connection.ping().await,
            Connection::MySql(connection) => connection.ping().await,
            Connection::Postgres(connection) => connection.ping().await,
        };
        answered.map_err(failure)
    }

    /// Sends a query, prepared once per connection, and reads the result.
    pub(super) async fn query(
        &mut self,
        query: &Arc<str>,
        parameters: &[Value],
        bounds: Bounds,
    ) -> Result<Rows, Failure> {
        match self {
            Connection::Sqlite(connection) => query_sqlite(connection, query, parameters, bounds).await,
            Connection::MySql(connection) => {
                // sqlx's own error for this leaves the connection waiting for a reply that never comes.
                let prepared = (&mut *connection).prepare(AssertSqlSafe(Arc::clone(query)).into_sql_str()).await;
                let expected = match prepared.map_err(failure)?.parameters() {
                    Some(Either::Right(count)) => count,
                    _ => parameters.len(),
                };
                if expected != parameters.len() {
                    let why = format!("the query has {expected} parameters, and {} were given", parameters.len());
                    return Err(Failure::Refused(why.into()));
                }
                query_mysql(connection, query, parameters, bounds).await
            }
            Connection::Postgres(connection) => query_postgres(connection, query, parameters, bounds).await,
        }
    }
}

/// The three databases have the same calls and no common type for them.
macro_rules! query {
    ($name:ident, $database:ty, $connection:ty, $value:ident) => {
        async fn $name(
            connection: &mut $connection,
            query: &Arc<str>,
            parameters: &[Value],
            bounds: Bounds,
        ) -> Result<Rows, Failure> {
            let mut query = sqlx::query::<$database>(AssertSqlSafe(Arc::clone(query)));
            for parameter in parameters {
                query = match parameter {
                    Value::Null => query.bind(None::<&str>),
                    Value::Bool(value) => query.bind(*value),
                    Value::Int(value) => query.bind(*value),
                    Value::Float(value) => query.bind(*value),
                    Value::Text(value) => query.bind(value.as_str()),
                    Value::Bytes(value) => query.bind(value.as_slice()),
                };
            }
            let mut found = query.fetch(connection);
            let (mut rows, mut bytes) = (Rows::default(), 0);
            while let Some(row) = found.next().await {
                let row = row.map_err(failure)?;
                if rows.rows.len() == bounds.rows {
                    if bounds.first_only {
                        break;
                    }
                    return Err(Failure::TooLarge(format!("the result has more than {} rows", bounds.rows).into()));
                }
                if rows.rows.is_empty() {
                    rows.columns = row.columns().iter().map(|column| column.name().to_owned()).collect();
                }
                let values =
                    (0..row.columns().len()).map(|index| $value(&row, index)).collect::<Result<Vec<_>, _>>()?;
                bytes += values.iter().map(Value::size).sum::<usize>();
                if bytes > bounds.bytes {
                    return Err(Failure::TooLarge(format!("the result has more than {} bytes", bounds.bytes).into()));
                }
                rows.rows.push(values);
            }
            Ok(rows)
        }
    };
}

query!(query_sqlite, sqlx::Sqlite, SqliteConnection, sqlite_value);
query!(query_mysql, sqlx::MySql, MySqlConnection, mysql_value);
query!(query_postgres, sqlx::Postgres, PgConnection, postgres_value);

fn sqlite_value(row: &sqlx::sqlite::SqliteRow, index: usize) -> Result<Value, Failure> {
    let raw = row.try_get_raw(index).map_err(failure)?;
    if raw.is_null() {
        return Ok(Value::Null);
    }
    // In SQLite each value has its own type, whatever the column's declaration.
    let value = match raw.type_info().name() {
        "INTEGER" => row.try_get_unchecked(index).map(Value::Int),
        "REAL" => row.try_get_unchecked(index).map(Value::Float),
        "BLOB" => row.try_get_unchecked(index).map(Value::Bytes),
        _ => row.try_get_unchecked(index).map(Value::Text),
    };
    value.map_err(failure)
}

fn mysql_value(row: &sqlx::mysql::MySqlRow, index: usize) -> Result<Value, Failure> {
    let raw = row.try_get_raw(index).map_err(failure)?;
    if raw.is_null() {
        return Ok(Value::Null);
    }
    let kind = raw.type_info().into_owned();
    let value = match kind.name() {
        "BOOLEAN" => row.try_get_unchecked(index).map(Value::Bool),
        "TINYINT" | "SMALLINT" | "MEDIUMINT" | "INT" | "BIGINT" => row.try_get_unchecked(index).map(Value::Int),
        "TINYINT UNSIGNED" | "SMALLINT UNSIGNED" | "MEDIUMINT UNSIGNED" | "INT UNSIGNED" | "BIGINT UNSIGNED"
        | "YEAR" => {
            let number: u64 = row.try_get_unchecked(index).map_err(failure)?;
            Ok(i64::try_from(number).map_or(Value::Text(number.to_string()), Value::Int))
        }
        "FLOAT" => row.try_get_unchecked::<f32, _>(index).map(|value| Value::Float(value.into())),
        "DOUBLE" => row.try_get_unchecked(index).map(Value::Float),
        "CHAR" | "VARCHAR" | "TINYTEXT" | "TEXT" | "MEDIUMTEXT" | "LONGTEXT" | "ENUM" | "SET" | "JSON" | "DECIMAL" => {
            row.try_get_unchecked(index).map(Value::Text)
        }
        "BINARY" | "VARBINARY" | "TINYBLOB" | "BLOB" | "MEDIUMBLOB" | "LONGBLOB" => {
            row.try_get_unchecked(index).map(Value::Bytes)
        }
        other => return Err(unreadable(row.column(index).name(), other)),
    };
    value.map_err(failure)
}

fn postgres_value(row: &sqlx::postgres::PgRow, index: usize) -> Result<Value, Failure> {
    let raw = row.try_get_raw(index).map_err(failure)?;
    if raw.is_null() {
        return Ok(Value::Null);
    }
    let kind = raw.type_info().into_owned();
    let value = match kind.name() {
        "BOOL" => row.try_get_unchecked(index).map(Value::Bool),
        "INT2" => row.try_get_unchecked::<i16, _>(index).map(|value| Value::Int(value.into())),
        "INT4" => row.try_get_unchecked::<i32, _>(index).map(|value| Value::Int(value.into())),
        "INT8" => row.try_get_unchecked(index).map(Value::Int),
        "FLOAT4" => row.try_get_unchecked::<f32, _>(index).map(|value| Value::Float(value.into())),
        "FLOAT8" => row.try_get_unchecked(index).map(Value::Float),
        "TEXT" | "VARCHAR" | "CHAR" | "NAME" | "UNKNOWN" | "JSON" | "citext" => {
            row.try_get_unchecked(index).map(Value::Text)
        }
        // Text after one byte, the version of the format (jsonb_recv).
        "JSONB" => {
            let text = raw.as_bytes().ok().and_then(|bytes| std::str::from_utf8(bytes.get(1..)?).ok());
            text.map(|text| Value::Text(text.to_owned()))
                .ok_or_else(|| sqlx::Error::Protocol("a jsonb that is not text".to_owned()))
        }
        "BYTEA" => row.try_get_unchecked(index).map(Value::Bytes),
        other => return Err(unreadable(row.column(index).name(), other)),
    };
    value.map_err(failure)
}

fn unreadable(column: &str, kind: &str) -> Failure {
    Failure::Refused(
        format!("column `{column}` is of type {kind}, which is not read: cast it to text in the query").into(),
    )
}

/// Converts an error, by its consequence for the connection and the caller.
pub(super) fn failure(error: sqlx::Error) -> Failure {
    match error {
        sqlx::Error::Database(error) => {
            let message = error.message().into();
            if let Some(error) = error.try_downcast_ref::<MySqlDatabaseError>() {
                return match error.number() {
                    // The server shuts down; the session was killed (MariaDB), or idle for too long (MySQL).
                    1053 | 1927 | 4031 => Failure::Lost(message),
                    // The server's own limit, in MariaDB and MySQL.
                    1969 | 3024 => Failure::Timeout,
                    _ => Failure::Refused(message),
                };
            }
            match error.code().as_deref() {
                // SQLite: SQLITE_BUSY and SQLITE_LOCKED with their extended codes: another client held a lock for too
                // long.
                Some("5" | "6" | "261" | "262" | "517" | "773") => Failure::Timeout,
                // PostgreSQL (its appendix A): protocol_violation, for example a wrong number of parameters.
                Some("08P01") => Failure::Refused(message),
                // query_canceled, by the server's own limit; connection exceptions; the server ends the session.
                Some("57014") => Failure::Timeout,
                Some(code) if code.starts_with("08") || code.starts_with("57P") => Failure::Lost(message),
                _ => Failure::Refused(message),
            }
        }
        sqlx::Error::Io(error) => Failure::Lost(error.to_string().into()),
        sqlx::Error::Tls(error) => Failure::Connect(error.to_string().into()),
        sqlx::Error::Protocol(what) => Failure::InvalidReply(what.into()),
        sqlx::Error::WorkerCrashed => Failure::Lost("SQLite's thread has ended".into()),
        other => Failure::Refused(other.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_the_user_nor_a_password_is_shown() {
        let hide = |url: &str, password: Option<&str>, words: &str| {
            let settings = SqlSettings { password: password.map(Secret::new), ..SqlSettings::new(url) };
            parse_url(&settings).unwrap().hide(words.into(), &Secrets::of(&settings)).into_string()
        };
        for (url, words, shown) in [
            (
                "mysql://alice@h/d",
                "Access denied for user 'alice'@'h' to `d`",
                "Access denied for user '...'@'h' to `d`",
            ),
            ("mysql://alice@h/d", "User alice already has more connections", "User ... already has more connections"),
            ("mysql://alice@h/d", "User alice2 already has", "User alice2 already has"),
            ("mysql://alice@h/d", "no such table: alice", "no such table: alice"),
            (
                "postgres://alice@h/d",
                "no entry for user \"alice\", database \"d\"",
                "no entry for user \"...\", database \"d\"",
            ),
            ("mysql://alice:hunter2@h/d", "it was hunter2", "it was ..."),
            ("mysql://alice:p%40ss%3Aw@h/d", "it was p@ss:w, written p%40ss%3Aw", "it was ..., written ..."),
            ("postgres://alice@h/d?password=hunter2&x=1", "it was hunter2", "it was ..."),
            ("postgres:///d?user=alice", "role \"alice\" does not exist", "role \"...\" does not exist"),
        ] {
            assert_eq!(hide(url, None, words), shown, "{url}");
        }
        let shown = hide("mysql://alice:hunter2@h/d", Some("hunter3"), "hunter2, then hunter3");
        assert_eq!(shown, "..., then ...");
        assert_eq!(hide("sqlite:/a", None, "as it is"), "as it is");
    }
}
