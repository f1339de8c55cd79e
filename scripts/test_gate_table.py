"""Tests of the tables that are made of what scripts/bench-gate measures."""

import unittest

import gate_table


def cell(figures, ratios, group=None, point=None, failed=None):
    """Of variants with these figures, one run each; `ratios` by metric, base and variant."""
    return {
        "group": group,
        "point": point,
        "blocks": 4,
        "variants": [{"name": name, "failed": failed if name == "gate" else None} for name in ("nginx", "gate")],
        "runs": [{"variant": number, "figures": run} for number, run in enumerate(figures)],
        "comparisons": [
            {"metric": metric, "base": 0, "variant": 1, "ratio": {"estimate": value, "low": value - 0.1, "high": value + 0.1}}
            for metric, value in ratios.items()
        ],
    }


def experiment(cells, skipped=(), sizes=()):
    return {
        "started_unix_s": 1_800_000_000,
        "environment": {"cpu": {"model": "a CPU"}, "kernel": "6.1"},
        "load_cpus": "0",
        "server_cpus": "1",
        "sweep": {"values": list(sizes)},
        "skipped": list(skipped),
        "cells": cells,
    }


class Tables(unittest.TestCase):
    def setUp(self):
        small = [{"rps": 70_000, "cpu": 14_000}, {"rps": 90_000, "cpu": 11_000}]
        large = [{"rps": 2_000, "cpu": 1}, {"rps": 3_000, "cpu": 1}]
        self.results = {
            "gate-static": experiment([cell(small, {"cpu": 0.79}, "one host")], [{"name": "haproxy", "why": "it is not installed"}]),
            "gate-bodies": experiment([cell(large, {"rps": 1.5}, None, 0)], sizes=[2]),
            "route-reuse": experiment([cell(small, {})]),
            "gate-idle": {"oroshi gate": {"connections": 10_000, "each_bytes": 2_900}},
        }

    def test_everything_that_was_measured_stands_in_the_tables(self):
        text = gate_table.tables(self.results.__getitem__)
        self.assertIn("| gate | 90,000 | 11.00 | 0.79 (0.69 to 0.89) of nginx |", text)
        self.assertIn("| 2 MB | 4,000 | 6,000 | 1.50 (1.40 to 1.60) |", text)
        self.assertIn("| oroshi gate | 10,000 | 2.90 kB |", text)
        self.assertIn("- haproxy was left out: it is not installed", text)

    def test_what_was_not_compared_has_no_figure(self):
        text = gate_table.tables(self.results.__getitem__)
        self.assertIn("| gate | 90,000 | 11.00 |  |", text)

    def test_what_failed_is_told(self):
        failed = {"why": "it did not answer"}
        self.results["route-reuse"] = experiment([cell([{"rps": 1, "cpu": 1}, {}], {}, failed=failed)])
        text = gate_table.tables(self.results.__getitem__)
        self.assertIn("- gate failed: it did not answer", text)
        self.assertIn("| gate | – | – |  |", text)


if __name__ == "__main__":
    unittest.main()
