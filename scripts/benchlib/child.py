"""Run a program on chosen processors, and say what it cost."""

import os
import re
import resource
import select
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass


class Failed(Exception):
    """A program did not do what it was run for. The message names the program and shows its last words."""


@dataclass(frozen=True)
class Ended:
    """A program that has ended well. Times are seconds of the program and of every child it waited for."""

    wall: float
    user: float
    system: float
    peak_bytes: int
    stdout: str
    stderr: str

    @property
    def cpu(self) -> float:
        return self.user + self.system


def run(command, cpu, allowed, codes=(0,)) -> Ended:
    """Run `command` on processor `cpu` (None: on all), at most `allowed` seconds; its exit code must be in `codes`."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.monotonic()
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                preexec_fn=None if cpu is None else lambda: os.sched_setaffinity(0, {cpu}),
            )
        except OSError as error:
            raise Failed(f"{command[0]}: {error.strerror}") from error
        peak = 0
        handle = os.pidfd_open(child.pid)
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        try:
            while not ended.poll(100):
                peak = max(peak, _peak_bytes(child.pid))
                if time.monotonic() - began > allowed:
                    raise Failed(f"{_shown(command)}: still running after {allowed:.0f} s")
        finally:
            # Also on Ctrl-C: no child outlives this call.
            if not ended.poll(0):
                child.send_signal(signal.SIGKILL)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            os.close(handle)
        wall = time.monotonic() - began
        out.seek(0)
        err.seek(0)
        stdout, stderr = (f.read().decode(errors="replace") for f in (out, err))
    if child.returncode not in codes:
        last = "\n".join((stdout + stderr).strip().splitlines()[-5:])
        raise Failed(f"{_shown(command)}: exit code {child.returncode}\n{last}")
    return Ended(wall, used.ru_utime, used.ru_stime, max(peak, _own_maxrss(used)), stdout, stderr)


def _peak_bytes(pid) -> int:
    """The high-water mark of a process's resident memory, 0 once it has none."""
    try:
        with open(f"/proc/{pid}/status") as status:
            found = re.search(r"^VmHWM:\s+(\d+) kB", status.read(), re.M)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def _own_maxrss(used) -> int:
    """ru_maxrss, unless it may be ours: before its exec a child is a copy of this Python, whose peak stays."""
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used.ru_maxrss * 1024 if used.ru_maxrss > ours else 0


def _shown(command) -> str:
    return " ".join(command)
