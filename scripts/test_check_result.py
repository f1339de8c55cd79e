"""Tests of scripts/check_result.py."""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest

import check_result


def result(ratio, verdict="slower", metric="cpu", better="lower", failed=None):
    """A result of two set-ups, reduced to what is read."""
    return {
        "metrics": [{"metric": metric, "better": better}],
        "cells": [
            {
                "group": "gate",
                "variants": [{"name": "release"}, {"name": "this", "failed": failed}],
                "comparisons": [
                    {"metric": metric, "verdict": verdict, "ratio": {"estimate": ratio}, "words": f"x {ratio}"},
                    {"metric": "rps", "verdict": "slower", "ratio": {"estimate": 0.5}, "words": "not primary"},
                ],
            }
        ],
    }


def code(of):
    """The exit code, and what was printed."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "result.json")
        path.write_text(json.dumps(of), encoding="utf-8")
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            return check_result.main(path), said.getvalue()


class CheckResult(unittest.TestCase):
    def test_only_the_primary_metric_and_far_ratios_count(self):
        self.assertEqual(code(result(1.04)), (3, "WORSE  gate: x 1.04\n"))
        self.assertEqual(code(result(1.02))[0], 0)
        self.assertEqual(code(result(1.04, verdict="undecided"))[0], 0)

    def test_a_set_up_that_failed_fails(self):
        found, said = code(result(1.04, failed={"why": "it ended by signal SEGV"}))
        self.assertEqual(found, 1)
        self.assertIn("FAILED gate, this: it ended by signal SEGV\n", said)

    def test_a_metric_with_another_direction_is_no_primary_one(self):
        with self.assertRaises(ValueError):
            code(result(0.9, metric="rps", better="higher"))
        self.assertTrue(check_result.is_far(0.9, "higher") and not check_result.is_far(1.1, "higher"))


if __name__ == "__main__":
    unittest.main()
