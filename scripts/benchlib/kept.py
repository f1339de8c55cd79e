"""Results that `oroshi lab` kept, full or compact (`oroshi lab compact`)."""

import json
import pathlib


def read(path):
    """A result whose runs are rows, whichever form the file has."""
    result = json.loads(pathlib.Path(path).read_text())
    for cell in result.get("cells", []):
        if isinstance(cell["runs"], dict):
            cell["runs"] = rows(cell["runs"])
    return result


def rows(columns):
    """Runs as a list, from columns."""
    return [row(columns, index) for index in range(len(columns["variant"]))]


def row(columns, index):
    run = {name: columns[name][index] for name in ("variant", "block", "session", "place", "at_s")}
    figures = ((metric, column[index]) for metric, column in columns["figures"].items())
    run["figures"] = {metric: value for metric, value in figures if value is not None}
    run["warnings"] = columns.get("warnings", {}).get(str(index), [])
    run["command"] = columns["command"][index] if "command" in columns else None
    if "printed" in columns:
        line = {key: column[index] for key, column in columns["printed"].items() if column[index] is not None}
        run["command"] = {**run["command"], "output": json.dumps(line)}
    return run
