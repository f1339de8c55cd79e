#!/usr/bin/env python3
"""Runs the test programs of the workspace, and with --gem those of the gem, whose builds are in the folder
TARGET; several at a time.

    scripts/run_tests.py [--gem TARGET]

Most tests wait for processes and sockets: side by side they take half the time that `cargo test` takes, which runs one
program after another. Each program's output is printed whole when the program is done. Exit code 1: something failed.
"""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time

# Those that take longest begin first, so that none is left alone at the end.
LONGEST = ["measure", "package", "serve", "supervise", "native_wire", "isucon4", "native_endurance", "all", "pages"]


def main():
    jobs = [("doc tests", ["cargo", "test", "--workspace", "--locked", "--doc", "--no-fail-fast"], pathlib.Path("."), {})]
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
    environment = os.environ | more
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return name, done.returncode, done.stdout.decode(errors="replace"), time.monotonic() - begun


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
    return [
        (f"gem: {file.name.removesuffix('_test.rb')}", [*command, str(file.relative_to(folder))], folder, {"CARGO_TARGET_DIR": target})
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
