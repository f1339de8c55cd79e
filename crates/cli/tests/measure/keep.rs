//! Servers and load programs of experiments, as real processes: they get ready, and they end, whatever happens to them
//! or to us.

mod commands;

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::common;
use crate::common::OROSHI;
use crate::common::support::tls::Identity;
use crate::common::support::{HANG, in_a_process, must_pass, wait_until};
use oroshi_lab::plan::{Ready, Server, Stop};
use oroshi_lab::serving::{Launch, RunError, Running, StartError, StopError, run_to_end};
use oroshi_lab::template::Values;
use oroshi_net::available_cpus;
use oroshi_testkit::test_name;
use regex_lite::Regex;
use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process, setrlimit};

/// What a server is started with in these tests.
struct Bench {
    folder: tempfile::TempDir,
    keeper: Vec<OsString>,
    values: Values,
}

impl Bench {
    fn new() -> Self {
        let mut values = Values::default();
        values.set("oroshi", OROSHI);
        Self { folder: tempfile::tempdir().unwrap(), keeper: vec![OROSHI.into(), "keep".into()], values }
    }

    /// A file that outlives every server.
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start(&self, server: &Server) -> Result<Running, StartError> {
        self.start_unless(server, &mut || false)
    }

    fn start_unless(&self, server: &Server, cancelled: &mut dyn FnMut() -> bool) -> Result<Running, StartError> {
        let output = self.path("output");
        Running::start(
            server,
            &Launch { keeper: &self.keeper, cpus: None, output: &output, values: &self.values },
            cancelled,
        )
    }

    fn run(&self, script: &str, timeout: Duration) -> Result<oroshi_lab::serving::Finished, RunError> {
        let output = self.path("load");
        let launch = Launch { keeper: &self.keeper, cpus: None, output: &output, values: &self.values };
        let env = [("GREETING".to_owned(), "hello\tthere\n".to_owned())];
        run_to_end(&words(&["sh", "-c", script]), &env, self.folder.path(), &launch, timeout, &mut || false)
    }

    fn output(&self) -> String {
        fs::read_to_string(self.path("output")).unwrap()
    }
}

/// A server that is a shell's script, ready when it says so.
fn script(text: &str) -> Server {
    Server {
        name: "server".into(),
        machine: None,
        start: words(&["sh", "-c", text]),
        env: Vec::new(),
        folder: None,
        files: Vec::new(),
        setup: Vec::new(),
        teardown: Vec::new(),
        ready: Ready::Line(Regex::new("^ready").unwrap()),
        ready_timeout: HANG,
        stop: Stop::Term,
        stop_timeout: HANG,
    }
}

/// `oroshi target` with these flags, ready when each of these answers.
fn target(flags: &[&str], urls: &[&str]) -> Server {
    let start = words(&[&["{{oroshi}}", "target"], flags].concat());
    Server { start, ready: Ready::Answers(words(urls)), ..script("") }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn folder_of(running: &Running) -> PathBuf {
    running.values().get("dir").unwrap().into()
}

/// A number in a file that a script writes.
fn pid_in(path: &Path) -> u32 {
    wait_until("a process has written its number", || written(path).is_some());
    written(path).unwrap()
}

fn written(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.strip_suffix('\n')?.parse().ok()
}

/// Whether a process has ended. One that nobody has asked about yet counts.
fn gone(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']))
}

fn parent(pid: u32) -> Option<u32> {
    stat(pid, 1)
}

fn group(pid: u32) -> Option<u32> {
    stat(pid, 2)
}

/// A number in a process's state, counted from the letter.
fn stat(pid: u32, field: usize) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(field)?.parse().ok()
}

fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

