"""`python -m gradlab.report --serve FOLDER`: a run's page that follows the run, on this machine alone."""

from __future__ import annotations

import errno
import hashlib
import json
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gradlab.base.json_lines import plain
from gradlab.base.option import Invalid
from gradlab.base.visible import one_line, visible
from gradlab.report.pages.run_facts import facts
from gradlab.report.pages.run_page import following_page
from gradlab.runs.folder_files import reading
from gradlab.runs.record import RunRecord
from gradlab.runs.trust import refuse_links

HOST = "127.0.0.1"
SECONDS = 10.0
"""Within which a request must have arrived whole, and its answer have been read."""
CONNECTIONS = 64
"""At once; a browser has two or three."""
BYTES = 4_000_000
"""Of a file in one answer."""
BEFORE = 512
"""Bytes before a position in a file that identify it."""
FACTS = ("diagnosis.json", "environment.json", "replay.json", ".hydra/config.yaml", "crash.pt")


def news_of(path: Path, mark: str) -> dict[str, Any]:
    """The whole lines of a file after a mark, and the mark behind them.

    `anew`: the file no longer holds what stood before the mark (the run was resumed from a checkpoint, or began again),
    so the lines are all that it holds. `more`: there are more already.
    """
    place, known = where(mark)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            anew = place > size or (place > 0 and before(file, place) != known)
            place = 0 if anew else place
            file.seek(place)
            text = file.read(BYTES)
            end = text.rfind(b"\n") + 1
            place += end
            return {
                "text": text[:end].decode(errors="replace"),
                "mark": f"{place}:{before(file, place)}",
                "anew": anew,
                "more": end > 0 and place < size,
            }
    except OSError:  # not there, or no file
        return {"text": "", "mark": "", "anew": place > 0, "more": False}


def where(mark: str) -> tuple[int, str]:
    """Bytes before a mark, and what is known of the last of them."""
    place, _, known = mark.partition(":")
    return (int(place), known) if place.isascii() and place.isdigit() and len(place) < 16 else (0, "")


def before(file: Any, place: int) -> str:
    """What the bytes before a place are known by."""
    start = max(place - BEFORE, 0)
    file.seek(start)
    return hashlib.blake2b(file.read(place - start), digest_size=8).hexdigest()


def changed(folder: Path) -> str:
    """What changes whenever one of the small files does."""
    times = []
    for name in (*FACTS, "metrics.jsonl"):
        try:
            times.append((folder / name).stat().st_mtime_ns)
        except OSError:
            times.append(0)
    over = times[0] >= times.pop()  # else the diagnosis is of the part before a resumption
    return hashlib.blake2b(repr((times, over)).encode(), digest_size=8).hexdigest()


def current_facts(folder: Path) -> dict[str, Any]:
    """All that is known of a run but its lines; of a run that was resumed, no verdict of the earlier part."""
    run = RunRecord(folder)
    diagnosis, metrics = folder / "diagnosis.json", folder / "metrics.jsonl"
    if run.diagnosis and metrics.is_file() and metrics.stat().st_mtime_ns > diagnosis.stat().st_mtime_ns:
        run.typed, run.diagnosis = run.overrides, {}
    return facts(run)


def news(folder: Path, marks: dict[str, str]) -> dict[str, Any]:
    """What a page that has come so far does not know yet."""
    mark = changed(folder)
    answer: dict[str, Any] = {
        name: news_of(folder / f"{name}.jsonl", marks.get(name, "")) for name in ("metrics", "layers")
    }
    answer["more"] = any(answer[name]["more"] for name in ("metrics", "layers"))
    answer["facts"] = None
    if mark != marks.get("facts"):
        with suppress(Invalid, OSError):  # half written by somebody else: the next question finds it whole
            answer["facts"] = {"mark": mark, "content": plain(current_facts(folder))}
    return answer


class Handler(BaseHTTPRequestHandler):
    """Two addresses, / and /news; nothing that is asked names a file."""

    server: Server
    timeout = SECONDS

    def do_GET(self) -> None:
        self.server.reading.pop(self.connection, None)  # it has come whole
        folder = self.server.folder
        if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
            self.answer(403, "text/plain", b"asked under another name than 127.0.0.1")  # a web page elsewhere may ask
            return
        try:
            asked = urlsplit(self.path)
            refuse_links("FOLDER", folder)
            with reading(folder):
                if asked.path == "/":
                    self.answer(200, "text/html", following_page(folder).encode())
                elif asked.path == "/news":
                    marks = {name: values[-1] for name, values in parse_qs(asked.query).items()}
                    self.answer(200, "application/json", json.dumps(news(folder, marks), allow_nan=False).encode())
                else:
                    self.answer(404, "text/plain", b"there are / and /news")
        except Invalid as error:
            self.answer(403, "text/plain", visible(str(error)).encode())
        except ValueError as error:  # of urlsplit
            self.answer(400, "text/plain", visible(str(error)).encode())

    def answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: it is asked every second."""


class Server(ThreadingHTTPServer):
    """Of one folder."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder.resolve()
        self.free = threading.Semaphore(CONNECTIONS)
        self.reading: dict[socket.socket, float] = {}
        """Connections whose request has not come whole, and until when it must."""
        super().__init__((HOST, port), Handler)

    def service_actions(self) -> None:
        """Called by serve_forever. A socket's own timeout begins anew with each byte that comes."""
        for request, until in list(self.reading.items()):
            if time.monotonic() > until:
                self.reading.pop(request, None)
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.free.acquire(blocking=False):
            self.reading[request] = time.monotonic() + SECONDS
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.reading.pop(request, None)
            self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error."""

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"


def bound(folder: Path, port: int | None) -> Server:
    """A server on a port, or where none was asked for on 8080 if it is free."""
    try:
        return Server(folder, 8080 if port is None else port)
    except OSError as error:
        if port is None:
            return Server(folder, 0)
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        raise Invalid("--port", port, "is taken, or not allowed; 0 takes a free one" if taken else str(error)) from None


def serve(folder: Path, port: int | None) -> int:
    """Until Ctrl-C."""
    refuse_links("FOLDER", folder)
    with bound(folder, port) as server:
        print(f"{one_line(str(folder))}: {server.address} (Ctrl-C ends)", flush=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True)
        thread.start()
        try:
            thread.join()
        except KeyboardInterrupt:
            print()
        server.shutdown()
    return 0
