"""The application of the peers' tests for gunicorn; app.go says what it does, but for WebSocket and trailers."""

import os

log = os.open(os.environ["PEER_LOG"], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)


def application(environ, start_response):
    body = environ["wsgi.input"].read()
    announced = environ.get("CONTENT_LENGTH")
    if announced and int(announced) != len(body):
        raise ValueError("the body is not whole")
    read = f"{environ['REQUEST_METHOD']} {environ['RAW_URI']} {len(body)}"
    os.write(log, f"{read}\n".encode("latin-1"))
    start_response(
        "200 OK",
        [("X-Read", read), ("Content-Type", "application/octet-stream"), ("Content-Length", str(len(body)))],
    )
    # gunicorn sends what it is given, to HEAD as well.
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]