#[test]
fn a_server_is_ready_when_it_answers_at_tcp_tls_and_unix() {
    let bench = Bench::new();
    let identity = Identity::new();
    let (certificate, key) = identity.files();
    let places = [
        "--listen",
        "http://127.0.0.1:{{port}}/",
        "--listen",
        "unix:{{socket}}",
        "--listen",
        "https://127.0.0.1:{{port.tls}}/",
    ];
    let certificate = ["--cert", certificate.to_str().unwrap(), "--key", key.to_str().unwrap()];
    // Nobody here trusts its certificate, and 404 is an answer.
    let flags = [&places[..], &certificate, &["--status", "404"]].concat();
    let urls = ["http://127.0.0.1:{{port}}/x", "unix:{{socket}}:/y", "https://127.0.0.1:{{port.tls}}/"];
    let running = bench.start(&target(&flags, &urls)).unwrap();
    let (folder, pid) = (folder_of(&running), running.pid());
    assert!(Path::new(running.values().get("socket").unwrap()).exists());
    assert!(fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap().contains("\0target\0"));
    assert!(running.last_lines(3).iter().all(|line| line.starts_with("listening on ")), "{:?}", running.last_lines(3));
    running.stop().unwrap();
    assert!(gone(pid) && !folder.exists());
    // It was asked to end, and not killed: it says what it did.
    assert!(bench.output().contains("served 3 requests"), "{}", bench.output());
}

#[test]
fn a_server_gets_its_files_environment_folder_and_cpus() {
    let bench = Bench::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let mut server =
        script("cat \"$CONF\"; pwd; grep Cpus_allowed_list /proc/self/status; echo ready; exec sleep 1000");
    server.env = vec![("CONF".into(), "{{dir}}/conf/a b".into())];
    server.files = vec![("conf/a b".into(), "port {{port}}\n".into())];
    server.setup = vec![words(&["sh", "-c", "echo ready for nothing; test -e \"$CONF\""])];
    server.folder = Some(elsewhere.path().to_owned());
    let first = available_cpus().unwrap().iter().next().unwrap();
    let (cpus, output) = (first.to_string().parse().unwrap(), bench.path("output"));
    fs::write(&output, "from another server\n").unwrap();
    let launch = Launch { keeper: &bench.keeper, cpus: Some(&cpus), output: &output, values: &bench.values };
    let running = Running::start(&server, &launch, &mut || false).unwrap();
    let port = running.values().get("port").unwrap();
    let expected =
        ["ready for nothing", &format!("port {port}"), elsewhere.path().to_str().unwrap()].map(str::to_owned);
    let lines = running.last_lines(100);
    assert_eq!((&lines[..3], lines.len()), (&expected[..], 5), "{lines:?}");
    assert_eq!(lines[3].split_whitespace().last(), Some(first.to_string().as_str()));
    assert_eq!(running.last_lines(1), ["ready"]);
    running.stop().unwrap();
    assert!(bench.output().starts_with("from another server\n") && elsewhere.path().exists());
}

#[test]
fn every_server_may_open_as_many_files_as_the_first() {
    must_pass(in_a_process(&[], test_name!("two_servers_and_a_lower_limit_between_them")));
}

#[test]
#[ignore = "lowers a limit of its process; every_server_may_open_as_many_files_as_the_first runs it"]
fn two_servers_and_a_lower_limit_between_them() {
    let bench = Bench::new();
    let first = bench.start(&script("ulimit -n; echo ready; exec sleep 1000")).unwrap();
    // As a run with many connections raises the limit; lowering it needs no right to do so.
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.current.map(|limit| limit - 1);
    setrlimit(Resource::Nofile, limit).unwrap();
    let second = bench.start(&script("ulimit -n; echo ready; exec sleep 1000")).unwrap();
    assert_eq!(first.last_lines(1), second.last_lines(1));
    let lines = first.last_lines(4);
    assert_eq!((lines.len(), &lines[0]), (4, &lines[2]));
}

#[test]
fn processes_that_leave_their_group_and_parent_end_with_the_server() {
    let bench = Bench::new();
    let (leader, lost) = (bench.path("leader"), bench.path("lost"));
    let deep = format!("(setsid sh -c 'trap \"\" TERM; echo $$ >{}; sleep 1000' &)", lost.display());
    let server = script(&format!("echo $$ >{}; {deep}; echo ready; exec sleep 1000", leader.display()));
    let running = bench.start(&Server { stop_timeout: Duration::from_millis(100), ..server }).unwrap();
    let (leader, lost) = (pid_in(&leader), pid_in(&lost));
    assert!(!gone(leader) && !gone(lost));
    running.stop().unwrap();
    assert!(gone(leader) && gone(lost));
}

