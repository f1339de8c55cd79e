"""Every command of the pages: those of ```console are run, the others say that they are not."""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import unittest

import pages

TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", pages.ROOT / "target"))
OROSHI = os.environ.get("OROSHI") or str(TARGET / "debug/oroshi")
# What sections need beside oroshi itself.
PROGRAMS = ["unshare", "ip", "curl", "sqlite3", "openssl", "git"]


def may_unshare():
    return subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True).returncode == 0


def why_not():
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if missing:
        return f"{', '.join(missing)} not installed"
    if not os.path.exists(OROSHI):
        return f"{OROSHI} is not built"
    return None if may_unshare() else "this user may not make namespaces"


def skip(test, why):
    if os.environ.get("OROSHI_SKIPPED"):
        with open(os.environ["OROSHI_SKIPPED"], "a") as file:
            file.write(f"skipped: {test}: {why}\n")
    raise unittest.SkipTest(why)


class Pages(unittest.TestCase):
    def test_commands_do_what_the_pages_say(self):
        why = why_not()
        if why:
            skip("test_commands_do_what_the_pages_say", why)
        sections = [section for page in pages.pages() for section in pages.sections(page)[0]]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            problems = [problem for found in pool.map(lambda section: pages.walk(section, OROSHI), sections) for problem in found]
        self.assertEqual(problems, [], "\n".join(problems))
        self.assertGreater(sum(len(section.commands) for section in sections), 50)

    def test_every_block_of_commands_says_whether_it_is_run(self):
        wrong = [
            f"{page}:{line}: ```{info}: expected one of {', '.join(pages.CONSOLE)}"
            for page in pages.pages()
            for line, info in pages.sections(page)[1]
            if info not in pages.CONSOLE
        ]
        self.assertEqual(wrong, [])

    def test_a_wrong_command_is_found(self):
        why = why_not()
        if why:
            skip("test_a_wrong_command_is_found", why)
        for text, found in [
            ("```console\n$ oroshi bench --no-such-flag\n```", "ended with 2"),
            ("```console\n$ oroshi push --port 0 --config nothing.toml\n```", "ended with 2"),
            ("```console\n$ true\nerror: it fails\n```", "expected not 0"),
            ("```console\n$ false\n$ echo $?\n3\n```", "expected 3"),
        ]:
            (section,), _ = pages.sections("docs/none.md", text)
            (problem,) = pages.walk(section, OROSHI)
            self.assertIn(found, problem)

    def test_commands_end_where_quotes_do(self):
        text = "```console\n$ a 'b\n  c' \\\n  d\nsaid\n$ cat <<'END'\nx\nEND\n$ e # it's\n```\n"
        (section,), _ = pages.sections("docs/none.md", text)
        self.assertEqual([step[1] for step in section.commands], ["a 'b\n  c' \\\n  d", "cat <<'END'\nx\nEND", "e # it's"])
        self.assertEqual(section.commands[0][2], ["said"])


if __name__ == "__main__":
    unittest.main()
