"""Reads the commands of the pages, and runs them.

A block of ```console holds commands, each behind `$ `, and what they print. scripts/test_pages.py runs them all, but those
of ```console not-run: they build for minutes, need root, the network or programs of yours, or show a mistake in a file that
the page does not have. On the site these blocks say that no test runs them.

The commands below one heading run in one shell, in a network of their own with empty /tmp and /run, in a folder that holds
`examples` of the repository and the files that the section shows (a line "`NAME`:" in front of a block). A server runs in
the background, as if it had a terminal of its own, until the end of the section. Loads are cut to a fraction of a second.
A command has to end with 0; where the page shows `error:` below it, with another code; where `echo $?` follows, with the
code that the page shows.
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT_S = 120  # for one section
CONSOLE = ("console", "console not-run")

# Servers and files that a section takes for granted: by page, or by page and heading.
BEFORE = {
    "README.md": "oroshi target --listen 127.0.0.1:8080 --listen unix:/tmp/app.sock --size 7 &",
    "docs/bench.md": "oroshi target --listen 127.0.0.1:8080 &",
    "docs/compare.md": "for app in app-1 app-2; do printf '#!/bin/sh\\nexec oroshi target --listen 127.0.0.1:$2\\n' >$app; chmod +x $app; done\noroshi target --listen 127.0.0.1:8080 --listen 127.0.0.1:8081 --listen unix:/run/app.sock --listen unix:/tmp/app.sock &",
    "docs/bench.md#How much to send": "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost "
    "-addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:false -keyout key.pem -out cert.pem 2>/dev/null\nexport SSL_CERT_FILE=$PWD/cert.pem\n"
    "oroshi target --listen https://127.0.0.1:8443 --cert cert.pem --key key.pem &\n"
    "oroshi target --listen 127.0.0.1:8080 --listen unix:/run/app.sock &",
    "docs/bench-lua.md": "oroshi target --listen 127.0.0.1:8080 &",
    "docs/examples.md": "oroshi target --listen 127.0.0.1:8080 --listen unix:/run/app.sock &",
    "docs/history.md": "git init -q && git -c user.name=a -c user.email=a@localhost commit -q --allow-empty -m first\noroshi target --listen 127.0.0.1:8080 &",
    "docs/scenarios.md": "oroshi target --listen 127.0.0.1:8080 &\ncp examples/scenarios/* .",
    "docs/push.md": "oroshi push --port 9180 &",
    "docs/push.md#Quick start": "",
    "docs/push-channels.md": "oroshi push --port 9180 &",
    "docs/push.md#How sessions end": "printf '[listen]\\npublic = [\":9180\"]\\nadmin = [\"unix:push.sock\"]\\n' >push.toml",
    "docs/push.md#Command line": "cp examples/push/push.toml .",
    "docs/fetch.md": "oroshi target --listen 127.0.0.1:8080 &\nyes http://127.0.0.1:8080/ | head -20 >urls.txt",
    "docs/install.md": "fpath=(. $HOME)\nmkdir -p $HOME/.local/share/bash-completion/completions $HOME/.config/fish/completions",
    "README.ja.md": "oroshi target --listen 127.0.0.1:8080 --listen unix:/tmp/app.sock --size 7 &",
    "docs/ja/quick-start.md#比べる": "oroshi target --listen 127.0.0.1:8080 &",
    "docs/ja/wrk.md#TCP と UNIX ソケットを比べる": "oroshi target --listen unix:/tmp/app.sock &",
    "docs/gate.md#Operations": "printf '[listen]\\npublic = \"127.0.0.1:8080\"\\nadmin = \"unix:gate-admin.sock\"\\n[[route]]\\nanswer = { status = 204 }\\n' >gate.toml",
    "docs/start.md#What it is doing": "oroshi start --port 8080 --pid-file app.pid -- oroshi target &",
    "docs/start.md": "printf '#!/bin/sh\\nexec oroshi target\\n' >server; chmod +x server",
    "docs/start.md#`oroshi start`": "printf '#!/bin/sh\\nexec oroshi target\\n' >server; chmod +x server",
}


class Section:
    """The commands and files below a heading."""

    def __init__(self, page, heading):
        self.page, self.heading = page, heading
        self.steps = []  # ("file", name, text) or ("command", text, shown, line)

    @property
    def commands(self):
        return [step for step in self.steps if step[0] == "command"]


def pages():
    """Returns the pages of the site, relative to the root."""
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "docs/SUMMARY.md").read_text())
    return [os.path.normpath(f"docs/{link}") for link in links]


def sections(page, text=None):
    """Returns the sections of a page that have commands to run, and the infos of its blocks that begin with `console`."""
    lines = (text or (ROOT / page).read_text()).split("\n")
    found, infos = [Section(page, "")], []
    number, before = 0, ""
    while number < len(lines):
        line = lines[number]
        if re.match(r"#{1,2} ", line):
            found.append(Section(page, line.lstrip("# ")))
        elif line.startswith("```"):
            end = lines.index("```", number + 1)
            info, block = line[3:].strip(), lines[number + 1 : end]
            if info.startswith("console"):
                infos.append((number + 1, info))
            if info == "console":
                found[-1].steps += commands(block, number + 2)
            named = re.search(r"`([\w.-]+)`[^`]*[:：]$", before)
            if named and info not in CONSOLE:
                found[-1].steps.append(("file", named[1], "\n".join(block) + "\n"))
            number = end
        if line.strip():
            before = line
        number += 1
    return [section for section in found if section.commands], infos


def commands(block, first):
    """Returns the steps of a block: a command may go on in lines below it, while a quote or a `\\` is open."""
    steps = []
    for number, line in enumerate(block):
        if line.startswith("$ "):
            steps.append(["command", line[2:], [], first + number])
        elif steps and is_open(steps[-1][1]):
            steps[-1][1] += "\n" + line
        elif steps:
            steps[-1][2].append(line)
    return [tuple(step) for step in steps]


def is_open(command):
    here = re.search(r"<<'(\w+)'", command)
    if here:
        return not command.endswith(f"\n{here[1]}")
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return command.endswith("\\")


def is_server(command):
    """Whether a command serves until it is ended."""
    if re.search(r"&\s*(#.*)?$", command):
        return True
    words = re.sub(r"^\w+=\S+ ", "", command).split()
    if words[:2] == ["curl", "-N"]:
        return True
    if words[:1] != ["oroshi"] or len(words) < 2:
        return False
    rest = words[2:]
    return {
        "target": True,
        "push": "--check" not in rest and "top" not in rest,
        "gate": "--check" not in rest and not {"explain", "purge", "status", "seal"} & set(rest),
        "start": not {"--restart", "--stop", "--status", "--daemonize"} & set(rest),
    }.get(words[1], False)


# Loads as short as they can be; everything else is as on the page.
SHIM = r"""#!/bin/bash
arguments=() cut=no
case $1 in bench|compare) cut=yes ;; esac
while (($# > 0)); do
    if [[ $cut == yes ]]; then
        case $1 in
            -d) shift; arguments+=(-d 200ms); shift; continue ;;
            -d*) arguments+=(-d 200ms); shift; continue ;;
            --max-time) shift 2; continue ;;
            --) cut=no ;;
        esac
    fi
    arguments+=("$1"); shift