#[test]
fn processes_that_outlive_the_first_are_asked_to_end_too() {
    let bench = Bench::new();
    let worker = "sh -c 'trap \"echo worker is done; exit\" TERM; echo ready; while :; do sleep 0.01; done' &";
    let running = bench.start(&script(&format!("trap 'echo master is done; exit' TERM; {worker} wait"))).unwrap();
    running.stop().unwrap();
    // Its shell may say that what it was waiting for was asked too.
    let output = bench.output().replace("Terminated\n", "");
    assert_eq!(output, "ready\nmaster is done\nworker is done\n");
}

#[test]
fn a_server_that_goes_into_the_background_is_running_until_that_ends() {
    let bench = Bench::new();
    let file = bench.path("daemon");
    let text = format!("setsid sh -c 'echo $$ >{}; echo ready; exec sleep 1000' &", file.display());
    // A process that a step before has left behind does not count.
    let helper = bench.path("helper");
    let step = format!("setsid sh -c 'echo $$ >{}; exec sleep 1000' &", helper.display());
    let server = Server { setup: vec![words(&["sh", "-c", &step])], ..script(&text) };
    let mut running = bench.start(&server).unwrap();
    let (daemon, helper) = (pid_in(&file), pid_in(&helper));
    assert_eq!(running.ended(), None);
    // What is watched has the daemon below it.
    wait_until("its parent has ended", || parent(daemon) == Some(running.pid()));
    send(daemon, Signal::KILL);
    wait_until("its end is known", || running.ended().is_some());
    assert!(!gone(helper));
    running.stop().unwrap();
    assert!(gone(helper));
    // And one that is there until the end.
    fs::remove_file(&file).unwrap();
    let running = bench.start(&script(&text)).unwrap();
    let daemon = pid_in(&file);
    running.stop().unwrap();
    assert!(gone(daemon));
}

#[test]
fn a_server_that_ignores_its_signal_is_killed_after_its_time() {
    let bench = Bench::new();
    let file = bench.path("pid");
    let text =
        format!("echo $$ >{}; trap 'echo not now' QUIT; echo ready; while :; do sleep 0.01; done", file.display());
    let server = Server { stop: Stop::Quit, stop_timeout: Duration::from_millis(100), ..script(&text) };
    let running = bench.start(&server).unwrap();
    let folder = folder_of(&running);
    running.stop().unwrap();
    assert!(gone(pid_in(&file)) && !folder.exists());
    // One that takes it has all the time it needs.
    let server =
        Server { stop: Stop::Quit, ..script("trap 'echo done; exit' QUIT; echo ready; while :; do sleep 0.01; done") };
    bench.start(&server).unwrap().stop().unwrap();
    assert!(bench.output().ends_with("ready\ndone\n"), "{}", bench.output());
}

#[test]
fn a_server_that_crashes_says_how() {
    let bench = Bench::new();
    let mut running = bench.start(&script("echo ready; kill -SEGV $$")).unwrap();
    wait_until("its end is known", || running.ended().is_some());
    assert_eq!(running.ended().unwrap(), "ended by signal SEGV");
    let folder = folder_of(&running);
    running.stop().unwrap();
    assert!(!folder.exists());
}

#[test]
fn a_start_that_fails_says_why_and_leaves_nothing() {
    let bench = Bench::new();
    let file = bench.path("folder");
    let text = format!("pwd >{}; echo no such option >&2; exit 3", file.display());
    let answers = Ready::Answers(words(&["http://127.0.0.1:{{port}}/"]));
    let env = vec![("PORT".into(), "{{port}}".into())];
    for server in [script(&text), Server { ready: answers, env, ..script(&text) }] {
        let error = bench.start(&server).unwrap_err();
        assert_eq!(error.to_string(), "the server ended before it was ready: exit code 3");
        assert_eq!(error.output(), ["no such option"]);
        assert!(!Path::new(fs::read_to_string(&file).unwrap().trim()).exists());
    }
}

