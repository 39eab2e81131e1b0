"""HTTP and metrics, as the checks need them."""

import contextlib
import http.client
import json
import re
import socket
from dataclasses import dataclass


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict
    body: bytes

    def json(self):
        return json.loads(self.body)


def ask(port, method, path, body=None, headers=None):
    """One request to a server on this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        names = {name.lower(): value for name, value in reply.getheaders()}
        return Reply(reply.status, names, reply.read())


def metrics(port):
    """Prometheus text by name, summed over labels."""
    sums = {}
    for line in ask(port, "GET", "/metrics").body.decode().splitlines():
        sample = re.fullmatch(r"([^#{ ]+)(?:\{.*\})? (\S+)", line)
        if sample:
            sums[sample[1]] = sums.get(sample[1], 0) + float(sample[2])
    return sums


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
