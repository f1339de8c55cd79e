#!/usr/bin/env python3
"""Runs the test programs of the workspace, the tests of the scripts, and with --gem those of the gem, whose builds are in
the folder TARGET; several at a time.

    scripts/run_tests.py [--gem TARGET]

Most tests wait for processes and sockets: side by side they take half the time that `cargo test` takes, which runs one
program after another. Each program's output is printed whole when the program is done. Exit code 1: something failed.
"""

import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

# Those that take longest begin first, so that none is left alone at the end.
LONGEST = ["measure", "package", "serve", "supervise", "native_wire", "isucon4", "native_endurance", "all", "pages"]

# A program that runs for so many seconds hangs, and is killed. The slowest one takes a quarter of it. scripts/test ends
# a run that is silent for longer than that, and could not tell which program it was.
MOST_SECONDS = int(os.environ.get("OROSHI_TEST_MOST", "800"))


def main():
    jobs = [("doc tests", ["cargo", "test", "--workspace", "--locked", "--doc", "--no-fail-fast"], pathlib.Path("."), {})]
    jobs.append(("scripts", ["python3", "-B", "-m", "unittest", "discover", "-s", "scripts", "-p", "test_*.py"], pathlib.Path("."), {}))
    jobs += programs()
    if len(sys.argv) == 3 and sys.argv[1] == "--gem":
        jobs += gem_files(sys.argv[2])
    place = {name: number for number, name in enumerate(LONGEST)}
    jobs.sort(key=lambda job: place.get(job[0].split(": ")[-1], len(LONGEST)))
    # One more than CPUs: most of the time most of them wait.
    at_once = min(6, len(os.sched_getaffinity(0)) + 1)
    failed = []
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for name, code, output, seconds in as_done(pool, jobs):
            print(f"-- {name}\n{output}   ({seconds:.1f} s)\n", flush=True)
            if code != 0:
                failed.append(f"{name} (exit code {code})")
    for name in failed:
        print(f"error: {name}")
    sys.exit(1 if failed else 0)


def as_done(pool, jobs):
    """Yields the results in the order in which the jobs end."""
    for future in concurrent.futures.as_completed([pool.submit(run, *job) for job in jobs]):
        yield future.result()


def run(name, command, folder, more):
    """Runs a command to its end; returns its name, exit code, output and how many seconds it took."""
    begun = time.monotonic()
    # A file: a pipe would be read until the last process that has it ends, whatever a test left behind. With a name:
    # tests count the open files that have none.
    with tempfile.NamedTemporaryFile() as printed:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | more,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
        try:
            code, reason = process.wait(MOST_SECONDS), ""
        except subprocess.TimeoutExpired:
            reason = f"error: {name} was killed, because it ran for over {MOST_SECONDS} seconds. Its threads and processes:\n"
            code, reason = -signal.SIGKILL, reason + processes(process.pid)
            process.kill()
            process.wait()
        printed.seek(0)
        output = printed.read().decode(errors="replace")
    return name, code, output + reason, time.monotonic() - begun


def processes(ancestor):
    """Lists the threads of a process and of its descendants, with the kernel function in which each waits."""
    listed = subprocess.run(
        ["ps", "-eLo", "pid,ppid,lwp,stat,wchan:24,comm,args"], stdout=subprocess.PIPE, text=True, check=False
    ).stdout.splitlines()
    family, lines = {ancestor}, []
    for line in listed[1:]:
        pid, parent = (int(field) for field in line.split(maxsplit=2)[:2])
        if pid in family or parent in family:
            family.add(pid)
            lines.append(line[:200])
    return "\n".join(listed[:1] + lines) + "\n"


def programs():
    """Builds the tests, and returns them as jobs."""
    built = subprocess.run(
        ["cargo", "test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
    )
    if built.returncode != 0:
        sys.exit(built.returncode)
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    tests = [message for message in messages if message.get("executable") and message["profile"]["test"]]
    tests.sort(key=lambda test: test["executable"])
    return [job(test) for test in tests]


def gem_files(target):
    """Returns the gem's test files as jobs.

    Each runs in a Ruby of its own. In one Ruby with all of them, tests that collect garbage all the time take ten times as
    long, because the heap is that much larger.
    """
    folder = pathlib.Path("ruby")
    files = sorted(folder.glob("test/*_test.rb"))
    command = ["ruby", "-I", "lib", "-I", "test"]
    more = {"CARGO_TARGET_DIR": target}
    # Verbose: the name of a test is printed before it runs, which tells of one that hangs.
    return [
        (f"gem: {file.name.removesuffix('_test.rb')}", [*command, str(file.relative_to(folder)), "--verbose"], folder, more)
        for file in files
    ]


def job(test):
    """Turns cargo's message about a test program into a job."""
    folder = pathlib.Path(test["manifest_path"]).parent
    # As `cargo test` does it, for test programs alone: cargo itself would see a change of ring's environment, and build ring
    # and all that uses it again.
    place = {"CARGO_MANIFEST_DIR": str(folder.resolve())}
    return f"{folder.name}: {test['target']['name']}", [test["executable"]], folder, place


if __name__ == "__main__":
    main()
