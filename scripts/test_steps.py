"""Tests the steps of scripts/test: it ends one that hangs, but no silent compiler."""

import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).with_name("test")


def told(lines, **variables):
    """Returns the failures found after these lines of bash."""
    with tempfile.TemporaryDirectory() as logs:
        text = f"""
            source {SCRIPT}
            LOGS={logs}
            OROSHI_SKIPPED={logs}/skipped
            : >"$OROSHI_SKIPPED"
            {lines}
            printf '%s\\n' "${{failed[@]}}" >{logs}/told
        """
        environment = {name: value for name, value in os.environ.items() if name != "CI"} | variables
        subprocess.run(["bash", "-c", text], env=environment, check=True, stdout=subprocess.DEVNULL)
        return pathlib.Path(logs, "told").read_text(encoding="utf-8").split("\n")[:-1]


class Steps(unittest.TestCase):
    def test_a_step_that_prints_nothing_any_more_is_ended_and_the_next_one_begins(self):
        found = told(
            "step hangs sh -c 'echo begun; sleep 600'; step fails false; step works true", OROSHI_TEST_SILENCE="2"
        )
        self.assertEqual(
            found, ["hangs (it hangs: it printed nothing for 2 seconds)", "fails (exit code 1)"]
        )

    def test_a_step_that_goes_on_printing_is_not_ended(self):
        lines = "step talks sh -c 'for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.5; done'"
        self.assertEqual(told(lines, OROSHI_TEST_SILENCE="3"), [""])

    def test_a_compiler_may_be_silent(self):
        self.assertEqual(told("build compiler sleep 3", OROSHI_TEST_SILENCE="1"), [""])

    def test_in_ci_the_whole_has_an_end(self):
        found = told("build long sleep 600; step later true", CI="true", OROSHI_TEST_IN_ALL="1")
        self.assertEqual(
            found,
            ["long (not done when the whole had taken 1 seconds)", "later (not begun: the whole had taken 1 seconds)"],
        )


if __name__ == "__main__":
    unittest.main()
