"""The load generators: where they are, and how each is told to do the same work."""

import os
import pathlib
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from typing import Callable

CASES = {
    "tcp-kept": "TCP, connections kept",
    "tcp-new": "TCP, a connection per request",
    "unix-kept": "unix socket, connections kept",
    "unix-new": "unix socket, a connection per request",
    "lua-static": "TCP, kept; a script that sets method, headers and body",
    "lua-request": "TCP, kept; a script whose request() calls wrk.format",
    "lua-response": "TCP, kept; a script whose response() takes status, headers and body",
}

PLAIN = ("tcp-kept", "tcp-new", "unix-kept", "unix-new")
SCRIPTED = ("lua-static", "lua-request", "lua-response")


@dataclass(frozen=True)
class Load:
    """The load for a tool. `host`, `port` and `socket` name the same server."""

    case: str
    host: str
    port: int
    socket: str
    connections: int
    seconds: int

    @property
    def unix(self) -> bool:
        return self.case.startswith("unix")

    @property
    def close(self) -> bool:
        return self.case.endswith("new")

    @property
    def script(self) -> list:
        """The flags that have a script run, for tools that take wrk's."""
        name = self.case.removeprefix("lua-")
        return [] if name == self.case else ["-s", str(pathlib.Path(__file__).resolve().parent / "lua" / f"{name}.lua")]

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/"


@dataclass(frozen=True)
class Tool:
    """A load generator on this machine."""

    name: str
    program: list
    cases: tuple
    arguments: Callable
    # Arguments that make the program start, print something and end: the cost of its start.
    idle: list
    idle_codes: tuple
    version: str

    def command(self, load: Load) -> list:
        return self.program + self.arguments(load)


def find(oroshi, floor):
    """The tools that are here, and for each that is not, why: ([Tool], {name: why})."""
    known = [
        ("floor", shlex.split(floor), PLAIN, _floor, [], (0, 1, 2), None),
        ("oroshi", [oroshi], tuple(CASES), _oroshi, ["--version"], (0,), ["--version"]),
        ("wrk", ["wrk"], ("tcp-kept", "tcp-new", *SCRIPTED), _wrk, ["-v"], (0, 1), ["-v"]),
        ("ab", ["ab"], ("tcp-kept", "tcp-new"), _ab, ["-V"], (0,), ["-V"]),
        ("h2load", ["h2load"], ("tcp-kept", "unix-kept"), _h2load, ["--version"], (0,), ["--version"]),
    ]
    found, missing = [], {}
    for name, program, cases, arguments, idle, codes, version in known:
        path = shutil.which(program[0])
        if not path:
            missing[name] = _remedy(name, program[0])
            continue
        program = [os.path.abspath(path)] + program[1:]
        found.append(Tool(name, program, cases, arguments, idle, codes, _version(program, version)))
    return found, missing


def oroshi_open_loop(program, load: Load, rate) -> list:
    """oroshi at `rate` requests per second, whether or not the answers keep up."""
    return program + ["bench", "-t1", f"-c{load.connections}", f"-d{load.seconds}s", f"-R{rate}", *_JSON, load.url]


def oroshi_self_test(program) -> list:
    """oroshi against its own server of known delays."""
    return program + ["bench", "--self-test"]


_JSON = ["--format", "json"]


def _floor(load):
    address = load.socket if load.unix else f"{load.host}:{load.port}"
    return [address, str(load.connections), str(load.seconds)] + ["close"] * load.close


def _oroshi(load):
    where = ["-P", load.socket] * load.unix + [load.url]
    # The other tools do not watch the server; the cost of that, once per run, is not a request's.
    same = ["--watch", "none"]
    close = ["--close"] * load.close
    kind = ["bench", "-t1", f"-c{load.connections}", f"-d{load.seconds}s", *close, *load.script]
    return [*kind, *same, *_JSON, *where]


def _wrk(load):
    close = ["-H", "Connection: close"] * load.close
    return ["-t1", f"-c{load.connections}", f"-d{load.seconds}s", *close, *load.script, load.url]


def _ab(load):
    # -t alone would stop at 50,000 requests; ab reserves 32 bytes for each request of -n.
    bound = ["-t", str(load.seconds), "-n", str(load.seconds * 300_000)]
    return ["-q", "-d", "-l", "-r", *["-k"] * (not load.close), "-c", str(load.connections), *bound, load.url]


def _h2load(load):
    where = ["-B", f"unix:{load.socket}"] * load.unix + [load.url]
    return ["--h1", "-t1", f"-c{load.connections}", f"-D{load.seconds}", *where]


def _remedy(name, program) -> str:
    if name == "oroshi":
        return f"{program} is not built: cargo build --release --locked -p oroshi"
    if name == "floor":
        return f"{program} is not built: make floor"
    return f"{program} is not installed: sudo scripts/setup bench"


def _version(program, flags) -> str:
    if flags is None:
        return " ".join(program)
    said = subprocess.run(program + flags, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    return said.splitlines()[0].strip() if said else "unknown"
