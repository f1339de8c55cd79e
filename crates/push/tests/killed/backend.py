"""A backend on a unix socket: `backend.py SOCKET JOURNAL HANGS_FROM`.

Clients get the key that their query is. What it is told it writes down before it answers, a line each: PATH SESSION NAME BODY. From
the message with the number HANGS_FROM on, it answers no more (0: it always does).
"""

import http.server
import os
import socketserver
import sys
import threading

socket, journal, hangs_from = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT), int(sys.argv[3])
lock, count = threading.Lock(), 0


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer({"X-Kuiperbelt-Session": self.path.partition("?")[2]})

    def do_POST(self):
        global count
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        session, name = self.headers["X-Kuiperbelt-Session"], self.headers.get("X-Oroshi-Message", "-")
        with lock:
            os.write(journal, f"{self.path} {session} {name} {body.decode()}\n".encode())
            count += 1
            hangs = hangs_from and count >= hangs_from
        if hangs:
            threading.Event().wait()
        self.answer({})

    def answer(self, headers):
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128


if os.path.exists(socket):
    os.unlink(socket)
server = Server(socket, Handler)
print("listens", flush=True)
server.serve_forever()
