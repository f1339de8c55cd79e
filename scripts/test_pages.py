"""Every command of the pages: those of ```console are run, the others say that they are not."""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import unittest
import unittest.mock

import pages
import pages_before

TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", pages.ROOT / "target"))
OROSHI = os.environ.get("OROSHI") or str(TARGET / "debug/oroshi")
# What sections need beside oroshi itself.
PROGRAMS = ["unshare", "ip", "curl", "sqlite3", "openssl", "git", "script"]


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
        sections = []
        for section in (section for page in pages.pages() for section in pages.sections(page)[0]):
            name = f"{section.page}, {section.heading}"
            with self.subTest(name):
                lacks = pages_before.missing(section)
                if lacks:
                    skip(name, lacks)
                sections.append(section)
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
            ("```console\n$ ls nothing\nerror: it fails\n```", "did not say: error: it fails"),
            ("```console\n$ false | true\n```", "ended with 1"),
            ("- a list\n\n  ```console\n  $ false\n  ```", "ended with 1"),
            ("```console\n$ oroshi push --port 80 &\n$ curl http://localhost/nothing\n```", "ended with 22"),
            ("```console\n$ false\n$ echo $?\n3\n```", "expected 3"),
        ]:
            (section,), _ = pages.sections("docs/none.md", text)
            (problem,) = pages.walk(section, OROSHI)
            self.assertIn(found, problem)

    def test_values_and_files_are_those_of_here(self):
        why = why_not()
        if why:
            skip("test_values_and_files_are_those_of_here", why)
        value, text = "0123456789abcdef" * 2, "`a.txt`:\n\n```\none\n```\n\nAnd add to `a.txt`:\n\n```\ntwo\n```\n\n"
        text += f"```console\n$ openssl rand -hex 16 | tee made\n{value}\n$ [ {value} = $(cat made) ]   # so it is\n"
        text += "$ diff a.txt <(printf 'one\\ntwo\\n')\n$ oroshi target --listen www.example.org:80\n"
        text += "$ oroshi target --listen 10.1.2.3:80   # instead of the first\n$ curl http://10.1.2.3/\n"
        text += "$ curl http://www.example.org/\n```"
        (section,), _ = pages.sections("docs/none.md", text)
        (problem,) = pages.walk(section, OROSHI)
        self.assertIn("`curl http://www.example.org/` ended with 7", problem)

    def test_what_a_section_lacks(self):
        for command, lacks in [("jq .", None), ("cat nginx.conf", None), ("nginx -V", "nginx is not installed")]:
            (section,), _ = pages.sections("docs/none.md", f"```console\n$ {command}\n```")
            with unittest.mock.patch("shutil.which", lambda program, path=None: program != "nginx"):
                self.assertEqual(pages_before.missing(section), lacks, command)

    def test_commands_end_where_quotes_do(self):
        text = "```console\n$ a 'b\n  c' \\\n  d\nsaid\n$ cat <<'END'\nx\nEND\n$ e # it's\n```\n"
        (section,), _ = pages.sections("docs/none.md", text)
        self.assertEqual([step[1] for step in section.commands], ["a 'b\n  c' \\\n  d", "cat <<'END'\nx\nEND", "e # it's"])
        self.assertEqual(section.commands[0][2], ["said"])


if __name__ == "__main__":
    unittest.main()
