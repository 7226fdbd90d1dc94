"""Hostile requests to a page that follows a run, and hostile text and files in the folders that pages are made of."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import made
import sweeps

from gradlab import advise, show
from gradlab import list as listing
from gradlab.report import command as report
from gradlab.report.pages import live_page

SECRET = "what nobody may read"
SECONDS = 1.0
"""For a request to come whole; the server's own are ten."""
HELD = 15.0
"""A connection that is open for so long is held, however busy the machine is."""
REFUSALS = {b"400", b"403", b"404", b"414", b"431", b"501", b"505"}
PATHS = (
    *("/../secret", "/%2e%2e/secret", "/..%2fsecret", "/%252e%252e/secret", "/..\\secret", "//secret", "/./../secret"),
    *(
        "/news/../../secret",
        "/news/..;/secret",
        "/metrics.jsonl",
        "/.hydra/config.yaml",
        "/checkpoint.pt",
        "/etc/passwd",
    ),
    *("http://127.0.0.1/../secret", "file:///etc/passwd", "http://[", "//[::1", "*", "?", "/\0", "/%00", "/%", "/%zz"),
    *("/%c0%ae%c0%ae/secret", "/%ff%fe", "/\xff\xfe", "/news?%", "/news?metrics=%zz", "/news?metrics=-1:x&facts=%00"),
    *(
        "/news?metrics=9999999999999999999999:0",
        "/news?" + "metrics=1:a&" * 3000,
        "/" + "a" * 70_000,
        "/<script>",
        "/\x1b[2J",
    ),
)
METHODS = ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "PATCH", "get", "G\x1b[2JT", "<b>", "do_GET")
HOST = "Host: 127.0.0.1:80\r\n"


def request(draw: random.Random) -> tuple[str, list[bytes]]:
    """What is sent: a kind, and parts, between which a while passes."""
    path = draw.choice(PATHS)
    headers = {
        "huge headers": "X: " + "y" * 70_000 + "\r\n",
        "many headers": "".join(f"X{i}: y\r\n" for i in range(draw.choice([150, 20_000]))),
        "odd headers": draw.choice(["no colon\r\n", ": none\r\n", "X: \0\x1b[2J\r\n", " X: y\r\n", "X: \xff\r\n"]),
        "a body that does not come": "Content-Length: 1000000000000\r\nTransfer-Encoding: chunked\r\n",
        "another host": draw.choice(
            ["Host: evil.example\r\n", "Host: 127.0.0.1.evil.example:80\r\n", "Host: [::]\r\n"]
        ),
    }
    kind = draw.choice(["path", "path", "path", "method", "slow", "silent", "half", "no protocol", "noise", *headers])
    whole = f"GET {path} HTTP/1.1\r\n{HOST}\r\n"
    if kind == "path":
        return kind, [whole.encode("latin-1")]
    if kind == "method":
        return kind, [f"{draw.choice(METHODS)} {path} HTTP/1.1\r\n{HOST}\r\n".encode("latin-1")]
    if kind in headers:
        own = headers[kind] if kind == "another host" else HOST + headers[kind]
        return kind, [f"GET {draw.choice(['/', '/news', path])} HTTP/1.1\r\n{own}\r\n".encode("latin-1")]
    if kind == "slow":
        return kind, [bytes([byte]) for byte in f"GET /news HTTP/1.1\r\n{HOST}X: {'y' * 200}\r\n\r\n".encode()]
    if kind == "silent":
        return kind, [b"", b"", b""]
    if kind == "half":
        return kind, [whole.encode("latin-1")[: draw.randrange(1, 40)], b""]
    if kind == "no protocol":
        return kind, [draw.choice([b"GET\r\n\r\n", b"\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/x\r\n\r\n"])]
    return kind, [draw.choice([b"\x16\x03\x01\x02\x00" + draw.randbytes(500), draw.randbytes(5000), b"PRI * HTTP/2.0"])]


def answer(address: tuple[str, int], parts: list[bytes]) -> bytes:
    """All that comes back; raises `TimeoutError` where the connection is held."""
    got, end = b"", time.monotonic() + HELD
    with socket.create_connection(address, timeout=HELD) as one, contextlib.suppress(ConnectionError):
        for i, part in enumerate(parts):
            one.sendall(part)
            if i + 1 < len(parts):
                time.sleep(SECONDS / 20)
        while more := one.recv(1 << 16):
            got += more
            if time.monotonic() > end:
                raise TimeoutError
    return got


