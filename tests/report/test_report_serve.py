"""A run followed while it trains: new lines alone are sent, a resumed run begins again, and nothing else is served."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import made
import pytest

from gradlab.base.option import Invalid
from gradlab.report.pages import live_page


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made.run(tmp_path / "run", [made.line(1, 3.0), made.line(2, 2.0)])


@pytest.fixture
def server(folder: Path) -> Iterator[live_page.Server]:
    with live_page.Server(folder, 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def get(server: live_page.Server, path: str, **headers: str) -> tuple[int, bytes]:
    """As it is written: no client tidies the path."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=5)
    connection.putrequest("GET", path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read()


def in_the_end(answered: Callable[[], int]) -> int:
    """A connection is seen closed before its place is free: a browser asks again, as this does for five seconds."""
    for _ in range(500):
        with suppress(ConnectionError):
            return answered()
        time.sleep(0.01)
    return answered()


def news(server: live_page.Server, marks: dict[str, str] | None = None) -> dict[str, Any]:
    status, body = get(server, f"/news?{urlencode(marks or {})}")
    assert status == 200
    return json.loads(body)


def marks(answer: dict[str, Any]) -> dict[str, str]:
    return {name: answer[name]["mark"] for name in ("metrics", "layers")}


def attempts(answer: dict[str, Any]) -> list[int]:
    return [json.loads(line)["attempt"] for line in answer["metrics"]["text"].splitlines()]


def append(folder: Path, text: str) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(text)


def text(*lines: dict[str, Any]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_only_new_whole_lines_are_sent(server: live_page.Server, folder: Path) -> None:
    first = news(server)
    assert attempts(first) == [1, 2] and not first["metrics"]["anew"]
    assert attempts(news(server, marks(first))) == []
    append(folder, text(made.line(3, 1.0)) + '{"attempt": 4,')
    second = news(server, marks(first))
    assert attempts(second) == [3] and not second["metrics"]["anew"]
    append(folder, '"train/loss": 1}\n')
    assert attempts(news(server, marks(second))) == [4]


def test_resumption_from_a_checkpoint_is_noticed(server: live_page.Server, folder: Path) -> None:
    first = news(server)
    again = text(made.line(1, 3.0), made.line(2, 2.5), made.line(3, 2.0), made.line(4, 1.5))
    assert len(again) > (folder / "metrics.jsonl").stat().st_size
    (folder / "metrics.jsonl").write_text(again)  # longer already than what was read: sizes alone would not tell
    second = news(server, marks(first))
    assert second["metrics"]["anew"] and attempts(second) == [1, 2, 3, 4]
    (folder / "metrics.jsonl").write_text(text(made.line(1, 3.0)))
    third = news(server, marks(second))
    assert third["metrics"]["anew"] and attempts(third) == [1]
    (folder / "metrics.jsonl").unlink()
    fourth = news(server, marks(third))
    assert fourth["metrics"]["anew"] and attempts(fourth) == []
    append(folder, text(made.line(1, 3.0)))
    assert attempts(news(server, marks(fourth))) == [1]


def test_long_files_come_in_parts(server: live_page.Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(folder, text(*(made.line(at, 1.0) for at in range(3, 200))))
    monkeypatch.setattr(live_page, "BYTES", 2000)
    answer, seen = news(server), []
    while True:
        seen += attempts(answer)
        if not answer["more"]:
            break
        answer = news(server, marks(answer))
    assert seen == list(range(1, 200))


def test_a_verdict_is_told_when_it_comes_and_forgotten_when_the_run_goes_on(
    server: live_page.Server, folder: Path
) -> None:
    first = news(server)
    assert first["facts"]["content"]["diagnosis"] == {}
    assert news(server, marks(first) | {"facts": first["facts"]["mark"]})["facts"] is None
    (folder / "diagnosis.json").write_text(json.dumps(made.diagnosis("exploding")))
    second = news(server, {"facts": first["facts"]["mark"]})
    assert second["facts"]["content"]["diagnosis"]["verdict"] == "exploding"
    import os

    later = (folder / "diagnosis.json").stat().st_mtime + 5
    append(folder, text(made.line(3, 1.0)))
    os.utime(folder / "metrics.jsonl", (later, later))
    third = news(server, {"facts": second["facts"]["mark"]})
    assert third["facts"]["content"]["diagnosis"] == {}


def test_half_a_diagnosis_is_waited_for(server: live_page.Server, folder: Path) -> None:
    (folder / "diagnosis.json").write_text('{"verdict": ')
    answer = news(server)
    assert answer["facts"] is None and attempts(answer) == [1, 2]


@pytest.mark.parametrize(
    "path",
    ["/../secret", "/%2e%2e/secret", "//etc/passwd", "/metrics.jsonl", "/.hydra/config.yaml", "/news/../../secret"],
)
def test_nothing_but_the_page_and_its_news_is_served(server: live_page.Server, folder: Path, path: str) -> None:
    (folder.parent / "secret").write_text("secret")
    status, body = get(server, path)
    assert status == 404 and b"secret" not in body


def test_marks_that_nobody_gave_out_do_no_harm(server: live_page.Server) -> None:
    for mark in ("x", "-5:", "99999999999999999999:a", "10:zz", ":::"):
        answer = news(server, {"metrics": mark, "facts": mark})
        assert attempts(answer) == [1, 2]


def test_only_this_machine_is_answered_under_its_own_name(server: live_page.Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert get(server, "/")[0] == 200
    assert get(server, "/", Host="evil.example:80")[0] == 403


def test_port_that_is_taken(folder: Path, server: live_page.Server) -> None:
    with pytest.raises(Invalid, match="is taken"):
        live_page.bound(folder, server.server_address[1])
    with live_page.bound(folder, 0) as other:
        assert other.server_address[1] != server.server_address[1]


def test_a_silent_connection_is_closed_and_a_browser_still_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "SECONDS", 0.3)
    monkeypatch.setattr(live_page, "CONNECTIONS", 4)
    with live_page.Server(folder, 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        silent = [socket.create_connection(server.server_address[:2], timeout=5) for _ in range(12)]
        for one in silent:
            with one, suppress(ConnectionError):
                assert one.recv(1) == b"", "it is closed"
        assert in_the_end(lambda: get(server, "/news")[0]) == 200
        server.shutdown()


def test_connections_beyond_the_most_are_closed_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "CONNECTIONS", 4)
    with live_page.Server(folder, 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        made = [socket.create_connection(server.server_address[:2], timeout=live_page.SECONDS / 2) for _ in range(8)]
        for one in made[4:]:
            with suppress(ConnectionError):
                assert one.recv(1) == b"", "it is closed"
        for one in made:
            one.close()
        server.shutdown()


def test_an_answer_that_is_not_taken_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert live_page.Handler.timeout
    monkeypatch.setattr(live_page.Handler, "timeout", live_page.Handler.timeout / 30)
    monkeypatch.setattr(live_page, "BYTES", 30_000_000)
    append(folder, text(*[made.line(3, 1.0, text="x" * 1_000_000)] * 30))
    with live_page.Server(folder, 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with socket.create_connection(server.server_address[:2], timeout=5) as idle:
            idle.sendall(b"GET /news HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n")
            end = time.monotonic() + 5
            while not idle.recv(1, socket.MSG_PEEK) or server.free._value < live_page.CONNECTIONS:
                assert time.monotonic() < end
                time.sleep(0.05)
        server.shutdown()


def test_a_request_that_comes_a_byte_at_a_time_is_closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "SECONDS", 0.5)
    monkeypatch.setattr(live_page.Handler, "timeout", 0.5)
    with live_page.Server(folder, 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with socket.create_connection(server.server_address[:2], timeout=5) as slow, pytest.raises(ConnectionError):
            for _ in range(60):
                slow.sendall(b"G")
                time.sleep(0.05)
        assert get(server, "/news")[0] == 200
        server.shutdown()


@pytest.mark.parametrize("name", ["metrics.jsonl", ".hydra/config.yaml", "replay.json"])
def test_a_file_that_is_a_link_is_not_served(server: live_page.Server, folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text('{"attempt": 1, "secret": 1}\n')
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "secret")
    for path in ("/", "/news"):
        status, body = get(server, path)
        assert status == 403 and b"secret" not in body
    with pytest.raises(Invalid, match="symbolic link"):
        live_page.serve(folder, 0)
