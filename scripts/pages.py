"""Reads the commands of the pages, and runs them, behind those of pages_before.

A block of ```console holds commands, each behind `$ `, and what they print. scripts/test_pages.py runs them all, but
those of ```console not-run: they build for minutes, need the network or programs of yours, or change the machine. On
the site these blocks say that no test runs them.

The commands below one heading run in one shell, in a network of their own with empty /tmp and /run, in a folder that
holds `examples` and `experiments` of the repository and the files that the section shows: a line "`NAME`:" before a
block names a file, and "add to `NAME`:" appends to it. There, 10.0.0.0/8 and the names of hosts for examples
(www.example.org) lead to this machine. A section is left out, with a message, if a program that it needs is not there.

A server runs in the background, as if it had a terminal of its own. It runs until the end of the section; without `&`,
until the next server without `&`, because pages list servers of which a reader takes one. Loads are cut to a fraction
of a second, and to a hundred connections. Where a page uses a random value that an earlier command printed, such as
the key of a session, the value printed here takes its place.

A command has to end with 0. Where the page shows `error:` below it, it has to end with another code, and to say the
same but for numbers; where `echo $?` follows, with the code that the page shows. curl fails for statuses from 400 on,
unless the page shows the answer.
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile

import pages_before

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT_S = 120  # for one section
CONSOLE = ("console", "console not-run")
ERRORS = ("error:", '{"error"')
VALUE = re.compile("[0-9a-f]{32}")  # a random one
CHAT = "examples/push-chat/chat.rb"
# Servers that say when they are ready.
SPEAKS = re.compile(rf"\b(oroshi (agent|target|push|gate|start)|oroshi-rack|rackup|nats-server|pebble(?!-)|{CHAT})\b")


class Section:
    """The commands and files below a heading."""

    def __init__(self, page, heading):
        self.page, self.heading = page, heading
        self.steps = []  # ("file", name, ">" or ">>", text) or ("command", text, shown, line)

    @property
    def commands(self):
        return [step for step in self.steps if step[0] == "command"]

    @property
    def before(self):
        """The commands that go before those of the page."""
        text = pages_before.BEFORE.get(f"{self.page}#{self.heading}", pages_before.BEFORE.get(self.page, ""))
        found = []
        for line in text.split("\n"):
            if found and is_open(found[-1]):
                found[-1] += f"\n{line}"
            elif line:
                found.append(line)
        return found

    @property
    def text(self):
        """All that runs, and all files."""
        return "\n".join([*self.before, *(step[3] if step[0] == "file" else step[1] for step in self.steps)])


def pages():
    """Returns the pages of the site, relative to the root."""
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "docs/SUMMARY.md").read_text())
    return [os.path.normpath(f"docs/{link}") for link in links]


def sections(page, text=None):
    """Returns the sections of a page with commands to run, and the infos of its blocks that begin with `console`."""
    lines = (text or (ROOT / page).read_text()).split("\n")
    found, infos = [Section(page, "")], []
    number, before = 0, ""
    while number < len(lines):
        line = lines[number]
        fence = re.match(r"( *)```(.*)", line)  # in a list it is indented
        if re.match(r"#{1,2} ", line):
            found.append(Section(page, line.lstrip("# ")))
        elif fence:
            indent, info = fence[1], fence[2].strip()
            end = lines.index(f"{indent}```", number + 1)
            block = [line.removeprefix(indent) for line in lines[number + 1 : end]]
            if info.startswith("console"):
                infos.append((number + 1, info))
            if info == "console":
                found[-1].steps += commands(block, number + 2)
            named = re.search(r"(add to )?`([\w.-]+)`[^`]*[:：]$", before)
            if named and info not in CONSOLE:
                found[-1].steps.append(("file", named[2], ">>" if named[1] else ">", "\n".join(block) + "\n"))
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


def without_comment(command):
    for comment in re.finditer(r"\s+#", command):
        if not is_open(command[: comment.start()]):
            return command[: comment.start()]
    return command


def serves(command):
    """Returns how a command serves until it is ended: "front", "beside" those in front, or None."""
    if command.endswith("&"):
        return "beside"
    words = re.sub(r"^(\w+=\S+ )+", "", command).split()
    if words[:2] == ["curl", "-N"] or words[:3] == ["oroshi", "push", "top"] and "--samples" not in words:
        return "beside"
    first, rest = words[0], words[2:]
    if first == "oroshi" and len(words) > 1:
        front = {
            "agent": True,
            "target": True,
            "push": not {"--check", "top"} & set(rest),
            "gate": not {"--check", "explain", "purge", "status", "seal"} & set(rest),
            "start": not {"--restart", "--stop", "--status", "--daemonize"} & set(rest),
        }.get(words[1], False)
    else:
        rack = first == "oroshi-rack" and not {"--check", "--status", "top"} & set(words)
        front = rack or first == "rackup" or words[:2] == ["ruby", CHAT]
    return "front" if front else None


# Loads as short as they can be; everything else is as on the page.
SHIM = r"""#!/bin/bash
arguments=() cut=no time=200ms
[[ " $* " != *" --mode "* ]] || time=1s # so that messages arrive on a busy machine, too
case $1 in bench|compare) cut=yes ;; esac
while (($# > 0)); do
    if [[ $cut == yes ]]; then
        case $1 in
            -d) shift; arguments+=(-d $time); shift; continue ;;
            -d*) arguments+=(-d $time); shift; continue ;;
            -c) shift; [[ $1 =~ ^[0-9]{1,2}$ ]] || set -- 100 "${@:2}"; arguments+=(-c "$1"); shift; continue ;;
            --max-time) shift 2; continue ;;
            --) cut=no ;;
        esac
    fi
    arguments+=("$1"); shift
