"""Tests of the benchmark script: what it computes, what it reads, and that its server counts rightly."""

import http.client
import os
import pathlib
import sys
import unittest

from benchlib import child, oroshi, report, sections, tools
from benchlib.child import Failed
from benchlib.nginx import Nginx

ANY_CPU = min(os.sched_getaffinity(0))


def skip(name, why):
    """Leave the rest of a test out, and have `make test` say so at its end."""
    if "OROSHI_SKIPPED" in os.environ:
        with open(os.environ["OROSHI_SKIPPED"], "a") as skipped:
            skipped.write(f"skipped: {name}: {why}\n")
    raise unittest.SkipTest(why)


def made_up_run(turn, tool, cost):
    return {
        "round": turn,
        "tool": tool,
        "us_per_request": cost,
        "requests_per_second": 1000.0,
        "server_us_per_request": 5.0,
        "requests": 5000,
        "user": 1.0,
        "system": 3.0,
        "wall": 5.0,
        "peak_bytes": 2**20,
        "others": 0.0,
        "stolen": 0.0,
    }


class Ratios(unittest.TestCase):
    def test_are_taken_within_a_round(self):
        # The machine slows down from round to round; the tool still costs twice the floor.
        costs = {"floor": 5, "wrk": 10}
        runs = [made_up_run(turn, tool, costs[tool] * turn) for turn in (1, 2, 3) for tool in costs]
        summary = report.summarize(runs)
        self.assertEqual(summary["wrk"]["to_floor"], {"median": 2.0, "least": 2.0, "greatest": 2.0})
        self.assertEqual(summary["wrk"]["us_per_request"], 20)

    def test_skip_a_round_that_only_one_tool_finished(self):
        runs = [made_up_run(1, "floor", 5), made_up_run(2, "floor", 50), made_up_run(1, "wrk", 15)]
        self.assertEqual(report.summarize(runs)["wrk"]["to_floor"]["median"], 3.0)

    def test_are_none_without_the_other_tool(self):
        self.assertIsNone(report.summarize([made_up_run(1, "floor", 5)])["floor"]["to_wrk"])


class Markdown(unittest.TestCase):
    result = {
        "date": "2026-01-31",
        "server": "nginx/1",
        "settings": {"connections": 100, "rounds": 1, "seconds": 5},
        "machine": {
            "revision": "abc",
            "processors": 2,
            "processor": "X",
            "hypervisor": True,
            "memory_bytes": 2**30,
            "kernel": "6",
            "system": "S",
            "server_processor": 0,
            "load_processor": 1,
        },
        "missing": {"h2load": "h2load is not installed"},
        "problems": ["ab: exit code 1"],
        "syscalls_only": False,
        "syscalls": {"tcp-kept": {"floor": {"syscalls_per_request": 2.5}}},
        "memory": [{"connections": 10000, "seconds": 10, **made_up_run(1, "oroshi", 5)}],
        "lateness": {
            "rate": 20000,
            "achieved": 20000.0,
            "cpu": 0.5,
            "at_least": ["max"],
            "microseconds": {"p50": 1.0, "max": 90.0},
        },
        "fidelity": {"output": "all well\n"},
    }

    def setUp(self):
        runs = [{**made_up_run(1, "floor", 5), "others": 1.0}]
        self.text = report.markdown(
            {**self.result, "cases": {"tcp-kept": {"runs": runs, "summary": report.summarize(runs)}}}
        )

    def test_has_a_row_per_tool_and_no_column_of_nothing(self):
        self.assertIn("| floor | 5.00 | 1.00 (1.00 to 1.00) | – | 1,000 | 80% | 2.50 |", self.text)
        self.assertNotIn("Instructions", self.text)

    def test_says_what_is_missing_what_failed_and_who_disturbed(self):
        for line in ("h2load is not installed", "ab: exit code 1", "1 of 2 runs: other processes took more than 5 %"):
            self.assertIn(line, self.text)

    def test_tells_of_memory_lateness_and_fidelity(self):
        for line in ("| 10,000 | 10 s | 5,000 | 1.0 MiB |", "| 20,000/s | 20,000/s | 50% | 1.0 | ≥ 90.0 |", "all well"):
            self.assertIn(line, self.text)


