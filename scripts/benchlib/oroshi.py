"""Reads oroshi's own JSON report. Only this module knows its fields; docs/bench.md explains them."""

import json

from .child import Failed


def parse(text) -> dict:
    """The report that `oroshi bench --format json` prints."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise Failed(f"oroshi printed no JSON: {error}") from error


def completed(report) -> int:
    """The requests that oroshi saw answered."""
    return _field(report, "requests", "completed")


def lateness(report) -> dict:
    """Achieved requests per second; lateness in microseconds, and which of these figures are lower bounds."""
    late = _field(report, "latency", "lateness", "summary")
    microseconds, bounds = {}, []
    for name in ("p50", "p99", "p99.9"):
        microseconds[name] = _field(late, name, "value_ns") / 1000
        if _field(late, name, "at_least"):
            bounds.append(name)
    microseconds["max"] = _field(late, "max_ns") / 1000
    return {
        "achieved": _field(report, "rates", "requests_per_s"),
        "grade": _field(report, "grade"),
        "microseconds": microseconds,
        "at_least": bounds,
    }


def _field(report, *path):
    for name in path:
        try:
            report = report[name]
        except (KeyError, TypeError) as missing:
            raise Failed(f"oroshi's report has no {'.'.join(path)}") from missing
    return report
