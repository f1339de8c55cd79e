#!/usr/bin/env python3
"""What a request costs its load generator: oroshi beside wrk, ab, h2load, and the floor under them all.

Every tool in turn drives the same nginx, which answers twelve bytes, over 100 connections: the load on one processor,
nginx's only worker on another. The cost is the tool's own CPU time by the kernel's account, over the requests that
*nginx* counted, so that no tool's word is taken for its own work. Rounds begin with another tool each time; what is
reported is the median of the ratios within a round.

Then oroshi alone: peak memory at many connections, lateness in an open loop, and fidelity to known delays.

Python 3.9 or newer, its standard library, Linux, nginx. Other programs are measured where they are installed
(`scripts/setup bench` installs them) and named where they are not.
"""

import argparse
import datetime
import os
import pathlib
import signal
import sys

from benchlib import machine, report, sections, tools
from benchlib.child import Failed
from benchlib.nginx import Nginx

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))

OTHER_SECTIONS = ("syscalls", "memory", "lateness", "fidelity")
MANY_CONNECTIONS = 10_000
OPEN_LOOP_RATE = 20_000


def main():
    options = parse(sys.argv[1:])
    # TERM ends the server too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench.py: ended by TERM"))
    try:
        result = measure(options)
    except Failed as problem:
        sys.exit(f"bench.py: {problem}")
    except KeyboardInterrupt:
        sys.exit("bench.py: interrupted; nothing was written")
    print(report.markdown(result))
    if options.name:
        path = ROOT / "docs" / "benchmarks" / f"{result['date']}-{options.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        report.write_json(result, path)
        print(f"bench.py: wrote {path.relative_to(ROOT)}", file=sys.stderr)
    if result["problems"]:
        sys.exit(1)


def parse(arguments):
    """The command line, with what --quick shortens filled in."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="a fast look: 2 rounds of 1 s; writes no file unless --name is given")
    add("--long", action="store_true", help="also hold 10,000 connections for ten minutes")
    add("--only", action="append", choices=[*tools.CASES, *OTHER_SECTIONS], help="this part only; may be repeated")
    add("--tools", metavar="A,B", help="these tools only (floor, oroshi, wrk, ab, h2load)")
    add("--rounds", type=int, metavar="N", help="rounds per case (7)")
    add("--seconds", type=int, metavar="N", help="seconds per run (5)")
    add("--connections", type=int, default=100, metavar="N", help="connections (100)")
    add("--oroshi", default=str(TARGET / "release" / "oroshi"), metavar="PATH", help="the oroshi to measure")
    add(
        "--floor",
        default=str(TARGET / "floor" / "release" / "floor"),
        metavar="COMMAND",
        help="another floor: a command that takes ADDRESS CONNECTIONS SECONDS [close]",
    )
    add("--load-cpu", type=int, metavar="CPU", help="the load's processor (the last one)")
    add("--server-cpu", type=int, metavar="CPU", help="nginx's processor (the first on another core)")
    add("--name", help="name of the file: docs/benchmarks/DATE-NAME.json (load-generators)")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (2 if options.quick else 7)
    options.seconds = options.seconds or (1 if options.quick else 5)
    if not options.quick and options.name is None:
        options.name = "load-generators"
    if min(options.rounds, options.seconds, options.connections) < 1:
        parser.error("--rounds, --seconds and --connections are whole numbers from 1 up")
    return options


def measure(options) -> dict:
    """Everything that was asked for and can be done here."""
    load_cpu, server_cpu = machine.choose_processors(options.load_cpu, options.server_cpu)
    found, missing = tools.find(options.oroshi, options.floor)
    if options.tools:
        wanted = options.tools.split(",")
        unknown = sorted(set(wanted) - {tool.name for tool in found} - set(missing))
        if unknown:
            raise Failed(f"--tools: no such tool: {', '.join(unknown)}")
        found = [tool for tool in found if tool.name in wanted]
        missing = {name: why for name, why in missing.items() if name in wanted}
    if not found:
        raise Failed("nothing to measure:\n" + "\n".join(f"  {name}: {why}" for name, why in missing.items()))
    wanted = options.only or [*tools.CASES, *OTHER_SECTIONS]
    cases = [case for case in tools.CASES if case in wanted]

    with Nginx(server_cpu) as nginx:
        session = sections.Session(nginx, found, load_cpu, options.connections, options.seconds, options.rounds)
        if load_cpu == server_cpu:
            session.problems.append("load and server shared one processor: these figures compare little")
        result = {
            "date": datetime.date.today().isoformat(),
            "machine": machine.describe(load_cpu, server_cpu),
            "server": nginx.version,
            "command": ["scripts/bench.py", *sys.argv[1:]],
            "settings": {key: getattr(options, key) for key in ("connections", "rounds", "seconds")},
            "tools": {tool.name: {"version": tool.version, "program": tool.program} for tool in found},
            "missing": missing,
        }
        startup = sections.startup_costs(session)
        runs = {case: sections.compare(session, case, startup) for case in cases}
        result["cases"] = {case: {"summary": report.summarize(runs[case]), "runs": runs[case]} for case in cases}
        counted = (cases or list(tools.CASES)) if "syscalls" in wanted else []
        result["syscalls"] = {case: sections.syscalls(session, case) for case in counted}
        result["syscalls_only"] = not cases
        result |= oroshi_alone(session, wanted, options)
        result["problems"] = session.problems
    return result


def oroshi_alone(session, wanted, options) -> dict:
    """The sections that are about oroshi only; empty where it is not here."""
    here = session.tool("oroshi") is not None
    durations = [1, 3] if options.quick else [10, 60]
    if options.long:
        durations.append(600)
    return {
        "memory": sections.memory(session, MANY_CONNECTIONS, durations) if here and "memory" in wanted else [],
        "lateness": sections.lateness(session, OPEN_LOOP_RATE) if here and "lateness" in wanted else None,
        "fidelity": sections.fidelity(session) if here and "fidelity" in wanted else None,
    }


if __name__ == "__main__":
    main()
