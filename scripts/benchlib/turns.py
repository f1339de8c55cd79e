"""Programs that take turns, and the CPU time and memory of their processes."""

import math
import os
import pathlib
import resource
import signal
import socket
import statistics
import subprocess
import time

os.environ["PATH"] += ":/usr/sbin:/sbin"

NGINX = """daemon off; worker_processes 1; pid {folder}/{name}.pid; error_log {folder}/{name}.log;
events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 1000000000; http2_max_concurrent_streams 1000;
client_body_temp_path {folder}/tmp; proxy_temp_path {folder}/tmp; fastcgi_temp_path {folder}/tmp;
uwsgi_temp_path {folder}/tmp; scgi_temp_path {folder}/tmp;
{http} }}
"""


class Running:
    """The servers of a comparison."""

    def __init__(self, folder):
        self.folder, self.processes = folder, []

    def start(self, cpu, command, port):
        ended = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen(["taskset", "-c", str(cpu), *command], **ended)
        self.processes.append(server)
        until_it_listens(port, server)
        return server

    def nginx(self, cpu, name, port, http):
        path = pathlib.Path(self.folder, f"{name}.conf")
        path.write_text(NGINX.format(folder=self.folder, name=name, http=http))
        return self.start(cpu, ["nginx", "-e", f"{self.folder}/{name}.log", "-c", path], port)

    def end(self):
        for server in self.processes:
            server.send_signal(signal.SIGTERM)
            server.wait()


def in_turn(options, names, run):
    results = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            results[name].append(run(name))
    return results


def report(results):
    first = next(iter(results))
    for name, runs in results.items():
        ratios = sorted(own / other for own, other in zip(results[first], runs))
        low, high = interval(ratios)
        ratio = f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f}) of it"
        every = " ".join(f"{run:.2f}" for run in runs)
        print(f"{name}: {statistics.median(runs):.2f} us/request; {first} is {ratio}; runs: {every}")


def interval(values):
    """Returns the interval of the median of sorted values, of at least 95 % if there are six values or more."""
    count = len(values)
    below = 0
    # The median is outside of what is between the two values at this distance from the ends so often.
    while 2 * sum(math.comb(count, rank) for rank in range(below + 2)) / 2**count <= 0.05:
        below += 1
    return values[below], values[-1 - below]


def cpu_ns(pid):
    """Returns the CPU time of a process, its children and all their threads, in nanoseconds."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    tasks = [task for process in (pid, *children) for task in pathlib.Path(f"/proc/{process}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def rss_bytes(pid):
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until_it_listens(port, server):
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.01)
    raise SystemExit(f"{server.args} ended with {server.returncode}")
