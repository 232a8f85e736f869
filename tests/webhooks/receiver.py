"""A webhook receiver as a process of its own: it verifies with the `standardwebhooks` library and answers as told.

`PUT /control/NAME` sets how the URL `/hook/NAME` answers and which secrets it tries; `GET /control/NAME` gives
what came. An answer is `{"status": 503, "headers": {...}, "body": "..."}`, or one of `{"never": true}`,
`{"drip": true}`, `{"endless": true}`, `{"raw": "not HTTP"}`, `{"kill": pid}`; the last one goes on for ever.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

OK = {"status": 204}


class Board:
    """What each hook answers, and what it got."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.hooks: dict[str, dict[str, Any]] = {}

    def hook(self, name: str) -> dict[str, Any]:
        return self.hooks.setdefault(name, {"answers": [OK], "secrets": [], "received": []})


BOARD = Board()


def verified(secret: str, body: bytes, headers: dict[str, str]) -> bool:
    try:
        Webhook(secret).verify(body, headers)
    except WebhookVerificationError:
        return False
    return True


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        with BOARD.lock:
            hook = BOARD.hook(self.path.rpartition("/hook/")[2])
            hook["received"].append(
                {
                    "path": self.path,
                    "headers": headers,
                    "document": json.loads(body),
                    "body": body.decode(),
                    "verified": [verified(secret, body, headers) for secret in hook["secrets"]],
                }
            )
            answers = hook["answers"]
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
        self.give(answer)

    def give(self, answer: dict[str, Any]) -> None:
        if "kill" in answer:
            os.kill(answer["kill"], signal.SIGKILL)
        if "never" in answer or "kill" in answer:
            self.until_they_leave()
        elif "raw" in answer:
            self.wfile.write(answer["raw"].encode())
            self.close_connection = True
        elif "drip" in answer or "endless" in answer:
            self.trickle(endless_body="endless" in answer)
        else:
            self.reply(answer["status"], answer.get("body", "").encode(), answer.get("headers", {}))

    def trickle(self, *, endless_body: bool) -> None:
        """Send header lines, or a body, without an end and without a pause that a read timeout would notice."""
        pause = threading.Event()
        with suppress(OSError):
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            self.wfile.write(b"Content-Length: 100000000\r\n\r\n" if endless_body else b"")
            for i in range(100_000):
                self.wfile.write(b"a" * 1000 if endless_body else b"X-%d: a\r\n" % i)
                pause.wait(0.02)
        self.close_connection = True

    def until_they_leave(self) -> None:
        with suppress(OSError):
            self.connection.recv(1)
        self.close_connection = True

    def do_GET(self) -> None:
        with BOARD.lock:
            received = BOARD.hook(self.path.rpartition("/")[2])["received"]
            self.reply(200, json.dumps(received).encode(), {})

    def do_PUT(self) -> None:
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with BOARD.lock:
            BOARD.hook(self.path.rpartition("/")[2]).update(wanted)
        self.reply(204, b"", {})

    def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        server.daemon_threads = True
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()  # with its parent
        server.serve_forever()


if __name__ == "__main__":
    main()
