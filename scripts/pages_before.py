"""What commands of the pages take for granted: programs, and what runs before them, by page and heading."""

import os
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Programs that a section may name, and that not every machine has.
PROGRAMS = "jq nats-server nginx pebble pebble-challtestsrv plackup pkill ps puma rackup ruby unicorn".split()
MORE_PATH = "/usr/sbin:/sbin"
NATIVE = ROOT / "ruby/lib/oroshi/native.so"
NCHAN = "/usr/lib/nginx/modules/ngx_nchan_module.so"


def succeeds(*command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


# What else sections may need: by what names it in a section, a test for it, and what is missing without it.
PARTS = {
    r"(oroshi-rack|-s oroshi)\b": (lambda: os.path.exists(NATIVE), "the gem is not built in place: run make gem"),
    r"nchan": (lambda: os.path.exists(NCHAN), "nchan is not installed"),
    r"import jwt": (lambda: succeeds("/usr/bin/python3", "-c", "import jwt"), "python3-jwt is not installed"),
    r"-s Starlet": (lambda: succeeds("perl", "-MStarlet", "-e1"), "starlet is not installed"),
    r"lab run apart": (
        lambda: succeeds("unshare", "--net", *"tc qdisc add dev lo root tbf rate 1gbit burst 64k latency 1s".split()),
        "tc or the kernel's sch_tbf is not there",
    ),
}


def certificate(name):
    """Returns commands that make cert.pem and key.pem, which programs then trust."""
    return f"""
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -keyout key.pem -out cert.pem \\
    -addext subjectAltName=DNS:{name} -addext basicConstraints=critical,CA:false
export SSL_CERT_FILE=$PWD/cert.pem CURL_CA_BUNDLE=$PWD/cert.pem
"""


def file(name, text):
    """Returns a command that writes a file."""
    return f"\ncat >{name} <<'END'\n{text.strip()}\nEND\n"


def program(name, text):
    return file(name, f"#!/bin/sh\n{text}") + f"chmod +x {name}\n"


def agents(*names):
    """Returns commands that start NATS and agents."""
    nats = "--nats nats://10.0.0.1:4222 --key-file agents.key --allow 10.0.0.0/8"
    started = [f"oroshi agent {nats} --name {name} &\n" for name in names]
    return "\nnats-server -a 10.0.0.1 &\nopenssl rand -hex 32 >agents.key\n" + "".join(started)


TARGET = """
oroshi target --size 7 --listen 127.0.0.1:8080 --listen 127.0.0.1:8081 --listen unix:/run/app.sock \\
    --listen unix:/tmp/app.sock &
"""
PORT_8080 = "\noroshi target --listen 127.0.0.1:8080 &\n"
SERVER = program("server", "exec oroshi target")
RACK = "cp examples/rack/config.ru . && mkdir app lib"

# nginx as a hub, and as the backend of kuiperbelt's API, which gives each client the key that it asks for.
NGINX_CONF = """
load_module NCHAN;
pid nginx.pid; error_log error.log; worker_processes 1; events {}
http {
    access_log off;
    server {
        listen 127.0.0.1:8080; listen 127.0.0.1:8081;
        location = /pub { nchan_publisher; nchan_channel_id a; }
        location = /sub { nchan_subscriber; nchan_channel_id a; nchan_subscriber_first_message newest; }
    }
    server { listen 127.0.0.1:3000; location / { add_header X-Kuiperbelt-Session $http_x_key; return 200; } }
}
"""
HUB = file("nginx.conf", NGINX_CONF.replace("NCHAN", NCHAN)) + "nginx -p $PWD -c nginx.conf -e error.log\n"

# An authority for clients, and two certificates of it.
STAFF_CNF = """
[ca]
default_ca = staff
[staff]
database = index.txt
serial = serial
crlnumber = crlnumber
new_certs_dir = .
certificate = staff-ca.pem
private_key = staff-ca.key
default_md = sha256
default_days = 30
default_crl_days = 30
policy = name
x509_extensions = client
[name]
commonName = supplied
[client]
basicConstraints = CA:false
"""
STAFF = file("staff.cnf", STAFF_CNF) + """
touch index.txt; echo 01 >serial; echo 01 >crlnumber
new='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'
openssl req -x509 $new -subj /CN=staff -keyout staff-ca.key -out staff-ca.pem
for name in me anna; do openssl req -new $new -subj /CN=$name -keyout $name.key -out $name.csr; done
for name in me anna; do openssl ca -batch -config staff.cnf -in $name.csr -out $name.pem -notext; done
"""

# An experiment with two equal servers.
SMALL = """
title = "Two servers"
load.connections = 5
server = [{ name = "target", start = "{{oroshi}} target --listen 127.0.0.1:{{port}}" }]
variant = [
    { name = "one", server = "target", url = "http://127.0.0.1:{{port}}/" },
    { name = "other", server = "target", url = "http://127.0.0.1:{{port}}/" },
]
"""

BAD_LUA = """
local function with_token()
  local path = "/"
  return path .. token.value
end

function request()
  return wrk.format("GET", (with_token()))
end
"""
GATE_TOML = '[listen]\npublic = "127.0.0.1:8080"\nadmin = "unix:gate-admin.sock"\n[[route]]\nanswer = { status = 204 }'
PUSH_TOML = '[listen]\npublic = ":9180"\nadmin = "unix:push.sock"\n'
URLS = "for number in {1..20}; do echo http://127.0.0.1:8080/; done >urls.txt"
COMMIT = "git -c user.name=a -c user.email=a@localhost commit -q -m first"

# Servers and files that a section takes for granted: by page, or by page and heading.
BEFORE = {
    "README.md": TARGET,
    "README.ja.md": TARGET,
    # The second agent waits for the key that the page makes.
    "docs/agents.md#Three machines in five minutes": """
nats-server -a 10.0.0.1 &
oroshi target --listen 10.0.0.9:8080 &
nats='--nats nats://10.0.0.1:4222 --key-file agents.key --allow 10.0.0.0/8'
(until [[ -s agents.key ]]; do read -rt 0.05 <> <(:); done; exec oroshi agent $nats --name second) & true
""",
    "docs/agents.md#Scripts": agents("a", "b", "c") + "oroshi target --listen 10.0.0.9:80 &\ncp examples/scenarios/* .",
    "docs/agents.md#Subscriptions": agents("a", "b", "c")
    + file("push.toml", '[listen]\neverything = ["10.0.0.9:80"]')
    + "oroshi push --config push.toml &",
    "docs/bench.md": TARGET,
    "docs/bench.md#How much to send": certificate("localhost")
    + "oroshi target --listen https://127.0.0.1:8443 --cert cert.pem --key key.pem &"
    + TARGET,
    "docs/bench-lua.md": TARGET,
    "docs/bench-lua.md#When something is wrong": TARGET + file("bad.lua", BAD_LUA),
    "docs/bench-push.md": HUB,
    "docs/bench-push.md#Subscriptions": file("push.toml", 'compress-from-bytes = 100\n[listen]\neverything = [":9180"]')
    + "oroshi push --config push.toml &",
    "docs/bench-push.md#Messages": HUB
    + file("push.toml", '[listen]\neverything = [":9180"]\n[callbacks]\nconnect = "http://127.0.0.1:3000/"')
    + "oroshi push --config push.toml &",
    "docs/compare.md": TARGET
    + program("app-1", "exec oroshi target --listen 127.0.0.1:$2")
    + program("app-2", "exec oroshi target --listen 127.0.0.1:$2"),
    "docs/compare.md#With agents": agents("a", "b", "c", "d")
    + "oroshi target --listen 10.0.0.9:8080 --listen 10.0.0.9:8081 &",
    "docs/compare.md#In CI": "mkdir build-main build-this"
    + program("app.sh", "exec oroshi target --listen 127.0.0.1:$2")
    + "cp app.sh build-main/app && cp app.sh build-this/app\n"
    + file("Makefile", "app:\n\tcp app.sh app")
    + f"git init -q -b main && git add Makefile app.sh && {COMMIT}",
    "docs/examples.md": TARGET,
    "docs/fetch.md": PORT_8080 + URLS,
    "docs/fetch.md#`oroshi fetch`": PORT_8080 + URLS + "; echo http://127.0.0.1:8079/ >>urls.txt",
    "docs/fetch.md#Limits": "",
    "docs/gate.md#Operations": file("gate.toml", GATE_TOML),
    "docs/gate-tls.md#oroshi gate: TLS towards clients": certificate("www.example.org")
    + "mkdir certificates && cat cert.pem key.pem >certificates/www.pem\noroshi target --listen 10.0.0.7:8080 &",
    "docs/gate-tls.md#Certificates of stores": certificate("www.example.org")
    + "cat cert.pem key.pem >site.pem"
    + file("gate.toml", '[tls]\nseal = { key-env = "GATE_SEAL" }'),
    "docs/gate-tls.md#Certificates of clients": certificate("www.example.org")
    + "mkdir certificates && cat cert.pem key.pem >certificates/www.pem\noroshi target --listen 10.0.0.7:8080 &"
    + STAFF
    + file("gate.toml", '[listen]\ntls = ":443"\n[tls]\ncertificates = ["certificates"]'),
    "docs/history.md": f"{PORT_8080}git init -q && touch a && git add a && {COMMIT}",
    "docs/history.md#To exchange data with Apache Otava": file(
        "local.csv", "time,commit,latency,rate\n2026-11-01,aaaaaaa,1.5,200\n2026-11-02,bbbbbbb,1.6,190"
    ),
    "docs/install.md": "fpath=(. $HOME)\n"
    "mkdir -p $HOME/.local/share/bash-completion/completions $HOME/.config/fish/completions",
    "docs/lab.md#`oroshi lab`": file("my.toml", SMALL),
    # 4 and 5 say that there is no verdict, for which a machine must be quiet; 1 may say that time was too short.
    "docs/lab.md#The result": file("small.toml", SMALL)
    + "mkdir benchmarks\n"
    + "oroshi lab run small.toml --out oroshi-results/rack-servers-20261122-101500 || [[ $? == [145] ]]",
    "docs/push.md": "oroshi push --port 9180 &",
    "docs/push.md#Quick start": "",
    "docs/push.md#How sessions end": file("push.toml", PUSH_TOML),
    "docs/push.md#Command line": "cp examples/push/push.toml .",
    "docs/push.md#Operations": certificate("push.example.org")
    + "openssl rand -hex 32 >token"
    + file("push.toml", '[listen]\npublic = [":9180"]\nadmin = ["127.0.0.1:9181"]\n[auth]\ntoken-file = "token"')
    + file("tls.toml", '[listen]\ntls = ":443"\nadmin = "unix:@a"\n[tls]\ncertificates = "site"')
    + "mkdir site && cp cert.pem key.pem site\n"
    + "oroshi push --config push.toml &\noroshi push --config tls.toml &",
    "docs/push.md#Security": file("push.toml", PUSH_TOML + '[auth]\ntoken-file = "token"'),
    "docs/push-channels.md": "oroshi push --port 9180 &",
    "docs/push-cluster.md#Quick start": "nats-server &\n"
    + "".join(
        file(f"{node}.toml", f'[listen]\neverything = ":918{node}"\n[cluster]\nnats = "nats://nats.example.org:4222"')
        + f"oroshi push --config {node}.toml &"
        for node in (1, 2, 3)
    ),
    "docs/push-cluster.md#Where this stops scaling": "".join(
        file(f"{name}.toml", f'[listen]\neverything = ":{port}"\n[cluster]\nnats = "nats://127.0.0.1:4222"')
        for name, port in (("one", 9181), ("two", 9182))
    ),
    "docs/rack.md": RACK,
    "docs/scenarios.md": TARGET + "cp examples/scenarios/* .",
    "docs/scenarios-import.md": "cp /tmp/root/crates/scenario/src/import/recordings/firefox.har shop.har"
    + file("commands.sh", "curl http://localhost:8080/cart -d item=1")
    + file("more-commands.sh", "curl http://localhost:8080/pay --json {}"),
    "docs/start.md": SERVER,
    "docs/start.md#Which servers lose nothing": RACK
    + file("app.psgi", 'sub { [200, ["Content-Type", "text/plain"], ["here\\n"]] }'),
    "docs/start.md#From a shell": program("server", "exec oroshi push"),  # which sends READY=1
    "docs/start.md#What it is doing": "oroshi start --port 8080 --pid-file app.pid -- oroshi target &",
    "docs/ja/kuiperbelt.md#kuiperbelt から": "cp examples/push/config.yml .",
    "docs/ja/quick-start.md#比べる": PORT_8080,
    "docs/ja/rhebok.md": RACK,
    "docs/ja/wrk.md#TCP と UNIX ソケットを比べる": "oroshi target --listen unix:/tmp/app.sock &",
}


def missing(section):
    """Returns what a section needs and this machine does not have, or None."""
    path = f"{os.environ['PATH']}:{MORE_PATH}"
    for name in PROGRAMS:
        if re.search(rf"(?<![\w./-]){name}(?![\w.-])", section.text) and not shutil.which(name, path=path):
            return f"{name} is not installed"
    for pattern, (is_there, lack) in PARTS.items():
        if re.search(pattern, section.text) and not is_there():
            return lack
    return None
