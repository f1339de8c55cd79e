//! Drives scripts through the traits of a run, with a thread per core, without any network.
#![allow(dead_code, unreachable_pub, reason = "a module of each test file, which uses its part")]

pub mod record;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use oroshi_bench::{CoreScript, Record, Script, ScriptError};
use oroshi_net::Peer;
use oroshi_wrk::{Options, Wrk};
use tempfile::TempDir;

/// Longer than anything here may take, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The target of connections.
pub const PEER: &str = "127.0.0.1:8080";

/// A script in its own folder.
#[derive(Debug)]
pub struct Case {
    folder: TempDir,
    pub options: Options,
    pub peers: Vec<Peer>,
}

/// Results per thread.
pub type Results<R> = Vec<Result<R, ScriptError>>;

/// Makes a script for `threads` threads. `LOG` in it is the name of a file that [`Case::log`] reads.
pub fn case(script: &str, threads: usize) -> Case {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.lua");
    let log = folder.path().join("log");
    std::fs::write(&file, script.replace("LOG", &format!("{:?}", log.display().to_string()))).unwrap();
    let url = format!("http://{PEER}/path?query");
    let options = Options {
        file,
        args: Vec::new(),
        url: url.parse().unwrap(),
        typed: url,
        method: None,
        headers: Vec::new(),
        body: None,
        threads,
        limit: PATIENCE,
        backfill: false,
        shutdown: None,
    };
    Case { folder, options, peers: vec![peer(PEER)] }
}

pub fn peer(address: &str) -> Peer {
    address.parse::<SocketAddr>().unwrap().into()
}

impl Case {
    pub fn at(mut self, url: &str) -> Self {
        self.options.url = url.parse().unwrap();
        self.options.typed = url.into();
        self
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn file(&self) -> PathBuf {
        self.options.file.clone()
    }

    /// Returns the lines that the script has written into its log.
    pub fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder().join("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub fn load(&self) -> Result<Arc<Wrk>, ScriptError> {
        let options = self.options.clone();
        bounded(move || Wrk::load(options))
    }

    /// Enters on all threads and runs `work` with each one's script. Then runs `after` with the whole script, while
    /// the threads are in `leave`.
    pub fn run_then<R: Send + 'static>(
        &self,
        work: impl Fn(usize, &mut dyn CoreScript) -> R + Clone + Send + 'static,
        after: impl FnOnce(&Wrk) + Send + 'static,
    ) -> Results<R> {
        let wrk = match self.load() {
            Ok(wrk) => wrk,
            Err(error) => return vec![Err(error)],
        };
        let (threads, peers) = (self.options.threads, self.peers.clone());
        bounded(move || {
            let (tell, told) = mpsc::channel();
            let cores: Vec<_> = (0..threads)
                .map(|core| {
                    let (wrk, peers, work, tell) = (Arc::clone(&wrk), peers.clone(), work.clone(), tell.clone());
                    thread::spawn(move || match wrk.enter(core, &peers) {
                        Err(error) => tell.send((core, Err(error))).unwrap(),
                        Ok(mut part) => {
                            tell.send((core, Ok(work(core, &mut *part)))).unwrap();
                            part.leave();
                        }
                    })
                })
                .collect();
            drop(tell);
            let mut results: Vec<_> = told.iter().take(threads).collect();
            results.sort_by_key(|result| result.0);
            after(&wrk);
            wrk.release();
            cores.into_iter().for_each(|core| core.join().unwrap());
            results.into_iter().map(|result| result.1).collect()
        })
    }

    /// Like `run_then`, without `after`.
    pub fn run<R: Send + 'static>(
        &self,
        work: impl Fn(usize, &mut dyn CoreScript) -> R + Clone + Send + 'static,
    ) -> Results<R> {
        self.run_then(work, |_| {})
    }

    /// Runs one thread's work, which must succeed.
    pub fn one<R: Send + 'static>(&self, work: impl Fn(&mut dyn CoreScript) -> R + Clone + Send + 'static) -> R {
        assert_eq!(self.options.threads, 1);
        self.run(move |_, part| work(part)).remove(0).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the error of a thread's set-up, or of the file's top level.
    pub fn error(&self) -> ScriptError {
        self.run(|_, _| ()).remove(0).expect_err("a script that works")
    }

    /// Returns that error as text, without the folder.
    pub fn told(&self) -> String {
        self.without_folder(&self.error())
    }

    pub fn without_folder(&self, error: &ScriptError) -> String {
        error.to_string().replace(&format!("{}/", self.folder().display()), "")
    }

    /// Calls `done` for a record, while the threads are in `leave`.
    pub fn done(&self, record: Record) -> Result<(), ScriptError> {
        let (tell, told) = mpsc::channel();
        let results = self.run_then(|_, _| (), move |wrk| tell.send(wrk.done(&record)).unwrap());
        results.into_iter().for_each(|result| result.unwrap_or_else(|error| panic!("{error}")));
        told.recv().unwrap()
    }
}

/// Returns the next request of a thread.
pub fn next(part: &mut dyn CoreScript) -> String {
    let mut bytes = Vec::new();
    part.request(&mut bytes).unwrap_or_else(|error| panic!("{error}"));
    String::from_utf8(bytes).unwrap()
}

/// Fails instead of hanging.
pub fn bounded<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    oroshi_testkit::bounded(oroshi_script::STACK_BYTES, work)
}
