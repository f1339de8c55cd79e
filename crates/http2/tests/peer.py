"""The other side of tests/all/peers.rs: the PyPI packages hpack and h2, driven line by line.

`hpack`: reads header blocks in hexadecimal, one a line, and prints the fields of each as JSON.
`client`: a client of h2. It prints what it sends in hexadecimal, reads what the server sends, and ends with the bodies
that it has received.
"""

import json
import sys

import h2.config
import h2.connection
import h2.events
import hpack

REQUESTS = 30


def decode_blocks():
    decoder = hpack.Decoder()
    for line in sys.stdin:
        fields = decoder.decode(bytes.fromhex(line), raw=True)
        print(json.dumps([[name.hex(), value.hex()] for name, value in fields]), flush=True)


def run_client():
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
    connection.initiate_connection()
    bodies, open_streams, unsent = {}, set(), {}
    for number in range(REQUESTS):
        stream = connection.get_next_available_stream_id()
        body = bytes([number]) * (number * 997)
        head = [(":method", "POST"), (":scheme", "http"), (":path", f"/{number}"), (":authority", "a"), ("x-same", "1")]
        connection.send_headers(stream, head + [("content-length", str(len(body)))])
        bodies[stream], unsent[stream] = b"", body
        open_streams.add(stream)
    while open_streams:
        for stream, rest in unsent.items():
            while rest is not None:
                most = min(connection.local_flow_control_window(stream), connection.max_outbound_frame_size)
                if most == 0 and rest:
                    break
                piece, rest = rest[:most], rest[most:]
                connection.send_data(stream, piece, end_stream=not rest)
                rest = rest or None
            unsent[stream] = rest
        print(connection.data_to_send().hex(), flush=True)
        line = sys.stdin.readline()
        if not line:
            raise SystemExit("the server is gone")
        for event in connection.receive_data(bytes.fromhex(line)):
            if isinstance(event, h2.events.ResponseReceived):
                assert dict(event.headers)[":status"] == "200", event
            elif isinstance(event, h2.events.DataReceived):
                bodies[event.stream_id] += event.data
                connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.TrailersReceived):
                assert dict(event.headers) == {"x-sum": str(len(bodies[event.stream_id]))}, event
            elif isinstance(event, h2.events.StreamEnded):
                open_streams.discard(event.stream_id)
            elif isinstance(event, (h2.events.StreamReset, h2.events.ConnectionTerminated)):
                raise SystemExit(repr(event))
    print("done " + json.dumps([[len(body), set(body) <= {number}] for number, body in enumerate(bodies.values())]))


{"hpack": decode_blocks, "client": run_client}[sys.argv[1]]()