/// It would be measured in place of ours.
#[test]
fn another_server_in_the_place_of_ours_is_noticed() {
    let bench = Bench::new();
    let socket = format!("unix:{}", bench.path("taken.sock").display());
    let _first = bench.start(&target(&["--listen", &socket], &[&socket])).unwrap();
    let file = bench.path("started");
    let second = Server {
        ready: Ready::Answers(words(&[&socket])),
        ..script(&format!("touch {}; exec sleep 1000", file.display()))
    };
    let error = bench.start(&second).unwrap_err();
    assert!(matches!(error, StartError::Taken { .. }) && error.to_string().contains("another server"), "{error}");
    assert!(!file.exists(), "it was not started");
}

#[test]
fn a_server_that_does_not_get_ready_is_ended() {
    let bench = Bench::new();
    let file = bench.path("pid");
    let text = format!("echo $$ >{}; echo wait for me; exec sleep 1000", file.display());
    let ready = Ready::Answers(words(&["http://127.0.0.1:{{port}}/x"]));
    let env = vec![("PORT".into(), "{{port}}".into())];
    let impatient = Server { ready_timeout: Duration::from_millis(300), ..script(&text) };
    let silent = target(&["--listen", "127.0.0.1:{{port}}", "--status", "503"], &["http://127.0.0.1:{{port}}/"]);
    for (mut server, why) in [
        (impatient.clone(), "no line matches /^ready/"),
        (Server { ready, env, ..impatient.clone() }, "connect-refused"),
        (silent, "it answered with status 503"),
    ] {
        server.ready_timeout = impatient.ready_timeout;
        let told = |error: &StartError| error.to_string().contains(why) && !error.output().is_empty();
        let mut error = bench.start(&server).unwrap_err();
        // A busy machine may not get so far in so little time.
        while !told(&error) && server.ready_timeout < HANG {
            server.ready_timeout *= 2;
            error = bench.start(&server).unwrap_err();
        }
        let within = format!("not ready within {} s", server.ready_timeout.as_secs_f64());
        assert!(told(&error) && error.to_string().contains(&within), "{error}");
        assert!(matches!(error, StartError::NotReady { .. }) && gone(pid_in(&file)), "{error}");
    }
}