class Counters(unittest.TestCase):
    def test_perf(self):
        text = "484900,,raw_syscalls:sys_enter,911971995,100.00,,\n<not supported>,,instructions:u,0,100.00,,\n"
        self.assertEqual(sections.perf_counts(text), {"syscalls": 484900})

    def test_strace_with_and_without_errors(self):
        text = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 61.00    0.200000           1    120000       500 recvfrom
 39.00    0.100000           1     80000           sendto
------ ----------- ----------- --------- --------- ----------------
100.00    0.300000           1    200000       500 total
"""
        self.assertEqual(sections.strace_total(text), 200000)


class CommandLines(unittest.TestCase):
    def setUp(self):
        found, self.missing = tools.find(sys.executable, "/no/such/floor")
        self.oroshi = next(tool for tool in found if tool.name == "oroshi")

    def test_a_tool_that_is_not_here_is_named(self):
        self.assertIn("/no/such/floor is not built", self.missing["floor"])

    def test_oroshi_over_a_unix_socket_with_new_connections(self):
        load = tools.Load("unix-new", "127.0.0.1", 8080, "/run/a.sock", 100, 5)
        words = " ".join(self.oroshi.command(load)[1:])
        self.assertEqual(
            words, "bench -t1 -c100 -d5s --close --watch none --format json -P /run/a.sock http://127.0.0.1:8080/"
        )


class Children(unittest.TestCase):
    def test_cost_and_output_are_the_child_s_own(self):
        ended = child.run([sys.executable, "-c", "sum(range(3_000_000)); print('done')"], ANY_CPU, 60)
        self.assertEqual(ended.stdout, "done\n")
        self.assertGreater(ended.cpu, 0.0)
        self.assertGreater(ended.wall, 0.0)

    def test_a_wrong_exit_code_shows_the_last_words(self):
        with self.assertRaisesRegex(Failed, "exit code 3\nalas"):
            child.run(["sh", "-c", "echo alas >&2; exit 3"], ANY_CPU, 60)

    def test_one_that_does_not_end_is_ended(self):
        with self.assertRaisesRegex(Failed, "still running"):
            child.run(["sleep", "3600"], ANY_CPU, 0.2)

    def test_a_missing_program_is_named(self):
        with self.assertRaisesRegex(Failed, "/no/such/program: No such file"):
            child.run(["/no/such/program"], ANY_CPU, 60)


class Server(unittest.TestCase):
    def test_counts_requests_and_connections_and_goes_away(self):
        try:
            nginx = Nginx(ANY_CPU)
        except Failed as why:
            skip("benchmark script, server", why)
        with nginx:
            before = nginx.counts()
            connection = http.client.HTTPConnection("127.0.0.1", nginx.port)
            for _ in range(3):
                connection.request("GET", "/")
                self.assertEqual(connection.getresponse().read(), b"hello world\n")
            connection.close()
            done = nginx.counts() - before
            home = pathlib.Path(nginx.home)
            self.assertEqual((done.accepted, done.requests), (1, 3))
        self.assertFalse(home.exists())
        self.assertIsNotNone(nginx.process.returncode)


class OroshiReport(unittest.TestCase):
    text = """{"requests": {"completed": 7}, "rates": {"requests_per_s": 5.0}, "grade": {"who": "server-bound"},
        "latency": {"lateness": {"summary": {"max_ns": 4000, "p50": {"value_ns": 1000, "at_least": false},
            "p99": {"value_ns": 2000, "at_least": false}, "p99.9": {"value_ns": 3000, "at_least": true}}}}}"""

    def test_lateness_comes_in_microseconds_with_its_bounds(self):
        late = oroshi.lateness(oroshi.parse(self.text))
        self.assertEqual(late["microseconds"], {"p50": 1.0, "p99": 2.0, "p99.9": 3.0, "max": 4.0})
        self.assertEqual(late["at_least"], ["p99.9"])

    def test_a_field_that_is_not_there_is_named(self):
        with self.assertRaisesRegex(Failed, "requests.completed"):
            oroshi.completed({"requests": {}})

    def test_no_json_is_a_failure(self):
        with self.assertRaisesRegex(Failed, "no JSON"):
            oroshi.parse("Running 5s test")


if __name__ == "__main__":
    unittest.main()
