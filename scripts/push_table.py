#!/usr/bin/env python3
"""Prints what scripts/bench-push has measured as tables in Markdown, or writes them into a page.

    scripts/push_table.py [--rates] PREFIX [PAGE]

PREFIX is what the names of the results begin with, such as docs/benchmarks/2026-11-22-push-. In a page (docs/push.md) the tables
stand between two comments, and take the place of those that stand there. The table at equal rates has a place of its own. With --rates it
is the only one.
"""

import pathlib
import statistics
import sys

from benchlib import kept
from client_table import heading, placed, table

BEGIN, END = "<!-- tables of bench-push: begin -->", "<!-- tables of bench-push: end -->"
RATES_BEGIN, RATES_END = "<!-- table of push-rates: begin -->", "<!-- table of push-rates: end -->"


def main():
    arguments = sys.argv[1:]
    only_rates = arguments[:1] == ["--rates"]
    arguments = arguments[only_rates:]
    if len(arguments) not in (1, 2):
        sys.exit(f"usage: {sys.argv[0]} [--rates] PREFIX [PAGE]")
    read = lambda name: kept.read(f"{arguments[0]}{name}.json")
    texts = [(rates(read), RATES_BEGIN, RATES_END)]
    if not only_rates:
        texts.insert(0, (tables(read), BEGIN, END))
    if len(arguments) == 1:
        print("\n\n".join(text for text, _, _ in texts))
        return
    page = pathlib.Path(arguments[1])
    written = page.read_text()
    for text, begin, end in texts:
        written = placed(written, text, begin, end)
    page.write_text(written)


def rates(read):
    """Returns the cost of a delivery at equal rates."""
    result = read("rates")
    text = "CPU of the hub, µs per delivery to 1,000 sessions, at equal rates"
    parts = [heading(result, "load", "hub")]
    parts.append(f"{text}:\n\n{fan_out(result, result['cells'][0]['group'], 'messages per second')}")
    parts += notes([(result, lambda cell, size: f"at {size:,} messages per second")])
    return "\n\n".join(parts)


def tables(read):
    """Returns all other tables. `read` returns a result by its name: `fanout`, `send`, `idle-oroshi`, ..."""
    fanout, send = read("fanout"), read("send")
    parts = [heading(fanout, "load", "hub")]
    for group in dict.fromkeys(cell["group"] for cell in fanout["cells"]):
        parts.append(f"CPU of the hub, µs per delivery, {group}:\n\n{fan_out(fanout, group, 'sessions')}")
    parts += history(read)
    parts.append(f"CPU, µs per `/send` to one session:\n\n{costs(send)}")
    parts.append(f"10,000 sessions get everybody's messages, ten of them their own as well:\n\n{fair(read)}")
    parts.append(f"What an idle WebSocket session takes, memory of the hub's process and CPU time:\n\n{idle(read)}")
    parts += notes([(fanout, lambda cell, size: f"with {cell['group']} and {size:,} sessions"), (send, None)])
    return "\n\n".join(parts)


def notes(results):
    """Lists variants that were left out or failed, if any. `results` are pairs; the second names a cell of a sweep."""
    found = [f"- {left['name']} was left out: {left['why']}" for result, _ in results for left in result["skipped"]]
    for result, where in results:
        for cell in result["cells"] if where else ():
            for variant in cell["variants"]:
                if variant["failed"]:
                    size = int(result["sweep"]["values"][cell["point"]])
                    found.append(f"- {variant['name']} failed {where(cell, size)}: {variant['failed']['why']}")
    return ["\n".join(dict.fromkeys(found))] if found else []


def fan_out(result, group, of):
    cells = [cell for cell in result["cells"] if cell["group"] == group]
    names = [variant["name"] for variant in cells[0]["variants"]]
    rows = []
    for cell in cells:
        size = int(result["sweep"]["values"][cell["point"]])
        row = [f"{size:,}", *(cost(cell, number) for number in range(len(names)))]
        row += [ratio(cell, number) for number in range(1, len(names))]
        rows.append(row)
    return table([of, *names, *(f"{names[0]} / {name}" for name in names[1:])], rows)


def costs(result):
    (cell,) = result["cells"]
    names = [variant["name"] for variant in cell["variants"]]
    row = [cost(cell, number) for number in range(len(names))]
    return table([*names, f"{names[1]} / {names[0]}"], [[*row, ratio(cell, 1, of_base=False)]])


def cost(cell, variant):
    """Median over the runs, in microseconds."""
    values = [run["figures"]["cpu"] / 1000 for run in cell["runs"] if run["variant"] == variant and "cpu" in run["figures"]]
    return f"{statistics.median(values):.2f}" if values else "–"


def ratio(cell, variant, of_base=True):
    """That of the first variant to another, or the other way round, with its interval: median of the ratios of each block."""
    for comparison in cell["comparisons"]:
        if comparison["metric"] == "cpu" and comparison["variant"] == variant and comparison["ratio"]:
            values = [comparison["ratio"][name] for name in ("estimate", "low", "high")]
            if of_base:
                values = [1 / values[0], 1 / values[2], 1 / values[1]]
            return "{:.2f} ({:.2f} to {:.2f})".format(*values)
    return "–"


def fair(read):
    everybody, one = read("broadcast"), read("one-to-one")
    rows = []
    for name, record, found in (("for all", everybody, "deliveries"), ("for one", one, "deliveries_to_one")):
        found = record[found]
        delay = found["delay"]["summary"]
        nanoseconds = [delay["p50"]["value_ns"], delay["p99"]["value_ns"], delay["max_ns"]]
        milliseconds = [f"{value / 1e6:.1f}" for value in nanoseconds]
        published = record["published" if name == "for all" else "published_to_one"]
        rows.append([name, f"{published['per_s']:,.1f}", f"{found['delivered']:,}", f"{found['lost']:,}", *milliseconds])
    busy = everybody["server"]["cpu_s"] / everybody["elapsed_s"]
    text = table(["messages", "per second", "delivered", "lost", "p50, ms", "p99, ms", "longest, ms"], rows)
    return f"{text}\n\nThe hub was {busy:.0%} busy."


def history(read):
    """Returns a list of one text, or of none if it was not measured."""
    try:
        result = read("history")
    except FileNotFoundError:
        return []
    rows = []
    for cell in result["cells"]:
        size = int(result["sweep"]["values"][cell["point"]])
        rows.append([f"{size:,}", cost(cell, 0), cost(cell, 1), ratio(cell, 1, of_base=False)])
    text = table(["subscribers", "no history", "history", "history / no history"], rows)
    return [f"CPU of the hub, µs per delivery to the subscribers of a channel, one message under way:\n\n{text}"]


def idle(read):
    rows = []
    for name, title in (("oroshi", "oroshi"), ("channel", "oroshi, one channel, a ping each 25 s"), ("nchan", "nchan")):
        try:
            record = read(f"idle-{name}")
        except FileNotFoundError:
            continue
        each, sessions = record["idle"]["rss_bytes_per_subscription"] / 1024, record["subscriptions"]["opened"]
        # Without pings there is nothing to do.
        cpu = record["server"]["cpu_s"] / record["elapsed_s"] / sessions * 1e6
        rows.append([title, f"{sessions:,}", f"{each:.2f} KiB", f"{cpu:.2f} µs/s" if name == "channel" else "–"])
    return table(["hub", "sessions", "memory", "CPU"], rows)


if __name__ == "__main__":
    main()
