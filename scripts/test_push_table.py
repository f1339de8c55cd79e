"""Tests of the tables that are made of what scripts/bench-push measures."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import push_table


def cell(costs, ratio, group=None, point=None):
    """Of variants with these costs in µs, one run each; the second's cost is `ratio` times the first's."""
    return {
        "group": group,
        "point": point,
        "blocks": 4,
        "variants": [{"name": name, "failed": None} for name in ("oroshi", "nchan")],
        "runs": [{"variant": number, "figures": {"cpu": cost * 1000}} for number, cost in enumerate(costs)],
        "comparisons": [
            {"metric": "rps", "variant": 1, "ratio": {"estimate": 9, "low": 9, "high": 9}},
            {"metric": "cpu", "variant": 1, "ratio": {"estimate": ratio, "low": ratio / 2, "high": ratio * 2}},
        ],
    }


def experiment(cells, skipped=()):
    return {
        "started_unix_s": 1_800_000_000,
        "environment": {"cpu": {"model": "a CPU"}, "kernel": "6.1"},
        "load_cpus": "1",
        "server_cpus": "0",
        "sweep": {"values": [10, 1000]},
        "skipped": list(skipped),
        "cells": cells,
    }


def run(delivered=100):
    clock = {"summary": {"p50": {"value_ns": 1_500_000}, "p99": {"value_ns": 2_500_000}, "max_ns": 4_000_000}}
    deliveries = {"delivered": delivered, "lost": 0, "delay": clock}
    return {
        "elapsed_s": 10.0,
        "server": {"cpu_s": 5.0},
        "published": {"per_s": 6.25},
        "published_to_one": {"per_s": 100.0},
        "deliveries": deliveries,
        "deliveries_to_one": deliveries,
        "subscriptions": {"opened": 18_000},
        "idle": {"rss_bytes_per_subscription": 1228.8},
    }


class Tables(unittest.TestCase):
    def setUp(self):
        one = [cell((50, 100), 2, "one", 0), cell((5, 8), 1.6, "one", 1)]
        skipped = [{"name": "bare sends", "why": "floor-fanout is not installed"}]
        self.results = {
            "fanout": experiment([*one, cell((1, 8), 8, "sixteen", 1)], skipped),
            "rates": experiment([cell((6, 7.5), 1.25, "", 0)]),
            "send": experiment([cell((8, 10), 1.25)]),
            "broadcast": run(800_000),
            "one-to-one": run(1_000),
            "idle-oroshi": run(),
            "idle-channel": run(),
            "history": experiment([cell((5, 5.5), 1.1, None, 0), cell((6, 6.6), 1.1, None, 1)]),
        }

    def read(self, name):
        if name not in self.results:
            raise FileNotFoundError(name)
        return self.results[name]

    def test_has_costs_and_the_ratio_to_each_rival(self):
        text = push_table.tables(self.read)
        self.assertIn("µs per delivery, one:\n\n| sessions | oroshi | nchan | oroshi / nchan |\n", text)
        self.assertIn("| 10 | 50.00 | 100.00 | 0.50 (0.25 to 1.00) |\n| 1,000 | 5.00 | 8.00 | 0.62 (0.31 to 1.25) |\n", text)
        self.assertIn("µs per delivery, sixteen:", text)
        self.assertIn("| oroshi | nchan | nchan / oroshi |\n| ---: | ---: | ---: |\n| 8.00 | 10.00 | 1.25 (0.62 to 2.50) |", text)

    def test_compares_at_equal_rates(self):
        text = push_table.rates(self.read)
        self.assertIn("Linux 6.1, a CPU; load on CPU 1, hub on CPU 0; the middle of 4 runs each.", text)
        self.assertIn("at equal rates:\n\n| messages per second | oroshi | nchan | oroshi / nchan |\n", text)
        self.assertIn("| 10 | 6.00 | 7.50 | 0.80 (0.40 to 1.60) |", text)
        self.results["rates"]["cells"][0]["variants"][1]["failed"] = {"why": "it fell behind"}
        self.assertIn("- nchan failed at 10 messages per second: it fell behind", push_table.rates(self.read))
        self.assertNotIn("at equal rates", push_table.tables(self.read))

    def test_has_delays_in_milliseconds_and_how_busy_the_hub_was(self):
        text = push_table.tables(self.read)
        self.assertIn("| for all | 6.2 | 800,000 | 0 | 1.5 | 2.5 | 4.0 |\n| for one | 100.0 | 1,000 | 0 |", text)
        self.assertIn("The hub was 50% busy.", text)

    def test_has_what_a_history_costs(self):
        text = push_table.tables(self.read)
        self.assertIn("| subscribers | no history | history | history / no history |", text)
        self.assertIn("| 1,000 | 6.00 | 6.60 | 1.10 (0.55 to 2.20) |", text)
        del self.results["history"]
        self.assertNotIn("no history", push_table.tables(self.read))

    def test_says_what_failed(self):
        self.results["fanout"]["cells"][1]["variants"][1]["failed"] = {"why": "7 of 9 requests failed"}
        text = push_table.tables(self.read)
        self.assertIn("- nchan failed with one and 1,000 sessions: 7 of 9 requests failed", text)

    def test_has_memory_of_those_that_were_measured_and_says_who_was_not(self):
        text = push_table.tables(self.read)
        self.assertIn("| oroshi | 18,000 | 1.20 KiB | – |\n", text)
        self.assertIn("a ping each 25 s | 18,000 | 1.20 KiB | 27.78 µs/s |\n\n- bare sends was left out: floor-fanout is not installed", text)
        self.assertNotIn("| nchan | 18,000", text)


class Page(unittest.TestCase):
    def run_with(self, *arguments):
        command = [sys.executable, push_table.__file__, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def test_has_the_rates_in_a_place_of_their_own(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            rates = experiment([cell((6, 7.5), 1.25, "", 0)])
            (folder / "x-rates.json").write_text(json.dumps(rates))
            page = folder / "page.md"
            others = f"{push_table.BEGIN}\nothers\n{push_table.END}\n"
            page.write_text(f"{others}{push_table.RATES_BEGIN}\nold\n{push_table.RATES_END}\n")
            self.assertIn("| 10 | 6.00 | 7.50 |", self.run_with("--rates", f"{folder}/x-"))
            self.run_with("--rates", f"{folder}/x-", str(page))
            text = page.read_text()
            self.assertTrue(text.startswith(others))
            self.assertIn("| 10 | 6.00 | 7.50 |", text)
            self.assertNotIn("old", text)