#[test]
fn a_server_that_takes_its_time_is_asked_as_often_as_it_takes() {
    const TURNED_AWAY: usize = 80;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    // Ends with the test's process: nobody can tell it that no more callers come.
    thread::spawn(move || {
        for caller in listener.incoming() {
            let mut caller = caller.unwrap();
            if caller.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {
                let turned_away = count.fetch_add(1, Ordering::Relaxed) < TURNED_AWAY;
                let status = if turned_away { "503 Not Yet" } else { "200 OK" };
                let _ = write!(caller, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            }
        }
    });
    let ready = Ready::Answers(vec![format!("http://{address}/")]);
    let bench = Bench::new();
    bench.start(&Server { ready, ..script("exec sleep 1000") }).unwrap().stop().unwrap();
    assert!(asked.load(Ordering::Relaxed) > TURNED_AWAY);
}

#[test]
fn a_start_can_be_given_up() {
    let bench = Bench::new();
    let file = bench.path("pid");
    let text = format!("echo $$ >{}; exec sleep 1000", file.display());
    let answers = Ready::Answers(words(&["unix:{{socket}}"]));
    let env = vec![("SOCKET".into(), "{{socket}}".into())];
    let setup = vec![words(&["sh", "-c", &text])];
    for server in [script(&text), Server { ready: answers, env, ..script(&text) }, Server { setup, ..script("exit") }] {
        let _ = fs::remove_file(&file);
        let error = bench.start_unless(&server, &mut || written(&file).is_some()).unwrap_err();
        assert!(matches!(error, StartError::Cancelled), "{error}");
        assert!(gone(pid_in(&file)));
    }
}

#[test]
fn a_program_that_cannot_be_started_is_named() {
    let bench = Bench::new();
    let file = bench.path("not-executable");
    fs::write(&file, "").unwrap();
    let interpreted = bench.path("interpreted");
    fs::write(&interpreted, "#!/no/such/interpreter\n").unwrap();
    Command::new("chmod").arg("755").arg(&interpreted).status().unwrap();
    let missing = bench.path("folder");
    let said = |start: &str, folder: Option<&Path>| {
        let server = Server { start: words(&[start]), folder: folder.map(Path::to_owned), ..script("") };
        let error = bench.start(&server).unwrap_err();
        assert!(matches!(error, StartError::Program(_)), "{error}");
        error.to_string()
    };
    let told = said("no-such-program-of-oroshi", None);
    assert!(told.contains("no-such-program-of-oroshi: it is in none of the folders of PATH (/"), "{told}");
    assert!(said("./no-such-file", None).contains("./no-such-file: no such file"));
    assert!(said(file.to_str().unwrap(), None).contains("may not be executed"));
    assert!(said(interpreted.to_str().unwrap(), None).contains("interpreter"));
    assert!(said("sh", Some(&missing)).contains("the working folder"));
    let mut server = script("");
    server.env = vec![("PATH".into(), "/nowhere".into())];
    assert!(bench.start(&server).unwrap_err().to_string().contains("PATH (/nowhere)"));
}

#[test]
fn after_a_step_that_fails_what_belongs_to_the_end_is_done() {
    let bench = Bench::new();
    let (done, started) = (bench.path("done"), bench.path("started"));
    let steps = [
        (words(&["sh", "-c", "echo disk is full; exit 4"]), "exit code 4", &["disk is full"][..]),
        (words(&["no-such-program-of-oroshi"]), "none of the folders of PATH", &[]),
    ];
    for (step, why, output) in steps {
        let mut server = script(&format!("touch {}; echo ready; exec sleep 1000", started.display()));
        server.setup = vec![words(&["true"]), step, words(&["touch", started.to_str().unwrap()])];
        server.teardown = vec![words(&["false"]), words(&["sh", "-c", &format!("pwd >{}", done.display())])];
        let error = bench.start(&server).unwrap_err();
        assert!(error.to_string().ends_with("; after the server's end: teardown `false`: exit code 1"), "{error}");
        let (error, end) = error.split();
        assert!(matches!(end, Some(StopError::Troubles(troubles)) if troubles.len() == 1));
        assert!(matches!(error, StartError::Setup { .. }) && error.to_string().contains(why), "{error}");
        assert_eq!(error.output(), output);
        let folder = fs::read_to_string(&done).unwrap();
        assert!(!Path::new(folder.trim()).exists() && !started.exists());
        fs::remove_file(&done).unwrap();
    }
}

#[test]
fn what_goes_wrong_after_the_end_is_told() {
    let bench = Bench::new();
    let file = bench.path("left");
    let left = format!("sh -c 'echo $$ >{}; exec sleep 1000' & exit 5", file.display());
    let teardown = vec![words(&["sh", "-c", &left]), words(&["no-such-program-of-oroshi"])];
    let running = bench.start(&Server { teardown, ..script("echo ready; exec sleep 1000") }).unwrap();
    let folder = folder_of(&running);
    let Err(StopError::Troubles(troubles)) = running.stop() else { panic!("no error") };
    assert_eq!(troubles.len(), 2, "{troubles:?}");
    assert!(troubles[0].starts_with("teardown `sh -c ") && troubles[0].ends_with(": exit code 5"), "{troubles:?}");
    assert!(troubles[1].contains("no-such-program-of-oroshi: it is in none"), "{troubles:?}");
    assert!(!folder.exists());
    // It may have been ended before it came to write.
    assert!(written(&file).is_none_or(gone));
}

#[test]
fn a_panic_ends_the_server() {
    let bench = Bench::new();
    let file = bench.path("pid");
    let text = format!("echo $$ >{}; echo ready; exec sleep 1000", file.display());
    let mut folder = None;
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let running = bench.start(&script(&text)).unwrap();
        folder = Some(folder_of(&running));
        std::panic::resume_unwind(Box::new(()));
    }));
    assert!(caught.is_err() && gone(pid_in(&file)) && !folder.unwrap().exists());
}

