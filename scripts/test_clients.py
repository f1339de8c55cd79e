"""Tests of the clients of experiments/http-clients.toml, and of the table that is made of what they print."""

import http.server
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import unittest

import client_table

CLIENTS = pathlib.Path(__file__).resolve().parent.parent / "experiments" / "clients"
FIGURES = {"mean_ms", "p99_ms", "max_ms"}
ALWAYS = {"client", "n", "ok", "failed", "cpu_us_per_request", "wall_ms"}


def skip(name, why):
    """Leave a test out, and have `make test` say so at its end."""
    if "OROSHI_SKIPPED" in os.environ:
        with open(os.environ["OROSHI_SKIPPED"], "a") as skipped:
            skipped.write(f"skipped: {name}: {why}\n")
    raise unittest.SkipTest(why)


class Hello(http.server.BaseHTTPRequestHandler):
    """Every third request gets a 503, which is no answer that a client may count."""

    count = 0
    failing = False

    def do_GET(self):
        Hello.count += 1
        body = b"hello world\n"
        self.send_response(503 if Hello.failing and Hello.count % 3 == 0 else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Clients(unittest.TestCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        thread = threading.Thread(target=self.server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        Hello.count, Hello.failing = 0, False

    def burst(self, command, n):
        ran = subprocess.run([*command, self.url, str(n)], capture_output=True, text=True, check=True, timeout=60)
        seen = json.loads(ran.stdout.splitlines()[-1])
        self.assertLessEqual(ALWAYS, seen.keys())
        self.assertEqual((seen["n"], seen["ok"] + seen["failed"]), (n, n))
        return seen

    def check(self, command):
        seen = self.burst(command, 6)
        self.assertEqual((seen["ok"], Hello.count), (6, 6))
        self.assertLessEqual(FIGURES, seen.keys())
        self.assertTrue(0 < seen["mean_ms"] <= seen["max_ms"])
        self.assertEqual(seen["p99_ms"], seen["max_ms"], "the 99th of 6 is the last")
        Hello.count, Hello.failing = 0, True
        self.assertEqual(self.burst(command, 6)["ok"], 4, "a 503 counts as failed")

    def test_curl(self):
        if not shutil.which("curl"):
            skip("client curl", "curl is not installed")
        self.check([CLIENTS / "burst-curl"])
        many = subprocess.run([CLIENTS / "burst-curl", "--can", "70000"], capture_output=True, text=True, check=False)
        self.assertRegex(many.stderr, r"^curl \S+ sends at most \d+ requests at the same moment$")
        self.assertEqual(many.returncode, 1)

    def test_aiohttp(self):
        if subprocess.run(["python3", "-c", "import aiohttp"], capture_output=True, check=False).returncode != 0:
            skip("client aiohttp", "aiohttp is not installed; scripts/bench-client installs it for itself")
        self.check([CLIENTS / "burst-aiohttp"])

    def test_go(self):
        if not shutil.which("go"):
            skip("client of Go", "Go is not installed")
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "burst-go"
            subprocess.run(["go", "build", "-o", program, "."], cwd=CLIENTS / "go", check=True, timeout=300)
            self.check([program])


class Table(unittest.TestCase):
    @staticmethod
    def run_of(variant, mean, failed=0):
        line = {"n": 10, "failed": failed, "mean_ms": mean, "p99_ms": 2 * mean, "cpu_us_per_request": 50.4}
        return {"variant": variant, "command": {"output": f"a warning\n{json.dumps(line)}\n"}}

    def setUp(self):
        self.result = {
            "started_unix_s": 1.8e9,
            "environment": {"kernel": "6.1", "cpu": {"model": "a CPU"}},
            "warnings": ["in 5 of 9 runs other processes were busy: sh (pid 1) with 9 % of a CPU", "something else"],
            "load_cpus": "0",
            "server_cpus": "1",
            "sweep": {"values": ["10", "1000"]},
            "skipped": [
                {"name": "curl", "why": "`burst-curl --can 500` fails: at most 300"},
                {"name": "curl", "why": "`burst-curl --can 1000` fails: at most 300"},
                {"name": "aiohttp", "why": "python3 is not installed"},
            ],
            "cells": [
                {
                    "point": 0,
                    "blocks": 3,
                    "variants": [{"name": "Go", "failed": None}, {"name": "threads", "failed": None}],
                    "runs": [self.run_of(1, 102, 3), self.run_of(0, 101), self.run_of(0, 109), self.run_of(0, 105)],
                },
                {
                    "point": 1,
                    "blocks": 1,
                    "variants": [{"name": "Go", "failed": None}, {"name": "threads", "failed": {"why": "no end"}}],
                    "runs": [self.run_of(0, 1234.56)],
                },
            ],
        }

    def test_has_medians_by_client_and_size(self):
        text = client_table.tables(self.result)
        self.assertIn("Mean time of a request, ms:\n\n| N | Go | threads |\n| ---: | ---: | ---: |\n", text)
        self.assertIn("| 10 | 105.0 | 102.0 |\n| 1,000 | 1,234.6 | – |", text)
        self.assertIn("µs per request:\n\n| N | Go | threads |\n| ---: | ---: | ---: |\n| 10 | 50 | 50 |", text)

    def test_says_where_and_when_and_how_often(self):
        text = client_table.tables(self.result)
        self.assertIn("2027-01-15, Linux 6.1, a CPU; client on CPU 0, server on CPU 1; the middle of 1 to 3 runs", text)

    def test_takes_the_place_of_earlier_tables_and_of_nothing_else(self):
        begin, end = client_table.BEGIN, client_table.END
        page = f"# Page\n\n{begin}\nold\n{end}\n\nmore\n"
        self.assertEqual(client_table.placed(page, "new"), f"# Page\n\n{begin}\n\nnew\n\n{end}\n\nmore\n")
        with self.assertRaisesRegex(SystemExit, "no place for tables"):
            client_table.placed("# Page\n", "new")

    def test_says_what_is_missing_and_what_failed(self):
        text = client_table.tables(self.result)
        left_out = "\n\n- curl was left out: at most 300\n- aiohttp was left out: python3 is not installed\n"
        self.assertIn(left_out, text)
        failed = "- threads failed at 1000: no end\n- threads at 10: 3 of 10 requests failed\n"
        self.assertTrue(text.endswith(f"{failed}- in 5 of 9 runs other processes were busy"), text)


if __name__ == "__main__":
    unittest.main()