done
words=" ${arguments[*]} "
case $words in
    " compare"*" -s "*) arguments+=(--max-time 3s -d 200ms) ;;
    " compare "*) arguments+=(--max-time 3s) ;;
    " lab run unix-or-tcp "*) arguments+=(--max-time 1s --only "oroshi target") ;;
    " lab run "*) arguments+=(--max-time 1s) ;;
    " bench"*" -d "* | " bench"*" -n "* | " bench"*" --iterations "*) ;;
    " bench "*) arguments=(bench -d $time "${arguments[@]:1}") ;;
esac
[[ $words != " lab run "* || $words == *" --quick "* ]] || arguments+=(--quick)
[[ $words != *" --tui "* ]] || exec script -qefc "/tmp/itself/oroshi ${arguments[*]@Q}" /dev/null
exec /tmp/itself/oroshi "${arguments[@]}"
"""
# Root needs none.
SUDO = '#!/bin/sh\nexec "$@"\n'
# Statuses from 400 on are failures.
CURLRC = "fail-with-body\nsilent\nshow-error\n"

# In a namespace of its own: the walk's /tmp and /run; the repository stands in /tmp/root. A loopback device has the
# whole network of its address.
ENTER = rf"""
set -eu
mount --make-rprivate /
mount --bind "$1" "$2/tmp/root"
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/run" /run
mount --rbind "$2/tmp" /tmp
ip link set lo up
ip address add 10.0.0.1/8 dev lo
cd /tmp/walk
export HOME=/tmp/home OROSHI=/tmp/bin/oroshi RUBYLIB=/tmp/root/ruby/lib
export PATH="/tmp/bin:/tmp/root/ruby/exe:$PATH:{pages_before.MORE_PATH}"
exec bash /tmp/script
"""

SCRIPT_HEAD = r"""
set -o pipefail
servers=() front='' code=0
trap 'kill "${servers[@]}" 2>/dev/null; wait "${servers[@]}"' EXIT
READY='istening on|ready after|serving|open http|Server is ready|may connect to'
# ready PID LOG HOW: waits until a server says that it is ready, or ends; one that says nothing has a second to end.
ready() {
    local turn
    for ((turn = 0; turn < 600; turn++)); do
        case $3 in
            speaks) ! grep -qsE "$READY" "$2" || return 0 ;;
            streams) [[ ! -s $2 ]] || grep -qE '^curl: |"error"' "$2" || return 0 ;;
            mute) ((turn < 20)) || return 0 ;;
        esac
        kill -0 "$1" 2>/dev/null || { wait "$1" && [[ $3 == mute ]]; return; }
        read -rt 0.05 <> <(:) || true
    done
    return 1
}
: >/tmp/values # a command of sed for each
"""


def script(section):
    lines = [SCRIPT_HEAD]
    shown_before = set()

    def run(command, number, shown=()):
        said = f"/tmp/said.{number}"
        command = without_comment(command)
        bare = command.removesuffix("&")
        if any(value in shown_before for value in VALUE.findall(command)):
            bare = f"eval \"$(sed -f /tmp/values <<'END_OF_COMMAND'\n{bare}\nEND_OF_COMMAND\n)\""
        how = serves(command)
        if how == "front":
            lines.append('[[ -z $front ]] || { kill "$front" 2>/dev/null; wait "$front"; }')
        if how:
            kind = "streams" if command.startswith("curl") else "speaks" if SPEAKS.search(command) else "mute"
            own = re.search(r"> (\S+) 2>&1 $", bare)  # the page's log
            lines.append(f"{bare} &" if own else f"{bare} >{said} 2>&1 &")
            lines.append("servers+=($!) front=$!" if how == "front" else "servers+=($!)")
            lines.append(f"ready $! {own[1] if own else said} {kind}")
        else:
            lines.append(f"(exit $code)\n{{ {bare}\n}} >{said} 2>&1")
        lines.append(f'code=$?; echo "end {number} $code" >>/tmp/steps')
        values = [value for line in shown for value in VALUE.findall(line)]
        if values:
            pairs = f"paste -d, <(printf '%s\\n' {' '.join(values)}) <(grep -oE '{VALUE.pattern}' {said})"
            lines.append(f"{pairs} | sed 's/.*/s,&,g/' >>/tmp/values")
            shown_before.update(values)

    for place, command in enumerate(section.before):
        run(command, f"before-{place}")
    number = 0
    for step in section.steps:
        if step[0] == "file":
            _, name, how, text = step
            lines.append(f"cat {how}{shlex.quote(name)} <<'END_OF_FILE'\n{text}END_OF_FILE")
        else:
            run(step[1], number, step[2])
            number += 1
    return "\n".join(lines) + "\n"


def expected(section):
    """Returns the exit code of each command that the page shows: a number, or "not 0"."""
    codes = []
    steps = section.commands
    for place, (_, command, shown, _) in enumerate(steps):
        following = steps[place + 1 : place + 2]
        if following and following[0][1] == "echo $?":
            codes.append(int(following[0][2][0]))
        else:
            failed = any(line.startswith("Failed ") for line in shown)  # of oroshi fetch
            codes.append("not 0" if any(line.startswith("error:") for line in shown) else int(failed))
    return codes


def walk(section, oroshi):
    """Runs a section, and returns what went otherwise than the page says."""
    base = pathlib.Path(tempfile.mkdtemp(prefix="oroshi-pages-"))
    try:
        for folder in ("tmp/root", "tmp/bin", "tmp/itself", "tmp/walk", "tmp/home", "run/app"):
            (base / folder).mkdir(parents=True)
        base.chmod(0o755)  # servers that leave root's rights
        for folder in ("examples", "experiments"):
            (base / "tmp/walk" / folder).symlink_to(f"/tmp/root/{folder}")
        for name, text in (("oroshi", SHIM), ("sudo", SUDO)):
            (base / "tmp/bin" / name).write_text(text)
            (base / "tmp/bin" / name).chmod(0o755)
        if os.path.exists("/usr/bin/python3"):  # has Debian's packages; another one may stand before it
            (base / "tmp/bin/python3").symlink_to("/usr/bin/python3")
        (base / "tmp/home/.curlrc").write_text(CURLRC)
        names = sorted(set(re.findall(r"[\w.-]+\.example(?:\.org)?\b", section.text)))
        (base / "hosts").write_text(f"127.0.0.1 localhost {os.uname().nodename} {' '.join(names)}\n::1 localhost\n")
        try:
            os.link(oroshi, base / "tmp/itself/oroshi")
        except OSError:
            shutil.copy(oroshi, base / "tmp/itself/oroshi")
        (base / "tmp/script").write_text(script(section))
        unshare = "unshare --mount --net --pid --fork --kill-child --mount-proc bash -c".split()
        with open(base / "said", "w") as file:
            streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
            try:
                subprocess.run([*unshare, ENTER, "walk", ROOT, base], **streams, timeout=LIMIT_S, check=False)
            except subprocess.TimeoutExpired:
                file.write(f"\nended after {LIMIT_S} s")
        said = (base / "said").read_text(errors="replace")
        return compare(section, base / "tmp", said)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def compare(section, folder, said):
    steps = (folder / "steps").read_text().split("\n") if (folder / "steps").exists() else []
    ended = {words[1]: int(words[2]) for words in map(str.split, steps) if words[:1] == ["end"]}

    def log(number):
        file = folder / f"said.{number}"
        return file.read_text(errors="replace") if file.exists() else ""

    for number, command in enumerate(section.before):
        code = ended.get(f"before-{number}")
        if code != 0:
            place = f"{section.page}, before {section.heading}"
            return [f"{place}: `{command}` ended with {code}\n{(log(f'before-{number}') + said)[-1500:]}"]
    for number, ((_, command, shown, line), wanted) in enumerate(zip(section.commands, expected(section))):
        code, told = ended.get(str(number)), log(number)
        answered = code == 22 and shown and without_numbers(shown[0]) in without_numbers(told)
        if wanted == "not 0":
            fine = code not in (None, 0)
        else:
            fine = code == wanted or answered or wanted == 0 and may_end_with(code, command, told)
        if not fine:
            return [f"{section.page}:{line}: `{command}` ended with {code}: expected {wanted}\n{(told + said)[-1500:]}"]
        mistake = next((text for text in shown if text.startswith(ERRORS)), "")
        if without_numbers(mistake) not in without_numbers(told):
            return [f"{section.page}:{line}: `{command}` did not say: {mistake}\n{told[-1500:]}"]
    return []


def may_end_with(code, command, told):
    """Whether a command that did what it should may end with this code on a busy machine."""
    # Verdicts need a quiet machine and more than one commit: 4 is undecided, 5 disturbed, 1 names a figure without one.
    judges = re.search(r"\boroshi (compare|history check|lab run)\b", command)
    if judges and (code in (4, 5) or code == 1 and "error: not everything could be compared" in told):
        return True
    # 3: a condition was not met. 141: the end of a pipe had enough before its beginning was done.
    return code == 3 and "--fail-if" in command or code == 141


def without_numbers(text):
    return re.sub(r"\d[\d.,]*\s?([num]?s|m|h)?\b", "0", text)
