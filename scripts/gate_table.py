#!/usr/bin/env python3
"""Prints what scripts/bench-gate has measured as tables in Markdown, or writes them into a page.

    scripts/gate_table.py PREFIX [PAGE]

PREFIX is what the names of the results begin with, such as docs/benchmarks/2026-11-22-. In a page (docs/gate.md) the tables stand between two
comments, and take the place of those that stand there.
"""

import pathlib
import statistics
import sys

from benchlib import kept
from client_table import heading, placed, table

BEGIN, END = "<!-- tables of bench-gate: begin -->", "<!-- tables of bench-gate: end -->"
NOTHING = "–"


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(f"usage: {sys.argv[0]} PREFIX [PAGE]")
    read = lambda name: kept.read(f"{sys.argv[1]}{name}.json")
    text = tables(read)
    if len(sys.argv) == 2:
        print(text)
        return
    page = pathlib.Path(sys.argv[2])
    page.write_text(placed(page.read_text(), text, BEGIN, END))


def tables(read):
    """`read` gives a result by its name: `gate-static`, `gate-bodies`, `route-reuse`, `gate-idle`."""
    static, bodies, reuse = read("gate-static"), read("gate-bodies"), read("route-reuse")
    everything = {**static, "cells": [cell for result in (static, bodies, reuse) for cell in result["cells"]]}
    parts = [heading(everything, "load and the server behind", "proxy")]
    for cell in static["cells"]:
        parts.append(f"12 bytes from nginx behind a unix socket, {cell['group']}:\n\n{costs(cell)}")
    parts.append(f"Bodies over 4 connections, MB per second:\n\n{throughput(bodies)}")
    parts.append(f"Finding each request's server ([route-reuse](../experiments/route-reuse.toml)), 100 connections:\n\n{costs(reuse['cells'][0])}")
    parts.append(f"Memory of an idle client connection, after one request each:\n\n{idle(read('gate-idle'))}")
    found = [f"- {left['name']} was left out: {left['why']}" for result in (static, bodies, reuse) for left in result["skipped"]]
    for result in (static, bodies, reuse):
        for cell in result["cells"]:
            found += [f"- {v['name']} failed: {v['failed']['why']}" for v in cell["variants"] if v["failed"]]
    if found:
        parts.append("\n".join(dict.fromkeys(found)))
    return "\n\n".join(parts)


def costs(cell):
    """A row for each variant: requests per second, CPU per request, and its ratios to those before it."""
    names = [variant["name"] for variant in cell["variants"]]
    rows = []
    for number, name in enumerate(names):
        others = [f"{ratio(cell, 'cpu', base, number)} of {names[base]}" for base in range(number)]
        others = [text for text in others if not text.startswith(NOTHING)]
        rows.append([name, middle(cell, number, "rps", 1, "{:,.0f}"), middle(cell, number, "cpu", 1000, "{:.2f}"), "; ".join(others)])
    return table(["", "requests/s", "CPU, µs per request", "CPU: ratio (95 % interval)"], rows)


def throughput(result):
    rows = []
    for cell in result["cells"]:
        size = int(result["sweep"]["values"][cell["point"]])
        names = [variant["name"] for variant in cell["variants"]]
        figures = [middle(cell, number, "rps", 1 / size, "{:,.0f}") for number in range(len(names))]
        last = len(names) - 1
        rows.append([f"{size} MB", *figures, *(ratio(cell, "rps", base, last) for base in range(last))])
    heads = [f"{names[-1]} / {name}" for name in names[:-1]]
    return table(["body", *names, *heads], rows)


def idle(found):
    rows = [[name, f"{one['connections']:,}", f"{one['each_bytes'] / 1000:.2f} kB"] for name, one in found.items()]
    return table(["", "connections", "each"], rows)


def middle(cell, variant, metric, unit, form):
    """Median over a variant's runs."""
    values = [run["figures"][metric] / unit for run in cell["runs"] if run["variant"] == variant and metric in run["figures"]]
    return form.format(statistics.median(values)) if values else NOTHING


def ratio(cell, metric, base, variant):
    """Of a variant to another, with its interval: median of the ratios of each block."""
    for found in cell["comparisons"]:
        if (found["metric"], found["base"], found["variant"]) == (metric, base, variant) and found["ratio"]:
            return "{estimate:.2f} ({low:.2f} to {high:.2f})".format(**found["ratio"])
    return NOTHING


if __name__ == "__main__":
    main()
