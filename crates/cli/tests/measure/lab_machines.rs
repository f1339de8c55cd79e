//! Experiments with machines: servers and loads in network namespaces of their own. Needs root and iproute2.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use oroshi_lab::{LabResult, Metric};
use oroshi_net::NetworkNamespace;
use oroshi_testkit::{need, skipped, test_name, wait_for, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::{OROSHI, Ran};
use crate::lab_files::{folder, lab};

/// Whether machines can be made here; otherwise notes that the test was left out.
fn is_possible(test: &str) -> bool {
    let Err(error) = NetworkNamespace::new() else { return need(test, "ip").and_then(|_| need(test, "tc")).is_some() };
    skipped(test, &format!("no network namespace can be made: {error}"));
    false
}

/// The beginning of each experiment here, with these lines in `[network]`.
fn experiment(network: &str, rest: &str) -> String {
    format!(
        "title = \"Machines\"\nmetrics = [\"rps\", \"p50\"]\nblocks = 3\ndisturbed = \"100%\"\ncpus = \"any\"\n\
         blocks-per-start = \"all\"\n[network]\nmachines = [\"server\", \"load\"]\n{network}\n{rest}"
    )
}

/// Runs an experiment in a folder; its result is in `out`.
fn run(folder: &TempDir) -> Ran {
    lab(folder.path(), &["run", "machines.toml", "--out", "out"])
}

/// The report, without its line breaks.
fn words(ran: &Ran) -> String {
    ran.out.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn result(folder: &TempDir) -> LabResult {
    serde_json::from_str(&fs::read_to_string(folder.path().join("out/result.json")).unwrap()).unwrap()
}

#[test]
fn the_server_counts_the_requests_of_the_other_machine() {
    let test = test_name!("the_server_counts_the_requests_of_the_other_machine");
    if !is_possible(test) || need(test, "nginx").is_none() {
        return;
    }
    let load = "[load]\ncommand = \"{{oroshi}} bench -c 4 -n 500 --format ab {{url}}load\"\n\
        figures.rps = 'Requests per second: +(\\S+)'\nrequests = 'Complete requests: +(\\d+)'\n\
        warmup = \"0s\"\n";
    let server = "[[server]]\nname = \"nginx\"\nstart = \"nginx -p {{dir}} -e stderr -c nginx.conf\"\nstop = \"QUIT\"\n\
        files.\"nginx.conf\" = \"\"\"\ndaemon off; pid nginx.pid; worker_processes 1; events {}\n\
        http { log_format who '$remote_addr $uri'; access_log FOLDER/access.log who; keepalive_requests 1000000;\n\
        server { listen {{ip.server}}:{{port}}; location / { return 200 'hello'; } } }\n\"\"\"\n";
    let variant = |name| {
        format!(
            "[[variant]]\nname = \"{name}\"\nserver = \"nginx\"\nurl = \"http://{{{{ip.server}}}}:{{{{port}}}}/\"\n"
        )
    };
    let folder = folder(&[]);
    let server = server.replace("FOLDER", folder.path().to_str().unwrap());
    let near = variant("near") + "load.machine = \"server\"\n";
    let text = experiment("", &[load, &server, &variant("far"), &near].concat());
    fs::write(folder.path().join("machines.toml"), text).unwrap();
    // nginx's workers may be another user's.
    let ran = run(&folder);
    assert!(words(&ran).contains("Network server (198.18.0.1) and load (198.18.0.2), network namespaces"), "{ran:?}");
    let result = result(&folder);
    let network = result.network.unwrap();
    assert_eq!((&*network.machines[0].name, &*network.machines[1].ip), ("server", "198.18.0.2"));
    let [cell] = &result.cells[..] else { panic!("{:?}", result.cells) };
    let answered = |variant: usize| {
        let runs = cell.runs.iter().filter(|run| run.variant == variant);
        runs.map(|run| run.command.as_ref().unwrap().requests.unwrap()).sum::<f64>()
    };
    let log = fs::read_to_string(folder.path().join("access.log")).unwrap();
    let seen = |ip: &str| log.lines().filter(|line| *line == format!("{ip} /load")).count();
    assert_eq!((seen("198.18.0.2"), seen("198.18.0.1")), (1500, 1500), "{ran:?}");
    assert_eq!((answered(0), answered(1)), (1500.0, 1500.0));
    // The server's CPU time is known, although it runs elsewhere.
    assert!(cell.runs.iter().all(|run| run.figures.contains_key(&Metric::Memory)), "{:?}", cell.runs[0].figures);
    let html = fs::read_to_string(folder.path().join("out/report.html")).unwrap();
    assert!(html.contains("server (198.18.0.1) and load (198.18.0.2)"));
}

/// The network namespace of a process.
fn namespace(process: &Path) -> Option<PathBuf> {
    fs::read_link(process.join("ns/net")).ok()
}

/// The namespaces of all processes that are visible.
fn namespaces() -> BTreeSet<PathBuf> {
    fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| namespace(&entry.path())).collect()
}

/// Watches whether the kernel has removed a namespace, without keeping it: gives it a number in this namespace, which
/// ends with it.
struct NamespaceWatch(u32);

impl NamespaceWatch {
    fn of(pid: &str) -> Self {
        let number = fastrand::u32(1_000_000..1_000_000_000);
        let name = format!("oroshi-test-{number}");
        for args in [["attach", &*name, pid], ["set", &name, &number.to_string()]] {
            let ip = Command::new("ip").arg("netns").args(args).output().unwrap();
            assert!(ip.status.success(), "{ip:?}");
        }
        let ip = Command::new("ip").args(["netns", "del", &name]).output().unwrap();
        assert!(ip.status.success(), "{ip:?}");
        let watch = Self(number);
        assert!(watch.is_there(), "the number lives on without the name");
        watch
    }

    fn is_there(&self) -> bool {
        let ip = Command::new("ip").args(["netns", "list-id"]).output().unwrap();
        assert!(ip.status.success(), "{ip:?}");
        let words = format!("nsid {} ", self.0);
        String::from_utf8(ip.stdout).unwrap().lines().any(|line| format!("{line} ").starts_with(&words))
    }
}

/// An experiment whose load runs until the file `go` exists.
fn until_told() -> TempDir {
    let script = |text: &str| format!("[\"sh\", \"-c\", \"echo $$ > FOLDER/{text}\"]");
    let load =
        script("load.new; mv FOLDER/load.new FOLDER/load; while [ ! -e FOLDER/go ]; do sleep 0.01; done; echo rps 5");
    let start = script("server; exec {{oroshi}} target --threads 1 --listen {{ip.server}}:{{port}}");
    let variant = |name| {
        format!(
            "[[variant]]\nname = \"{name}\"\nserver = \"target\"\nurl = \"http://{{{{ip.server}}}}:{{{{port}}}}/\"\n"
        )
    };
    let rest = format!(
        "[load]\ncommand = {load}\nfigures.rps = 'rps (\\S+)'\ntimeout = \"10m\"\nwarmup = \"20ms\"\n\
         [[server]]\nname = \"target\"\nstart = {start}\n{}{}",
        variant("a"),
        variant("b"),
    );
    let folder = folder(&[]);
    let text = experiment("rate = \"1Gbit\"", &rest).replace("FOLDER", folder.path().to_str().unwrap());
    fs::write(folder.path().join("machines.toml"), text).unwrap();
    folder
}

#[test]
fn no_machine_remains_after_success_ctrl_c_and_kill() {
    let test = test_name!("no_machine_remains_after_success_ctrl_c_and_kill");
    if !is_possible(test) {
        return;
    }
    let ends = [(None, (Some(0), None)), (Some(Signal::INT), (Some(130), None)), (Some(Signal::KILL), (None, Some(9)))];
    for (end, code) in ends {
        let folder = until_told();
        let mut command = Command::new(OROSHI);
        command.current_dir(folder.path()).args(["lab", "run", "machines.toml", "--out", "out"]);
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let pid = |name: &str| {
            let read = || fs::read_to_string(folder.path().join(name)).ok();
            wait_for(|| format!("the process id of {name}"), read).trim().to_owned()
        };
        let (load, server) = (pid("load"), pid("server"));
        let found = [&load, &server].map(|pid| namespace(&Path::new("/proc").join(pid)).unwrap());
        let own = namespace(Path::new("/proc/self")).unwrap();
        assert!(found[0] != found[1] && !found.contains(&own), "{found:?}");
        let watches = [&load, &server].map(|pid| NamespaceWatch::of(pid));
        match end {
            None => fs::write(folder.path().join("go"), "").unwrap(),
            Some(signal) => kill_process(Pid::from_child(&process), signal).unwrap(),
        }
        let status = wait_for(|| format!("the end after {end:?}"), || process.try_wait().unwrap());
        // Ctrl-C comes before the first run is over.
        assert_eq!((status.code(), status.signal()), code);
        wait_until("the end of all processes on the machines", || namespaces().is_disjoint(&found.clone().into()));
        wait_until("the end of the machines", || !watches.iter().any(NamespaceWatch::is_there));
    }
}

/// An experiment with `oroshi target` on the other machine.
fn target(network: &str, flags: &str) -> TempDir {
    let variant = |name| {
        format!(
            "[[variant]]\nname = \"{name}\"\nserver = \"target\"\nurl = \"http://{{{{ip.server}}}}:{{{{port}}}}/\"\n"
        )
    };
    let rest = format!(
        "[load]\nconnections = 1\nduration = \"200ms\"\nwarmup = \"20ms\"\n[[server]]\nname = \"target\"\n\
         start = \"{{{{oroshi}}}} target --threads 1 {flags} --listen {{{{ip.server}}}}:{{{{port}}}}\"\n{}{}",
        variant("a"),
        variant("b"),
    );
    folder(&[("machines.toml", &experiment(network, &rest))])
}

/// The shortest of all runs' median response times, ns.
fn shortest(result: &LabResult) -> f64 {
    result.cells[0].runs.iter().map(|run| run.figures[&Metric::P50]).fold(f64::INFINITY, f64::min)
}

#[test]
fn a_link_lets_no_more_through_than_its_rate() {
    if !is_possible(test_name!("a_link_lets_no_more_through_than_its_rate")) {
        return;
    }
    // A megabyte per second: 100 kB take 100 ms, less what the link lets through at once.
    let folder = target("rate = \"8Mbit\"", "--size 100000");
    let ran = run(&folder);
    let result = result(&folder);
    assert!(shortest(&result) >= 80e6, "{}: {ran:?}", shortest(&result));
    assert!(words(&ran).contains("link of 8 Mbit/s"), "{ran:?}");
}

#[test]
fn every_two_machines_have_a_link_of_their_own() {
    if !is_possible(test_name!("every_two_machines_have_a_link_of_their_own")) {
        return;
    }
    let place = |name: &str| {
        format!(
            "[[variant]]\nname = \"{name}\"\nmachine = \"{name}\"\nurl = \"http://{{{{ip.{name}}}}}:{{{{port}}}}/\"\n\
             start = \"{{{{oroshi}}}} target --threads 1 --size 100000 --listen {{{{ip.{name}}}}}:{{{{port}}}}\"\n"
        )
    };
    let load = "[[network.link]]\nmachines = [\"load\", \"far\"]\nrate = \"8Mbit\"\n\
        [load]\nconnections = 1\nduration = \"200ms\"\nwarmup = \"20ms\"\n";
    let text = experiment("", &[load, &place("near"), &place("far")].concat())
        .replace("[\"server\", \"load\"]", "[\"near\", \"far\", \"load\"]");
    let folder = folder(&[("machines.toml", &text)]);
    let ran = run(&folder);
    let result = result(&folder);
    let cell = result.cells.first().unwrap_or_else(|| panic!("{ran:?}"));
    let p50 = |variant: usize| cell.variants[variant].figures[&Metric::P50].estimate;
    assert!(p50(1) >= 80e6 && p50(0) < p50(1), "{} and {}: {ran:?}", p50(0), p50(1));
    assert!(
        words(&ran).contains("near to load: link without limit or delay; far to load: link of 8 Mbit/s"),
        "{ran:?}"
    );
}

#[test]
fn a_link_delays_both_ways() {
    let test = test_name!("a_link_delays_both_ways");
    if !is_possible(test) {
        return;
    }
    let folder = target("delay = \"10ms\"\nrate = \"1Gbit\"", "");
    let ran = run(&folder);
    if ran.code == Some(1) && ran.err.contains("this kernel has no sch_netem, which `delay` in [network] needs") {
        assert!(!folder.path().join("out/result.json").exists(), "nothing was measured");
        return skipped(test, "the kernel has no sch_netem, and lab said so");
    }
    let result = result(&folder);
    assert!(shortest(&result) >= 20e6, "{}: {ran:?}", shortest(&result));
}

#[test]
fn without_root_the_next_step_is_told() {
    let test = test_name!("without_root_the_next_step_is_told");
    if !is_possible(test) || need(test, "setpriv").is_none() {
        return;
    }
    let folder = target("", "");
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin", OROSHI, "lab", "run", "machines.toml"]);
    let ran = oroshi_testkit::process::to_the_end({
        command.current_dir(folder.path());
        command
    });
    ran.said(1, &["the machines of [network] need root", "run oroshi with sudo"]);
}

#[test]
fn mistakes_with_machines_are_told_at_once() {
    let text = experiment(
        "delay = \"soon\"",
        "[load]\nconnections = 1\nmachine = \"laod\"\n\
         [[server]]\nname = \"a\"\nmachine = \"data\"\nstart = \"nginx {{ip.sever}}:{{port}}\"\n\
         [[server]]\nname = \"b\"\nstart = \"nginx {{port}}\"\n\
         [[variant]]\nname = \"a\"\nserver = \"a\"\nurl = \"http://{{ip.server}}:{{port}}/\"\n\
         [[variant]]\nname = \"b\"\nserver = \"b\"\nurl = \"http://127.0.0.1:{{port}}/\"\nload.machine = \"load\"\n\
         [[variant]]\nname = \"c\"\nurl = \"http://192.0.2.1/\"\n",
    );
    let ran = lab(folder(&[("machines.toml", &text)]).path(), &["check", "machines.toml"]);
    ran.said(
        2,
        &[
            "machines.toml line 9: network.delay: `soon` is no time",
            "machines.toml line 12: load.machine: [network] has no machine `laod`: did you mean `load`?",
            "[network] has no machine `data`",
            "`{{ip.sever}}` is unknown (did you mean {{ip.server}}?)",
            "`127.0.0.1` is the machine `load` itself, where the load runs: expected the server's, {{ip.server}}",
            "it has no server, and the machines of [network] reach nothing but each other: describe the server",
        ],
    );
    let none = text.replace("[network]\nmachines = [\"server\", \"load\"]\ndelay = \"soon\"\n", "");
    let ran = lab(folder(&[("machines.toml", &none)]).path(), &["check", "machines.toml"]);
    ran.said(2, &["there is no [network]: expected `machines = [\"server\", \"load\"]` in it"]);
}