done
[[ ${arguments[0]} != compare ]] || arguments+=(--max-time 3s)
[[ ${arguments[0]} != bench || " ${arguments[*]} " == *" -d "* || " ${arguments[*]} " == *" -n "* || " ${arguments[*]} " == *" -s "* ]] || arguments=(bench -d 200ms "${arguments[@]:1}")
exec OROSHI "${arguments[@]}"
"""

# In a namespace of its own: the walk's /tmp and /run; the repository stands in /tmp/root.
ENTER = r"""
set -eu
mount --make-rprivate /
mount --bind "$1" "$2/tmp/root"
mount --bind "$2/run" /run
mount --rbind "$2/tmp" /tmp
ip link set lo up
cd /tmp/walk
export HOME=/tmp/home PATH="/tmp/bin:$PATH"
exec bash /tmp/script
"""

SCRIPT_HEAD = r"""
servers=() code=0
trap 'kill "${servers[@]}" 2>/dev/null; wait' EXIT
# A server is ready when it says so, or ends; one that says nothing has a second to end with a mistake.
ready() {
    local turn
    for ((turn = 0; turn < 600; turn++)); do
        ! grep -qE 'listening on|ready after|serving|open http' "$2" 2>/dev/null || return 0
        kill -0 "$1" 2>/dev/null || { wait "$1"; return; }
        ((turn < 20)) || [[ $3 == speaks ]] || return 0
        read -rt 0.05 <> <(:) || true
    done
    return 1
}
"""


def script(section):
    key = f"{section.page}#{section.heading}"
    lines = [SCRIPT_HEAD]
    number = 0

    def run(command, number):
        lines.append(f'echo "begin {number}" >>/tmp/steps; (exit $code)')
        if is_server(command):
            bare = re.sub(r"&\s*(#.*)?$", "", command)
            speaks = "speaks" if re.search(r"\boroshi (target|push|gate|start)\b", command) else "mute"
            lines.append(f"{bare} >/tmp/log.{number} 2>&1 &\nservers+=($!); ready $! /tmp/log.{number} {speaks}")
        else:
            lines.append(command)
        lines.append(f'code=$?; echo "end {number} $code" >>/tmp/steps')

    for place, command in enumerate(filter(None, BEFORE.get(key, BEFORE.get(section.page, "")).split("\n"))):
        run(command, f"before-{place}")
    for step in section.steps:
        if step[0] == "file":
            lines.append(f"cat >{shlex.quote(step[1])} <<'END_OF_FILE'\n{step[2]}END_OF_FILE")
        else:
            run(step[1], number)
            number += 1
    return "\n".join(lines) + "\n"


def expected(section):
    """Returns the exit code of each command that the page shows: a number, or "not 0"."""
    codes = []
    steps = section.commands
    for place, (_, command, shown, _) in enumerate(steps):
        following = steps[place + 1] if place + 1 < len(steps) else None
        if following and following[1] == "echo $?":
            codes.append(int(following[2][0]))
        else:
            codes.append("not 0" if any(line.startswith("error:") for line in shown) else 0)
    return codes


def walk(section, oroshi):
    """Runs a section, and returns what went otherwise than the page says."""
    base = pathlib.Path(tempfile.mkdtemp(prefix="oroshi-pages-"))
    try:
        for folder in ("tmp/root", "tmp/bin", "tmp/walk", "tmp/home", "run/app"):
            (base / folder).mkdir(parents=True)
        (base / "tmp/walk/examples").symlink_to("/tmp/root/examples")
        shim = base / "tmp/bin/oroshi"
        shim.write_text(SHIM.replace("OROSHI", "/tmp/bin/oroshi-itself"))
        shim.chmod(0o755)
        try:
            os.link(oroshi, base / "tmp/bin/oroshi-itself")
        except OSError:
            shutil.copy(oroshi, base / "tmp/bin/oroshi-itself")
        (base / "tmp/script").write_text(script(section))
        command = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", ENTER, "walk", str(ROOT), str(base)]
        try:
            ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=LIMIT_S)
            said = ran.stdout + ran.stderr
        except subprocess.TimeoutExpired as error:
            said = f"{(error.stdout or b'').decode(errors='replace')}\nended after {LIMIT_S} s"
        return compare(section, base / "tmp", said)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def compare(section, folder, said):
    steps = (folder / "steps").read_text().split("\n") if (folder / "steps").exists() else []
    ended = {words[1]: int(words[2]) for words in map(str.split, steps) if words[:1] == ["end"]}
    problems = []
    for number, ((_, command, _, line), wanted) in enumerate(zip(section.commands, expected(section))):
        code = ended.get(str(number))
        # Verdicts need a quiet machine, and more than one commit: 4 is undecided, 5 is disturbed, 1 names a figure without one.
        without = code in (4, 5) or code == 1 and "error: not everything could be compared" in said
        undecided = without and wanted == 0 and re.search(r"\boroshi (compare|history check)\b", command)
        fine = code is not None and (code != 0 if wanted == "not 0" else code == wanted or undecided)
        if not fine:
            log = folder / f"log.{number}"
            told = log.read_text(errors="replace") if log.exists() else said
            problems.append(f"{section.page}:{line}: `{command}` ended with {code}: expected {wanted}\n{told[-1500:]}")
            break  # later commands may depend on it
    return problems
