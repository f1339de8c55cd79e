"""The measurements. Each function returns plain data for the report; `Session.problems` collects failures."""

import re
import shutil
import statistics
import sys
from dataclasses import dataclass, field

from . import oroshi, tools
from .child import Failed, run
from .machine import Neighbours
from .nginx import HOSTS, Nginx
from .tools import Load


@dataclass
class Session:
    """One invocation: the server, the tools, and how hard to look."""

    nginx: Nginx
    tools: list
    load_cpu: int
    connections: int
    seconds: int
    rounds: int
    problems: list = field(default_factory=list)

    def load(self, case, tool=None, connections=None, seconds=None) -> Load:
        host = HOSTS[self.tools.index(tool) % len(HOSTS)] if tool else HOSTS[0]
        return Load(
            case, host, self.nginx.port, self.nginx.socket, connections or self.connections, seconds or self.seconds
        )

    def tool(self, name):
        return next((tool for tool in self.tools if tool.name == name), None)

    def attempt(self, what, function, *arguments, **options):
        """The function's result, or None and a problem on record. One tool's failure does not end the others' work."""
        print(f"  {what}", file=sys.stderr, flush=True)
        try:
            return function(*arguments, **options)
        except Failed as problem:
            print(f"    failed: {problem}", file=sys.stderr)
            self.problems.append(f"{what}: {problem}")
            return None


def startup_costs(session) -> dict:
    """CPU seconds that each program needs merely to start and end: the median of five."""
    costs = {}
    for tool in session.tools:
        idle = [session.attempt(f"start {tool.name}", _start, session, tool) for _ in range(5)]
        costs[tool.name] = statistics.median([cost for cost in idle if cost is not None] or [0.0])
    return costs


def compare(session, case, startup) -> list:
    """The tools in turn, round after round, each round beginning with the next one. Returns the runs."""
    able = [tool for tool in session.tools if case in tool.cases]
    runs = []
    for turn in range(session.rounds):
        shift = turn % len(able)
        for tool in able[shift:] + able[:shift]:
            what = f"{case}, round {turn + 1} of {session.rounds}: {tool.name}"
            measured = session.attempt(what, _measure, session, tool, session.load(case, tool), startup[tool.name])
            if measured:
                runs.append({"round": turn + 1, "tool": tool.name, **measured})
    return runs


def syscalls(session, case) -> dict:
    """Per tool: system calls per request, and user-space instructions per request where the processor counts them."""
    perf = _perf_events()
    counted = {}
    for tool in session.tools:
        if case not in tool.cases:
            continue
        load = session.load(case, tool, seconds=min(2, session.seconds))
        found = session.attempt(f"{case}, syscalls: {tool.name}", _count_syscalls, session, tool.command(load), perf)
        if found:
            counted[tool.name] = found
    return counted


def memory(session, connections, durations) -> list:
    """oroshi's peak memory at many connections, for each duration: it must not grow with the run."""
    tool, found = session.tool("oroshi"), []
    for seconds in durations:
        load = session.load("tcp-kept", tool, connections, seconds)
        what = f"memory: {connections} connections, {seconds} s"
        measured = session.attempt(what, _measure, session, tool, load, 0.0)
        if measured:
            found.append({"connections": connections, "seconds": seconds, **measured})
    return found


def lateness(session, rate):
    """Measures how late oroshi sends requests when `rate` of them are due per second, on one processor."""
    tool = session.tool("oroshi")
    load = session.load("tcp-kept", tool)
    command = tools.oroshi_open_loop(tool.program, load, rate)
    what = f"lateness: {rate} requests per second"
    ended = session.attempt(what, run, command, session.load_cpu, load.seconds + 60)
    if ended is None:
        return None
    late = session.attempt(f"{what}, report", lambda: oroshi.lateness(oroshi.parse(ended.stdout)))
    return late and {"rate": rate, "seconds": load.seconds, "command": command, "cpu": ended.cpu / ended.wall, **late}


def fidelity(session):
    """Measures oroshi's own figures against servers of known delay. It chooses its own processors."""
    command = tools.oroshi_self_test(session.tool("oroshi").program)
    ended = session.attempt("fidelity", run, command, None, 600)
    return ended and {"command": command, "output": ended.stdout}


