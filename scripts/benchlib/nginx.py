"""The server under load: an nginx of our own, one worker on one processor, answering twelve bytes."""

import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass

from .child import Failed

CONFIG = """
daemon off;
pid {home}/nginx.pid;
error_log {home}/error.log warn;
worker_processes 1;
worker_rlimit_nofile {files};
events {{ worker_connections {files}; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
    default_type text/plain;
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi;
    scgi_temp_path {home}/scgi;
    server {{
        {listens}
        listen unix:{home}/nginx.sock backlog=4096;
        location / {{ return 200 "hello world\\n"; }}
    }}
    server {{
        listen unix:{home}/status.sock;
        location / {{ stub_status; }}
    }}
}}
"""

# One loopback address per tool, so that no tool finds its ports in another's TIME_WAIT.
HOSTS = [f"127.0.0.{last}" for last in range(1, 9)]


@dataclass(frozen=True)
class Counts:
    """Counts what nginx has done since it started, without our own questions."""

    accepted: int
    requests: int
    worker_cpu: float

    def __sub__(self, before: "Counts") -> "Counts":
        """Returns the difference of two counts."""
        return Counts(
            self.accepted - before.accepted, self.requests - before.requests, self.worker_cpu - before.worker_cpu
        )


class Nginx:
    """A context manager: nginx runs inside the `with`, and never after it."""

    def __init__(self, cpu):
        self.cpu = cpu
        self.program = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
        if not self.program:
            raise Failed("nginx is missing: `sudo scripts/setup bench` installs it")
        built = subprocess.run([self.program, "-V"], stderr=subprocess.PIPE, text=True, check=True).stderr
        if "http_stub_status_module" not in built:
            raise Failed(f"{self.program} was built without stub_status, which counts the requests")
        self.version = built.splitlines()[0].removeprefix("nginx version: ")
        self.home = self.process = self.port = self._worker = None
        self.asked = 0

    @property
    def socket(self) -> str:
        return f"{self.home}/nginx.sock"

    def __enter__(self) -> "Nginx":
        self.home = tempfile.mkdtemp(prefix="oroshi-bench-")
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def counts(self) -> Counts:
        """Its counters, once it has nothing left to do.

        What a tool leaves behind when it ends, requests unread and connections not yet accepted, is still counted, and
        belongs to that tool: without this wait a starved nginx would count it for the next one.
        """
        deadline = time.monotonic() + 10
        idle, last = self._ask()
        while time.monotonic() < deadline:
            time.sleep(0.05)
            idle, now = self._ask()
            if idle and (now.accepted, now.requests) == (last.accepted, last.requests):
                return now
            last = now
        raise Failed("nginx is still at work 10 s after the load has ended")

    def _ask(self):
        """Returns whether ours is its only connection, and its counters."""
        with socket.socket(socket.AF_UNIX) as status:
            status.settimeout(10)
            status.connect(f"{self.home}/status.sock")
            self.asked += 1
            status.sendall(b"GET / HTTP/1.0\r\n\r\n")
            text = b"".join(iter(lambda: status.recv(4096), b"")).decode()
        accepted, _, requests = text.split("requests\n", 1)[1].split()[:3]
        counts = Counts(int(accepted) - self.asked, int(requests) - self.asked, _cpu_seconds(self._worker))
        return "Active connections: 1 " in text, counts

    def _start(self):
        self.port = _free_port()
        config = f"{self.home}/nginx.conf"
        listens = "\n        ".join(f"listen {host}:{self.port} backlog=4096;" for host in HOSTS)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        files = 65536 if files == resource.RLIM_INFINITY else min(files, 65536)
        with open(config, "w") as file:
            file.write(CONFIG.format(home=self.home, files=files, listens=listens))
        # Before it has read the configuration, nginx writes to its built-in log, which is not ours.
        self.process = subprocess.Popen(
            [self.program, "-c", config],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, {self.cpu}),
        )
        deadline = time.monotonic() + 10
        while True:
            try:
                self._worker = self._find_worker()
                self._ask()
                return
            except (OSError, IndexError):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise Failed(f"nginx did not start:\n{self._log()}") from None
                time.sleep(0.02)

    def _find_worker(self) -> int:
        master = self.process.pid
        with open(f"/proc/{master}/task/{master}/children") as children:
            return int(children.read().split()[0])

    def _log(self) -> str:
        try:
            with open(f"{self.home}/error.log") as log:
                return log.read()
        except OSError:
            return "(it left no log)"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _cpu_seconds(pid) -> float:
    """User and system time of a process, in steps of a clock tick (10 ms)."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