class Server(live_page.Server):
    """Keeps what went wrong in answering, but for connections that were broken."""

    wrong: list[str]

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            self.wrong.append(traceback.format_exc(limit=-3))


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Server]:
    before = live_page.SECONDS, live_page.Handler.timeout
    live_page.SECONDS = live_page.Handler.timeout = SECONDS
    try:
        with Server(folder, 0) as server:
            server.wrong = []
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            yield server
            server.shutdown()
    finally:
        live_page.SECONDS, live_page.Handler.timeout = before


def requests(seed: int, number: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """How many requests of a kind were answered and how, and the faults."""
    draw, counts, faults = random.Random(seed), Counter[str](), list[str]()
    (folder / "secret").write_text(SECRET)
    run = made.run(folder / "run", [made.line(1, 3.0), made.line(2, 2.0)], made.diagnosis())
    with served(run) as server:
        address = ("127.0.0.1", server.server_address[1])
        threads = threading.active_count()
        for case in range(number):
            kind, parts = request(draw)
            where = f"request {case}, {kind}: {b''.join(parts)[:80]!r}"
            try:
                got = answer(address, parts)
                good = answer(address, [f"GET /news HTTP/1.1\r\n{HOST}\r\n".encode()])
            except TimeoutError:
                faults.append(f"{where}: held")
                continue
            head, _, body = got.partition(b"\r\n\r\n")
            status = b"closed"
            if got:  # what is not HTTP/1 gets a page without headers
                found = re.match(rb"HTTP/1\.0 (\d+) |<!DOCTYPE HTML>.*?Error code: (\d+)<", got, re.DOTALL)
                status = (found[1] or found[2]) if found else b"?"
            counts[f"{kind}: {status.decode()}"] += 1
            asked = any(b"GET " + path in b"".join(parts) for path in (b"/ ", b"/news ", b"/news?"))
            asked |= b"GET /?" in b"".join(parts) or b"GET ? " in b"".join(parts)
            if status not in (REFUSALS | {b"closed"} | ({b"200"} if asked else set())):
                faults.append(f"{where}: {got[:200]!r}")
            if SECRET.encode() in got or b"root:x:" in got or b"\x1b" in got or b"<script>" in body[:1] + head:
                faults.append(f"{where}: {got[:200]!r}")
            if not good.startswith(b"HTTP/1.0 200 "):
                faults.append(f"{where}: then {good[:200]!r}")
        faults += server.wrong
        end = time.monotonic() + HELD
        while threading.active_count() > threads and time.monotonic() < end:
            time.sleep(0.02)
        if threading.active_count() > threads:
            faults.append(f"{threading.active_count() - threads} connections are left")
    return counts, faults


TEXTS = (
    *(
        "</script><script>evil()</script>",
        "<img src=x onerror=evil()>",
        "\"'><svg onload=evil()>",
        "<!--<script>",
        "{{data}}",
    ),
    *(
        "\x1b[2J\x1b]0;title\x07",
        "\x9b31m",
        "\u202egnp.exe",
        "a\nb",
        "a\rb",
        "javascript:evil()",
        "%3Cscript%3E",
        "`$(evil)`",
    ),
    *("ä" * 80, "&lt;b&gt;", "' onmouseover='evil()", "]]>", "\u2028", "../../secret", "-rf", "=cmd|' /C calc'!A0"),
)
"""What names and values of a folder hold."""


class Elements(HTMLParser):
    """Tags of a page, and those of their attributes that run something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += tag in ("script", "img", "svg", "iframe", "object", "embed", "link", "base", "meta", "form")
        self.tags["acting attributes"] += sum(
            name.startswith("on") or "javascript:" in (value or "") for name, value in attrs
        )


def elements(page: Path) -> Counter[str]:
    reader = Elements()
    reader.feed(page.read_text(encoding="utf-8", errors="surrogatepass"))
    return +reader.tags


def folders(parent: Path, text: Callable[[], str], name: str) -> tuple[Path, Path]:
    """A run and a sweep with texts in all that is shown."""
    finding = {"code": text(), "severity": "critical", "sentence": text(), "began": 1, "evidence": {text(): text()}}
    told = made.diagnosis(text(), sentence=text(), findings=[finding | {"causes": [text()]}], ill=True)
    told |= {"overrides": [f"story={text()}"], "unchecked": {text(): text()}, "checked": [text()]}
    told |= {"remedies": [{"name": text(), "overrides": [f"seed={text()}"], "why": text()}]}
    told["outcome"] |= {"status": "failed", "error": text()}
    layers = [{"names": [text(), "b"], "order": [text()], "modules": [text()], "recurrent": [text()]}]
    layers.append({"attempt": 1, "grad/layer": [1.0, 2.0]})
    config = json.dumps({"story": text(), "seed": text(), "clip": {"max_norm": text()}})
    lines = [made.line(1, 3.0), made.line(2, 2.0, **{text(): 1.0})]
    run = made.run(parent / name, lines, told, layers, config, f"      clip: {json.dumps(text())}\n")
    (run / ".hydra" / "overrides.yaml").write_text(json.dumps([f"story={text()}", text()]))
    sweep = parent / f"{name[:100]}s"
    sweep.mkdir()
    (sweep / "multirun.yaml").write_text(json.dumps({"hydra": {"overrides": {"task": [f"seed={text()}"]}}}))
    for i in range(3):
        job = sweeps.job(
            sweep / str(i), ["model=lstm", f"optimizer.lr={i + 1}", f"story={json.dumps(text())}"], [2.0, 1.0]
        )
        diagnosis = json.loads((job / "diagnosis.json").read_text())
        (job / "diagnosis.json").write_text(json.dumps(diagnosis | {"sentence": text(), "verdict": text()}))
    return run, sweep


def made_odd(path: Path, kind: str, secret: Path) -> None:
    """Put something in a file's place that is no file."""
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(secret if kind == "link" else "/dev/zero")


def pages(seed: int, number: int, folder: Path, seconds: int = 20) -> tuple[Counter[str], list[str]]:
    """How many commands answered with which code, and the faults."""
    draw, counts, faults = random.Random(seed), Counter[str](), list[str]()
    here = Path.cwd()
    plain = folders(folder / "plain", lambda: "text", "run")
    assert not report.main([str(plain[0])]) and not report.main([str(plain[1])])
    expected = [elements(one / "report.html") for one in plain]
    for case in range(number):
        parent = folder / str(case)
        name = draw.choice(["run", "\udcff", *TEXTS]).replace("/", "_").lstrip(".")
        run, sweep = folders(parent, lambda: draw.choice(TEXTS), os.fsdecode(os.fsencode(name)[:200]))
        (parent / "secret").write_text(json.dumps({"verdict": SECRET}))
        odd = draw.choice([None, None, "link", "pipe", "device", "folder"])
        if odd:
            path = draw.choice([path for path in (*run.rglob("*"), *sweep.rglob("*")) if path.is_file()])
            made_odd(path, odd, parent / "secret")
            odd = f"{odd} {path.relative_to(parent)}"
        os.chdir(parent)
        try:
            for one, usual in zip((run, sweep), expected, strict=True):
                told = f"./{one.name}"
                for name, main, arguments in (
                    ("list", listing.main, [".", "--jobs"]),
                    ("show", show.main, [told]),
                    ("advise", advise.main, [told, "--batch", "64"]),
                    ("report", report.main, [told]),
                ):
                    where = f"folders {case} {name} {arguments!r} {odd}"
                    code, said = called(main, arguments, seconds)
                    counts[f"{name}: {code}"] += 1
                    if code not in (0, 2) or any(c in said for c in "\x1b\x9b\u202e\x07"):
                        faults.append(f"{where}: {code} {said[-800:]!r}")
                    page = one / "report.html"
                    if page.is_file() and SECRET in page.read_text(errors="replace"):
                        faults.append(f"{where}: the page holds what a link names")
                    if main is report.main and code == 0 and elements(page) - usual:
                        faults.append(f"{where}: {elements(page) - usual}")
        finally:
            os.chdir(here)
        shutil.rmtree(parent)
    return counts, faults


def called(main: Callable[[list[str]], int], arguments: list[str], seconds: int) -> tuple[object, str]:
    """The exit code of a command, or what it raised, and what it printed."""

    def late(*_: object) -> None:
        raise TimeoutError(f"still at work after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code: object = main(arguments)
    except BaseException:
        code = traceback.format_exc(limit=-4)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    said = err.getvalue()
    if code == 2 and not 1 <= len(said.splitlines()) <= 2:
        code = f"2 in {len(said.splitlines())} lines"
    return code, out.getvalue() + said