/// For the test below: starts servers, and waits to be killed. Standard input names the folder for what it has to tell.
#[test]
#[ignore = "a process for another test"]
fn somebody_who_is_killed() {
    let mut folder = String::new();
    std::io::stdin().read_line(&mut folder).unwrap();
    let folder = PathBuf::from(folder.trim());
    let bench = Bench::new();
    let mut server = target(
        &["--listen", "unix:{{socket}}", "--listen", "127.0.0.1:{{port}}"],
        &["unix:{{socket}}", "http://127.0.0.1:{{port}}/"],
    );
    let deep = format!("(setsid sh -c 'trap \"\" TERM HUP; echo $$ >{}/deep; sleep 1000' &)", folder.display());
    server.setup = vec![words(&["sh", "-c", &deep])];
    server.teardown = vec![words(&["touch", folder.join("teardown").to_str().unwrap()])];
    let running = bench.start(&server).unwrap();
    pid_in(&folder.join("deep"));
    fs::write(folder.join("pid"), format!("{}\n", running.pid())).unwrap();
    fs::write(folder.join("socket"), running.values().get("socket").unwrap()).unwrap();
    fs::write(folder.join("all"), "").unwrap();
    // Until it is killed, or whoever waits for it is gone.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[test]
fn when_we_are_killed_no_process_no_folder_and_no_socket_is_left() {
    for signal in [Signal::KILL, Signal::ABORT, Signal::INT] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = in_a_process(&[], test_name!("somebody_who_is_killed"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        // Kept: `wait` would close it, and the end of its input ends the process without an error.
        let mut input = child.stdin.take().unwrap();
        writeln!(input, "{}", folder.path().display()).unwrap();
        wait_until("its server is ready", || folder.path().join("all").exists());
        let pids = ["pid", "deep"].map(|file| pid_in(&folder.path().join(file)));
        let socket = PathBuf::from(fs::read_to_string(folder.path().join("socket")).unwrap());
        assert!(!pids.into_iter().any(gone) && socket.exists());
        send(child.id(), signal);
        assert!(!child.wait().unwrap().success());
        wait_until("all of it is gone", || pids.into_iter().all(gone) && !socket.parent().unwrap().exists());
        assert!(folder.path().join("teardown").exists());
    }
}

#[test]
fn a_keeper_that_is_told_to_end_or_killed_takes_its_server_with_it() {
    for signal in [Signal::TERM, Signal::HUP, Signal::KILL] {
        let bench = Bench::new();
        let file = bench.path("pid");
        let text = format!("sh -c 'echo $$ >{}; exec sleep 1000' & echo ready; wait", file.display());
        let mut running = bench.start(&script(&text)).unwrap();
        let (folder, pid) = (folder_of(&running), pid_in(&file));
        // It has one child only: its parent is the keeper.
        let keeper = parent(running.pid()).unwrap();
        // Ctrl-C is for none of them.
        assert_eq!((group(keeper), group(pid)), (Some(keeper), Some(running.pid())));
        send(keeper, signal);
        wait_until("its end is known", || running.ended().is_some());
        let stopped = running.stop();
        assert_eq!(stopped.is_err(), signal == Signal::KILL, "{stopped:?}");
        wait_until("the server has ended", || gone(pid));
        assert!(!folder.exists());
    }
}

#[test]
fn only_folders_that_it_made_are_removed() {
    let bench = Bench::new();
    let keep = |folder: &Path| {
        let mut command = Command::new(OROSHI);
        command.arg("keep").arg("--output").arg(bench.path("output")).arg("--folder").arg(folder);
        common::to_the_end(command)
    };
    let existing = bench.path("oroshi-existing");
    fs::create_dir(&existing).unwrap();
    for (folder, why) in
        [(&existing, "could not make the folder"), (&bench.path("other"), "a name that begins with oroshi-")]
    {
        let ran = keep(folder);
        assert!(ran.code == Some(1) && ran.out.starts_with("failed\t") && ran.out.contains(why), "{ran:?}");
    }
    assert!(existing.exists() && !bench.path("other").exists());
    // Its standard input is closed from the start.
    let own = bench.path("oroshi-own");
    let ran = keep(&own);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "ready\ndone\t0\n"));
    assert!(!own.exists());
}

#[test]
fn a_keeper_that_is_none_is_told() {
    let mut bench = Bench::new();
    for (keeper, why) in [
        ("/no/such/keeper", "could not start"),
        ("true", "did not begin to keep processes"),
        ("echo", "said `--output"),
    ] {
        bench.keeper = vec![keeper.into()];
        let error = bench.start(&script("exit")).unwrap_err();
        assert!(matches!(error, StartError::Keeper(_)) && error.to_string().contains(why), "{keeper}: {error}");
    }
}
