#!/usr/bin/env python3
"""Prints a result of the experiment http-clients as tables in Markdown, or writes them into a page.

    scripts/client_table.py RESULT.json [PAGE]

Each figure is the median over the runs of one client at one N, from the line of JSON that it printed. In a page
(docs/client.md) they stand between two comments, and take the place of those that stand there.
"""

import datetime
import json
import pathlib
import statistics
import sys

from benchlib import kept

TABLES = [
    ("Mean time of a request, ms", "mean_ms", "{:,.1f}"),
    ("99th percentile, ms", "p99_ms", "{:,.1f}"),
    ("Mean since the burst began, ms", "all_mean_ms", "{:,.1f}"),
    ("CPU of the client, µs per request", "cpu_us_per_request", "{:,.0f}"),
]
NOTHING = "–"
BEGIN, END = "<!-- tables of http-clients: begin -->", "<!-- tables of http-clients: end -->"


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(f"usage: {sys.argv[0]} RESULT.json [PAGE]")
    text = tables(kept.read(sys.argv[1]))
    if len(sys.argv) == 2:
        print(text)
        return
    page = pathlib.Path(sys.argv[2])
    page.write_text(placed(page.read_text(), text))


def placed(page, text, begins=BEGIN, ends=END):
    """A page with these tables in the place of those that it has."""
    before, begin, rest = page.partition(begins)
    _, end, after = rest.partition(ends)
    if not (begin and end):
        sys.exit(f"{sys.argv[0]}: the page has no place for tables: expected the lines {begins} and {ends}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def tables(result):
    """Returns place and time, a table per figure (a row for each N, a column for each client), and what is missing."""
    sizes = result["sweep"]["values"]
    seen = bursts(result)
    clients = list(dict.fromkeys(variant["name"] for cell in result["cells"] for variant in cell["variants"]))
    parts = [heading(result)]
    for title, key, form in TABLES:
        rows = []
        for size in sizes:
            figures = [median(seen.get((client, size), []), key, form) for client in clients]
            rows.append([f"{int(size):,}", *figures])
        parts.append(f"{title}:\n\n{table(['N', *clients], rows)}")
    found = notes(result, seen)
    if found:
        parts.append("\n".join(f"- {note}" for note in found))
    return "\n\n".join(parts)


def heading(result, load="client", served="server"):
    day = datetime.datetime.fromtimestamp(result["started_unix_s"], datetime.timezone.utc).date()
    machine = result["environment"]
    cpu, kernel = machine["cpu"], machine["kernel"]
    least, most = (end(cell["blocks"] for cell in result["cells"] if cell["blocks"]) for end in (min, max))
    runs = f"{least} to {most}" if least < most else least
    return (
        f"{day}, Linux {kernel}, {cpu['model']}; {load} on CPU {result['load_cpus']}, {served} on CPU "
        f"{result['server_cpus']}; the middle of {runs} runs each."
    )


def bursts(result):
    """By client and N: what it printed in each run."""
    seen = {}
    for cell in result["cells"]:
        size = result["sweep"]["values"][cell["point"]]
        for run in cell["runs"]:
            client = cell["variants"][run["variant"]]["name"]
            line = run["command"]["output"].strip().splitlines()[-1]
            seen.setdefault((client, size), []).append(json.loads(line))
    return seen


def notes(result, seen):
    """Lists remarks on the figures, each once."""
    found = []
    for skipped in result["skipped"]:
        # A failed command's own message is the reason.
        found.append(f"{skipped['name']} was left out: {skipped['why'].rpartition(' fails: ')[2]}")
    for cell in result["cells"]:
        size = result["sweep"]["values"][cell["point"]]
        for variant in cell["variants"]:
            if variant["failed"]:
                found.append(f"{variant['name']} failed at {size}: {variant['failed']['why']}")
    for (client, size), runs in seen.items():
        failed, sent = sum(run["failed"] for run in runs), sum(run["n"] for run in runs)
        if failed:
            found.append(f"{client} at {size}: {failed:,} of {sent:,} requests failed")
    # "in 5 of 90 runs other processes were busy: ", and a list of them.
    found += [text.partition(":")[0] for text in result["warnings"] if " runs other processes were busy:" in text]
    return list(dict.fromkeys(found))


def median(runs, key, form):
    values = [run[key] for run in runs if run.get(key) is not None]
    return form.format(statistics.median(values)) if values else NOTHING


def table(head, rows):
    lines = [head, ["---:"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()
