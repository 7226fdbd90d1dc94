"""Hostile requests and folders; `experiments/faults/run.py --requests N --pages N` makes more of it."""

import io
import os
import sys
from pathlib import Path

import made
import prober
import pytest

from gradlab.base.option import Invalid
from gradlab.report import command as report
from gradlab.runs.record import RunRecord
from gradlab.runs.trust import refuse_links


@pytest.mark.slow
def test_a_server_answers_or_closes_whatever_it_is_asked(tmp_path: Path) -> None:
    counts, faults = prober.requests(0, 40, tmp_path)
    print(dict(counts))
    assert not faults and sum(counts.values()) == 40, faults


@pytest.mark.slow
def test_nothing_in_a_folder_reaches_a_terminal_or_a_page_but_as_text(tmp_path: Path) -> None:
    counts, faults = prober.pages(0, 10, tmp_path)
    print(dict(counts))
    assert not faults and counts["report: 0"] and counts["list: 0"] == 20, faults


@pytest.mark.parametrize("path", ["http://[", "//[::1"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, path: str) -> None:
    run = made.run(tmp_path / "run", [made.line(1, 3.0)])
    with prober.served(run) as server:
        address = ("127.0.0.1", server.server_address[1])
        got = prober.answer(address, [f"GET {path} HTTP/1.1\r\n{prober.HOST}\r\n".encode()])
    assert got.split(b" ")[1] in (b"400", b"404") and not server.wrong


@pytest.mark.parametrize("name", ["diagnosis.json", "metrics.jsonl", ".hydra/config.yaml"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_file_that_is_none_is_not_waited_for(tmp_path: Path, name: str, kind: str) -> None:
    run = made.run(tmp_path / "run", [made.line(1, 3.0)], made.diagnosis())
    prober.made_odd(run / name, kind, tmp_path)

    def read() -> int:
        record = RunRecord(run)
        assert not record.diagnosis or not record.lines or not record.config
        assert name in record.unreadable or name == "metrics.jsonl"
        with pytest.raises(Invalid, match="link" if kind == "device" else "pipe or device"):
            refuse_links("FOLDER", run)
        return 0

    assert prober.called(lambda _: read(), [], 5) == (0, "")


def test_a_name_that_is_no_text_is_printed_as_python_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = made.run(Path(os.fsdecode(b"\x1b[2J\xff")), [made.line(1, 3.0)], made.diagnosis())
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True))
    assert report.main([str(run)]) == 0, capsys.readouterr().err
    assert sys.stdout.buffer.getvalue() == b"\\x1b[2J\\udcff/report.html\n"  # type: ignore[attr-defined]
    assert "\\udcff" in (run / "report.html").read_text()


def test_a_page_is_in_utf_8_whatever_the_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made.run(tmp_path / "run", [made.line(1, 3.0)], made.diagnosis())
    pages = []  # the second, where files that name no encoding are not in UTF-8
    for locale in ("utf-8", "ascii"):
        monkeypatch.setattr(io, "text_encoding", lambda given, *_, locale=locale: given or locale)
        assert report.main([str(run)]) == 0
        pages.append((run / "report.html").read_bytes())
    assert pages[0] == pages[1] and "×" in pages[0].decode("utf-8")
