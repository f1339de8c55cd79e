#!/usr/bin/env python3
"""What an idle client connection takes of a server's memory.

    scripts/idle_clients.py ADDRESS:PORT PID COUNT [--tls]

Opens COUNT connections, each of which has one request answered and then waits, and prints a line of JSON: how much the resident memory of the
process has grown, and what of it is each connection's. The first hundred are opened before, so that what any load takes is not counted.
"""

import json
import pathlib
import socket
import ssl
import sys

FIRST = 100


def main():
    address, pid, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    secure = context() if sys.argv[4:] == ["--tls"] else None
    host, _, port = address.rpartition(":")
    opened = []
    for number in range(FIRST + count):
        if number == FIRST:
            before = resident(pid)
        opened.append(asked(host, int(port), secure))
    after = resident(pid)
    print(json.dumps({"connections": count, "before_bytes": before, "after_bytes": after, "each_bytes": (after - before) / count}))


def context():
    """TLS that trusts everybody: the server is ours."""
    made = ssl.create_default_context()
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made


def asked(host, port, secure):
    """A connection on which one request was answered."""
    client = socket.create_connection((host, port), timeout=10)
    if secure:
        client = secure.wrap_socket(client, server_hostname="localhost")
    client.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    answer = client.recv(65536)
    if not answer.startswith(b"HTTP/1.1 200") or b"connection: close" in answer.lower():
        sys.exit(f"idle_clients.py: {host}:{port} did not answer 200 and keep the connection: {answer[:80]!r}")
    return client


def resident(pid):
    """Its resident memory, bytes."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    sys.exit(f"idle_clients.py: process {pid} has no memory: it has ended")


if __name__ == "__main__":
    main()
