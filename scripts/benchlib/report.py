"""Reports measurements: medians of per-round ratios, Markdown to paste, JSON to keep."""

import json
import statistics

from .tools import CASES

NOT_MEASURED = "–"


def summarize(runs) -> dict:
    """Per tool of one case: medians over the rounds, and the median, least and greatest ratio to floor and to wrk.

    A ratio compares two runs of the same round, so that what the machine does over minutes falls out of it.
    """
    by_tool = {}
    for run in runs:
        by_tool.setdefault(run["tool"], {})[run["round"]] = run
    summary = {}
    for tool, rounds in by_tool.items():
        median = {
            key: statistics.median(run[key] for run in rounds.values())
            for key in ("us_per_request", "requests_per_second", "server_us_per_request")
        }
        median["load_busy"] = statistics.median((run["user"] + run["system"]) / run["wall"] for run in rounds.values())
        summary[tool] = {"rounds": len(rounds), **median}
        for base in ("floor", "wrk"):
            summary[tool][f"to_{base}"] = ratios(rounds, by_tool.get(base, {}))
    return summary


def ratios(rounds, base):
    """CPU per request against another tool, round by round; None where no round has both."""
    each = [rounds[r]["us_per_request"] / base[r]["us_per_request"] for r in rounds if r in base]
    return {"median": statistics.median(each), "least": min(each), "greatest": max(each)} if each else None


def markdown(result) -> str:
    """The whole report, for pasting into a page."""
    parts = [_heading(result)]
    for case, measured in result["cases"].items():
        parts.append(_case(CASES[case], measured["summary"], result["syscalls"].get(case, {})))
    if result["syscalls_only"]:
        parts += [_counted(CASES[case], counted) for case, counted in result["syscalls"].items()]
    if result["memory"]:
        parts.append(_memory(result["memory"]))
    if result["lateness"]:
        parts.append(_lateness(result["lateness"]))
    if result["fidelity"]:
        parts.append(f"### Delay fidelity\n\n```\n{result['fidelity']['output'].rstrip()}\n```")
    notes = [f"- {name}: not measured, {why}" for name, why in result["missing"].items()]
    notes += [f"- {problem}" for problem in result["problems"]] + _noise(result)
    if notes:
        parts.append("### Notes\n\n" + "\n".join(notes))
    return "\n\n".join(parts) + "\n"


def write_json(result, path):
    """Everything, raw runs included."""
    with open(path, "w") as file:
        # Paths relative to the checkout.
        text = json.dumps(result, indent=1, ensure_ascii=False)
        file.write(text.replace(f"{path.resolve().parents[2]}/", ""))
        file.write("\n")


def _heading(result) -> str:
    machine, settings = result["machine"], result["settings"]
    virtual = ", virtual machine" if machine["hypervisor"] else ""
    return (
        f"{result['date']}, revision {machine['revision']}: {machine['processors']} x {machine['processor']}{virtual}, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, Linux {machine['kernel']}, {machine['system']}.\n"
        f"Server: {result['server']}, one worker on processor {machine['server_processor']}, answering 12 bytes; load "
        f"on processor {machine['load_processor']}, {settings['connections']} connections, {settings['rounds']} rounds "
        f"of {settings['seconds']} s in turn.\nCPU is user + system of the load generator over the requests that nginx "
        f"counted, less start-up. Ratios are medians over the rounds, with the least and the greatest."
    )


def _case(title, summary, counted) -> str:
    rows = []
    for tool, median in summary.items():
        calls = counted.get(tool, {})
        rows.append([
            tool,
            f"{median['us_per_request']:.2f}",
            _ratio(median["to_floor"]),
            _ratio(median["to_wrk"]),
            f"{median['requests_per_second']:,.0f}",
            f"{median['load_busy']:.0%}",
            _number(calls.get("syscalls_per_request"), ".2f"),
            _number(calls.get("instructions_per_request"), ",.0f"),
        ])
    head = ["Tool", "CPU µs/request", "x floor", "x wrk", "Requests/s", "Load core"]
    head += ["Syscalls/request", "Instructions"]
    if all(row[-1] == NOT_MEASURED for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    return f"### {title}\n\n{_table(head, rows)}"


def _counted(title, counted) -> str:
    rows = [
        [tool, _number(found["syscalls_per_request"], ".2f"), _number(found.get("instructions_per_request"), ",.0f")]
        for tool, found in counted.items()
    ]
    return f"### {title}\n\n{_table(['Tool', 'Syscalls/request', 'Instructions'], rows)}"


def _memory(runs) -> str:
    rows = []
    for run in runs:
        peak = f"{run['peak_bytes'] / 2**20:.1f} MiB"
        rows.append([f"{run['connections']:,}", f"{run['seconds']} s", f"{run['requests']:,}", peak])
    return f"### Memory of oroshi\n\n{_table(['Connections', 'Run', 'Requests', 'Peak'], rows)}"


def _lateness(late) -> str:
    row = [f"{late['rate']:,}/s", f"{late['achieved']:,.0f}/s", f"{late['cpu']:.0%}"]
    row += [f"{'≥ ' * (name in late['at_least'])}{value:,.1f}" for name, value in late["microseconds"].items()]
    head = ["Due", "Achieved", "Load core"] + [f"{name} µs" for name in late["microseconds"]]
    return f"### Lateness of oroshi, open loop\n\n{_table(head, [row])}"


def _noise(result) -> list:
    """Counts the runs during which others used more than a twentieth of a processor."""
    runs = [run for measured in result["cases"].values() for run in measured["runs"]] + result["memory"]
    notes = []
    for key, who in (("others", "other processes"), ("stolen", "other machines of the host")):
        disturbed = sum(run[key] > 0.05 * run["wall"] for run in runs)
        if disturbed:
            notes.append(f"- {disturbed} of {len(runs)} runs: {who} took more than 5 % of a processor")
    return notes


def _ratio(ratio) -> str:
    if ratio is None:
        return NOT_MEASURED
    return f"{ratio['median']:.2f} ({ratio['least']:.2f} to {ratio['greatest']:.2f})"


def _number(value, form) -> str:
    return NOT_MEASURED if value is None else format(value, form)


def _table(head, rows) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)] + rows
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
