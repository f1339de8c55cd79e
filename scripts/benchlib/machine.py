"""The machine of a measurement, and its use by others meanwhile."""

import os
import platform
import subprocess


def choose_processors(load=None, server=None):
    """The processors of the load and of the server: two physical cores where there are two. Returns (load, server)."""
    allowed = sorted(os.sched_getaffinity(0))
    load = allowed[-1] if load is None else load
    if server is None:
        elsewhere = [cpu for cpu in allowed if cpu not in _siblings(load)]
        server = (elsewhere or [cpu for cpu in allowed if cpu != load] or [load])[0]
    return load, server


def describe(load, server) -> dict:
    """All that a reader needs to judge the figures, without the machine's name."""
    return {
        "processor": _first("/proc/cpuinfo", "model name") or platform.machine(),
        "processors": os.cpu_count(),
        "hypervisor": "hypervisor" in (_first("/proc/cpuinfo", "flags") or "").split(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "system": (_first("/etc/os-release", "PRETTY_NAME", "=") or "unknown").strip('"'),
        "governor": _read(f"/sys/devices/system/cpu/cpu{load}/cpufreq/scaling_governor"),
        "port_range": _read("/proc/sys/net/ipv4/ip_local_port_range"),
        "tcp_tw_reuse": _read("/proc/sys/net/ipv4/tcp_tw_reuse"),
        "somaxconn": _read("/proc/sys/net/core/somaxconn"),
        "load_processor": load,
        "server_processor": server,
        "load_average_before": os.getloadavg()[0],
        "revision": _revision(),
    }


class Neighbours:
    """Measures how much of our two processors others take, from its creation until it is asked."""

    def __init__(self, cpus):
        self.cpus = set(cpus)
        self.before = self._ticks()

    def since(self, ours) -> dict:
        """`others`: processor seconds spent on processes that are not ours, given the seconds that ours took;
        `stolen`: those that the hypervisor gave to other machines. Both come in clock ticks."""
        busy, stolen = (after - before for after, before in zip(self._ticks(), self.before))
        return {"others": round(max(0.0, busy - ours), 2), "stolen": round(stolen, 2)}

    def _ticks(self):
        """User, nice and system time of our processors, and their steal. Interrupts belong to nobody."""
        busy = stolen = 0
        with open("/proc/stat") as stat:
            for line in stat:
                name, *fields = line.split()
                if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in self.cpus:
                    busy += sum(int(field) for field in fields[:3])
                    stolen += int(fields[7])
        tick = os.sysconf("SC_CLK_TCK")
        return busy / tick, stolen / tick


def _siblings(cpu):
    """The hardware threads that share a core with `cpu`, itself among them."""
    text = _read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)
    shared = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        shared.update(range(int(first), int(last or first) + 1))
    return shared


def _first(path, key, separator=":"):
    for line in (_read(path) or "").splitlines():
        name, _, value = line.partition(separator)
        if name.strip() == key:
            return value.strip()
    return None


def _read(path):
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return None


def _revision():
    """The commit that was measured, marked where the working tree differs from it."""
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        said = subprocess.run(
            ["git", "-C", here, "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True
        )
    except OSError:
        return None
    return said.stdout.strip() or None