def _start(session, tool) -> float:
    return run(tool.program + tool.idle, session.load_cpu, 10, tool.idle_codes).cpu


def _measure(session, tool, load, startup) -> dict:
    """Makes one run: its cost by the kernel's account, over the requests by the server's."""
    command = tool.command(load)
    neighbours = Neighbours((session.load_cpu, session.nginx.cpu))
    before = session.nginx.counts()
    ended = run(command, session.load_cpu, load.seconds + 60)
    served = session.nginx.counts() - before
    _check(load, served)
    if tool.name == "oroshi":
        _check_word(load, served, oroshi.completed(oroshi.parse(ended.stdout)))
    cpu = max(0.0, ended.cpu - startup)
    return {
        "command": command,
        "requests": served.requests,
        "accepted": served.accepted,
        "wall": round(ended.wall, 4),
        "user": ended.user,
        "system": ended.system,
        "startup": startup,
        "peak_bytes": ended.peak_bytes,
        "requests_per_second": round(served.requests / ended.wall, 1),
        "us_per_request": round(cpu * 1e6 / served.requests, 4),
        "server_us_per_request": round(served.worker_cpu * 1e6 / served.requests, 4),
        **neighbours.since(ended.cpu + served.worker_cpu),
    }


def _check(load, served):
    """That the tool did what the case says. A tool may open a spare connection to look around first."""
    if served.requests < load.connections:
        raise Failed(f"the server saw {served.requests} requests on {load.connections} connections")
    if load.close and served.accepted < 0.99 * served.requests:
        raise Failed(f"{served.requests} requests on {served.accepted} connections: it kept them")
    if not load.close and served.accepted > 1.1 * load.connections + 10:
        raise Failed(f"{served.accepted} connections instead of {load.connections}: it did not keep them")


def _check_word(load, served, completed):
    """That oroshi counted as the server did. The last request of each connection may be cut off on its way."""
    if not 0 <= served.requests - completed <= load.connections:
        raise Failed(f"oroshi says that {completed} requests were answered, and nginx counted {served.requests}")


def _count_syscalls(session, command, perf) -> dict:
    """With perf, which disturbs little; else with strace, which slows the program so that it waits less often."""
    log = f"{session.nginx.home}/counted"
    if perf:
        observer = [shutil.which("perf"), "stat", "-x,", "-e", ",".join(perf), "-o", log, "--"]
    elif shutil.which("strace"):
        observer = [shutil.which("strace"), "-c", "-f", "-o", log]
    else:
        raise Failed("neither perf nor strace is installed: sudo scripts/setup bench")
    before = session.nginx.counts()
    run(observer + command, session.load_cpu, 120)
    requests = (session.nginx.counts() - before).requests
    if requests <= 0:
        raise Failed("the server saw no request")
    with open(log) as file:
        text = file.read()
    found = perf_counts(text) if perf else {"syscalls": strace_total(text)}
    per_request = {f"{name}_per_request": round(count / requests, 3) for name, count in found.items()}
    return {"by": "perf" if perf else "strace", "requests": requests, **per_request}


_EVENTS = {"raw_syscalls:sys_enter": "syscalls", "instructions:u": "instructions"}


def _perf_events() -> list:
    """Those of our events that perf can count here. Without system calls there is no use in perf."""
    if not shutil.which("perf"):
        return []
    usable = []
    for event in _EVENTS:
        try:
            probe = run(["perf", "stat", "-x,", "-e", event, "true"], None, 10)
        except Failed:
            continue
        if perf_counts(probe.stderr):
            usable.append(event)
    return usable if "raw_syscalls:sys_enter" in usable else []


def perf_counts(text) -> dict:
    """The counters in the output of `perf stat -x,`, by our names, without those that were not counted."""
    counts = {}
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) > 2 and fields[2] in _EVENTS and fields[0].isdigit():
            counts[_EVENTS[fields[2]]] = int(fields[0])
    return counts


def strace_total(text) -> int:
    """The calls in the table of `strace -c`: share, seconds, microseconds per call, calls, errors if any, name."""
    rows = [line.split() for line in text.splitlines() if re.match(r"\s*\d+\.\d\d\s", line)]
    return sum(int(row[3]) for row in rows if row[-1] != "total")
