"""report.html of a sweep: one file that shows what the sweep's files say, and lets nothing out of its data."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sweeps
from browser import Opened, opened
from helpers import sampled

from gradlab.cli.map import main
from gradlab.report.pages import sweep_page as report
from gradlab.report.pages.page_template import short
from gradlab.report.pages.sweep_page import NUMBERS
from gradlab.sweep.maps.grid import METRICS
from gradlab.sweep.results import read

if TYPE_CHECKING:
    from playwright.sync_api import Browser

EVIL = "</script><script>evil()</script> <img src=x onerror=evil()> {{data}} & <!--"
LRS = [0.1, 0.2, 0.5, 1.0]


class Reader(HTMLParser):
    """What a browser makes of a page's scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "script"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts[-1] += data


def data_of(folder: Path) -> dict[str, Any]:
    reader = Reader()
    reader.feed((folder / "report.html").read_text())
    assert len(reader.scripts) == 2, "the data and the program, and nothing that the data brought"
    return json.loads(reader.scripts[0])


def tell(folder: Path, **more: Any) -> None:
    """Change what a job's diagnosis.json says."""
    told = json.loads((folder / "diagnosis.json").read_text())
    (folder / "diagnosis.json").write_text(json.dumps(told | more))


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """4 rates x 3 bounds x 2 seeds; of one job the page is there."""
    folder = sweeps.sweep(tmp_path / "s & <b>", LRS, [1, 10, 100], lambda y, seed: 0.1 * y, seeds=2)
    for path in (folder / "0", folder / "23"):
        tell(path, sentence=EVIL)
    (folder / "11" / "report.html").write_text("<!doctype html><title>job 11</title>")
    return folder


def remedies(folder: Path, seeds: int = 3) -> Path:
    """A baseline that explodes, a remedy that cures it, one that changes nothing, one that does not apply."""
    folder.mkdir()
    (folder / "multirun.yaml").write_text("{}")
    for k, name in enumerate(["none", "clip_norm", "lower_lr", "bf16"]):
        for seed in range(seeds):
            well = name == "clip_norm"
            losses = [2.0 - (0.05 if well else 0.01) * i - 0.01 * seed for i in range(30)]
            ill: dict[str, Any] = {} if well else {"verdict": "exploding", "status": "failed", "began": 11}
            typed = ["model=lstm", f"+remedy={name}", f"seed={seed}"]
            path = sweeps.job(
                folder / str(k * seeds + seed), typed, losses if well else [*losses[: 20 - seed], math.nan], **ill
            )
            lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
            timed = [json.dumps(line | {"throughput/samples_per_second": 100.0}) + "\n" for line in lines]
            (path / "metrics.jsonl").write_text("".join(timed))
            changed = {"clip": ["none", "norm"]} if well else {}
            why = None if name != "bf16" else "it is bf16 already"
            tell(path, remedy={"name": name, "applies": why is None, "why_not": why, "changed": changed}, planned=30)
            if why:
                tell(path, verdict=None)
    return folder


def test_the_page_holds_every_job_with_its_numbers_and_curves(sweep: Path) -> None:
    assert main([str(sweep)]) == 0
    rows, found = {row["job"]: row for row in read(sweep)}, data_of(sweep)
    assert len(found["jobs"]) == len(rows) == 24
    for job in found["jobs"]:
        row = rows[job["job"]]
        assert job["verdict"] == row["verdict"] and found["outcomes"][job["outcome"]]["name"] == row["outcome"]
        assert job["numbers"] == [short(row[name]) for name in NUMBERS]
        x = found["xs"][job["x"]]
        assert x[-1] == row["updates"] and {len(c) for c in job["curves"]} == {len(x)}
        given = {field["name"]: field["labels"][k] for field, k in zip(found["fields"], job["fields"], strict=True)}
        assert given == {name: f"{row[name]:.4g}" for name in ("optimizer.lr", "clip.max_norm", "seed")}
        assert job["page"] == (job["job"] == "11")
    (one,) = found["map"]["slices"]
    names = list(METRICS)
    for cell in one["cells"]:
        i, j = cell["at"]
        assert {found["jobs"][k]["job"] for k in cell["jobs"]} == {
            job for job, row in rows.items() if (row["optimizer.lr"], row["clip.max_norm"]) == (LRS[j], [1, 10, 100][i])
        }
        assert cell["values"][names.index("stable")] == (1 if LRS[j] <= [0.1, 1, 10][i] else 0)
    assert {job["why"] for job in found["jobs"] if job["job"] in ("0", "23")} == {EVIL}
    assert found["common"] == "model=lstm" and found["remedies"] is None and found["edges"] is None


def test_nothing_is_fetched_and_nothing_of_the_data_is_markup(sweep: Path) -> None:
    report.write(sweep)
    text = (sweep / "report.html").read_text()
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//|@import|url\(|fetch\(|XMLHttpRequest", text)
    assert "<title>sweep s &amp; &lt;b&gt;</title>" in text and "evil()</script>" not in text
    assert "innerHTML" not in text and "outerHTML" not in text and "document.write" not in text
    assert data_of(sweep)["jobs"][0]["why"] == EVIL


@pytest.mark.slow
def test_a_large_sweep_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lrs = [0.1 * 1.2**i for i in range(16)]
    folder = sweeps.sweep(tmp_path / "s", lrs, [2.0**i for i in range(16)], lambda y, seed: 0.5, updates=600)
    size = report.write(folder).stat().st_size
    found = data_of(folder)
    assert len(found["jobs"]) == 256 and size < 2e6 and max(map(len, found["xs"])) == 200, size
    monkeypatch.setattr(report, "BUDGET", 256 * 50)  # as many more jobs would
    report.write(folder)
    assert max(map(len, data_of(folder)["xs"])) == 50


def test_a_page_that_cannot_be_written_is_a_line(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sweep / "report.html").mkdir()
    assert report.written(sweep, read(sweep)) is None
    error = capsys.readouterr().err
    assert "report.html was not written: " in error and error.count("\n") == 1


# --- in a browser ----------------------------------------------------------------------------------------------------


def jobs_shown(page: Opened) -> list[str]:
    """The jobs of the table's rows, in their order, once its rows have been laid out."""
    page.page.wait_for_timeout(150)
    return page.page.locator("#table tbody a").all_inner_texts()


def test_a_point_of_the_map_shows_its_runs(sweep: Path, chromium: Browser) -> None:
    rows = {row["job"]: row for row in read(sweep)}
    with opened(chromium, report.write(sweep)) as seen:
        page = seen.page
        page.focus("#map")
        page.keyboard.press("Escape")
        page.locator("#details", has_text="Choose").wait_for()
        for key in ["ArrowRight"] * 2 + ["ArrowUp"] * 4:
            page.keyboard.press(key)
        told = page.text_content("#live") or ""
        assert "optimizer.lr = 0.2, clip.max_norm = 100" in told and "learnt: healthy" in told
        page.keyboard.press("Enter")
        page.wait_for_selector("#details svg.curve path")
        jobs = [j for j, row in rows.items() if (row["optimizer.lr"], row["clip.max_norm"]) == (0.2, 100)]
        links = [a.get_attribute("href") for a in page.locator("#details h3 a").all()]
        assert links == [f"{job}/report.html" if job == "11" else f"{job}/" for job in jobs]
        assert "optimizer.lr=0.2 clip.max_norm=100" in seen.text("#details h2") and "jobs=10%2C11" in page.url
        assert page.locator("#details svg.curve").count() == 2

        box = page.locator("#map").bounding_box()
        assert box is not None
        page.locator("#map").click(
            position={"x": box["width"] - 30, "y": 0.75 * box["height"]}
        )  # lr 1, the lowest bound
        page.locator("#details", has_text="exploding").wait_for()
        assert "optimizer.lr=1 clip.max_norm=1" in seen.text("#details h2")
        page.locator("#table").get_by_role("link", name="11", exact=True).click()
        page.wait_for_url("**/11/report.html")
        page.go_back()
        assert "optimizer.lr=1 clip.max_norm=1" in seen.text("#details h2") and not seen.wrong


@pytest.mark.slow
def test_another_metric_colours_the_map(sweep: Path, chromium: Browser) -> None:
    colour = """([x, y]) => { const map = document.getElementById("map"), copy = document.createElement("canvas");
        [copy.width, copy.height] = [map.width, map.height];
        const pen = copy.getContext("2d", {willReadFrequently: true});
        pen.drawImage(map, 0, 0);
        return [...pen.getImageData(x * map.width, y * map.height, 1, 1).data]; }"""
    with opened(chromium, report.write(sweep)) as seen:
        offered = seen.page.locator("#metric option:not([hidden])").all_inner_texts()
        assert "gradient norm, largest" in offered
        seen.page.wait_for_timeout(100)
        corners = [(0.2, 0.1), (0.85, 0.75)]  # of the smallest rate under the largest bound, and the other way round
        assert [seen.page.evaluate(colour, at) for at in corners] == [[0xB8, 0xB8, 0xB8, 255], [0xD5, 0x5E, 0, 255]]
        seen.page.select_option("#metric", label="final training loss")
        assert "lost" in seen.text("#legend") and seen.page.evaluate(colour, corners[1]) == [0x22, 0x22, 0x22, 255]
        seen.page.select_option("#metric", label="outcome")
        seen.page.get_by_label("outcome from").select_option(label="exploded")
        seen.page.wait_for_timeout(100)
        assert [seen.page.evaluate(colour, at)[3] < 60 for at in corners] == [True, False], "what is not shown is pale"
        seen.page.click("#theme")
        assert seen.page.evaluate("document.documentElement.classList.contains('dark')")
        assert "ranges=outcome" in seen.page.url and not seen.wrong


def test_a_refined_map_shows_the_nearest_run(tmp_path: Path) -> None:
    from gradlab.sweep.maps.sweep_map import drawn

    for k in range(24):
        typed = [f"optimizer.lr={0.01 * 1.3 ** (k % 12)}", f"clip.max_norm={1.5 ** (k * 5 % 12)}"]
        sweeps.job(tmp_path / str(k), typed, [2.0, 1.0 + k % 2])
    report.write(tmp_path)
    (one,) = data_of(tmp_path)["map"]["slices"]
    (grid,) = drawn(read(tmp_path)).slices
    assert [one["cells"][k]["at"] for k in one["source"]] == grid.source().reshape(-1, 2).tolist()


def test_the_table_is_sorted_filtered_and_linked_to_the_rest(sweep: Path, chromium: Browser) -> None:
    rows = read(sweep)
    with opened(chromium, report.write(sweep)) as seen:
        page = seen.page
        assert jobs_shown(seen) == [row["job"] for row in rows]
        head = page.locator("#table th", has_text="loss/best")
        head.get_by_role("button").click()
        best = sorted(rows, key=lambda row: (row["loss/best"], int(row["job"])))
        assert head.get_attribute("aria-sort") == "ascending" and jobs_shown(seen) == [row["job"] for row in best]
        head.get_by_role("button").press("Enter")
        assert head.get_attribute("aria-sort") == "descending"
        shown = [next(row["loss/best"] for row in rows if row["job"] == job) for job in jobs_shown(seen)]
        assert shown == sorted(shown, reverse=True) and len(page.locator("[aria-sort]").all()) == 1

        page.fill("#text", "lr=0.5 exploding")
        wanted = {row["job"] for row in rows if row["optimizer.lr"] == 0.5 and row["verdict"] == "exploding"}
        assert set(jobs_shown(seen)) == wanted and seen.text("#shown").startswith(f"{len(wanted)} of 24 jobs")
        page.fill("#text", "")
        page.get_by_role("checkbox", name="exploded").uncheck()
        assert set(jobs_shown(seen)) == {row["job"] for row in rows if row["outcome"] != "exploded"}

        page.locator("#table").get_by_role("checkbox", name="choose job 11", exact=True).check()
        page.locator("#details", has_text="job 11").wait_for()
        page.reload()  # all of it is in the address
        assert set(jobs_shown(seen)) == {row["job"] for row in rows if row["outcome"] != "exploded"}
        assert page.get_by_role("checkbox", name="choose job 11", exact=True).is_checked()
        page.click("#clear")
        assert len(jobs_shown(seen)) == 24 and not seen.wrong


@pytest.mark.slow
def test_a_range_of_an_axis_is_dragged_or_typed(sweep: Path, chromium: Browser) -> None:
    rows = read(sweep)
    low = {row["job"] for row in rows if row["optimizer.lr"] <= 0.2}
    with opened(chromium, report.write(sweep), width=1500) as seen:
        page = seen.page
        page.locator("#lines").scroll_into_view_if_needed()
        box = page.locator("#lines").bounding_box()
        assert box is not None
        count = page.locator("#ranges > div").count()
        x, bottom = box["x"] + box["width"] / count / 2, box["y"] + 46 + 330 - 24
        page.mouse.move(x, bottom + 8)
        page.mouse.down()
        page.mouse.move(x, bottom - 0.4 * (330 - 48), steps=4)  # log 0.2 is at 0.3 of the way, 0.5 at 0.7
        page.mouse.up()
        assert set(jobs_shown(seen)) == low
        assert 0.2 <= float(page.get_by_label("optimizer.lr to").input_value()) < 0.5
        page.mouse.click(x, bottom - 200)
        assert len(jobs_shown(seen)) == 24 and page.get_by_label("optimizer.lr to").input_value() == ""
        page.get_by_label("optimizer.lr from").fill("0.5")
        page.get_by_label("optimizer.lr from").press("Tab")
        assert set(jobs_shown(seen)) == {row["job"] for row in rows} - low
        page.get_by_label("optimizer.lr from").fill("many")
        page.get_by_label("optimizer.lr from").press("Tab")
        assert page.get_by_label("optimizer.lr from").get_attribute("aria-invalid") == "true"
        page.get_by_label("outcome from").select_option(label="exploded")
        assert not seen.wrong


@pytest.mark.slow
def test_curves_are_zoomed_by_dragging_and_by_keys(sweep: Path, chromium: Browser) -> None:
    with opened(chromium, report.write(sweep), width=1500) as seen:
        page = seen.page
        page.locator("#table").get_by_role("checkbox", name="choose job 11", exact=True).check()
        charts = page.locator("#details svg.curve")
        page.locator("#details h3", has_text="job 11").wait_for()

        def shown() -> list[tuple[int, int]]:
            """First and last update of each chart."""
            texts = [charts.nth(i).locator("text").all_text_contents() for i in (0, 1)]
            return [(int(t[-2]), int(t[-1].removeprefix("update "))) for t in texts]

        last = read(sweep)[11]["updates"]
        assert shown() == [(0, last)] * 2 and page.get_by_role("button", name="all updates").is_hidden()
        charts.first.scroll_into_view_if_needed()
        box = charts.first.bounding_box()
        assert box is not None
        left, wide = box["x"] + box["width"] * 58 / 560, box["width"] * (560 - 58 - 8) / 560
        page.mouse.move(left + 0.2 * wide, box["y"] + 80)
        page.mouse.down()
        page.mouse.move(left + 0.6 * wide, box["y"] + 90, steps=4)
        page.mouse.up()
        assert shown() == [(round(0.2 * last), round(0.6 * last))] * 2
        page.get_by_role("button", name="all updates").click()
        assert shown() == [(0, last)] * 2

        page.keyboard.press("ArrowLeft")  # the curves have the focus
        losses = data_of(sweep)["jobs"][11]["curves"][0]
        told = charts.first.locator("text").first.text_content() or ""
        assert f"update {last - 1}: " in told and float(told.split()[-1]) == pytest.approx(float(losses[-2]), rel=1e-3)
        assert f"update {last - 1}: " in (charts.nth(1).locator("text").first.text_content() or "")
        page.keyboard.press("+")
        (low, high), other = shown()
        assert (low, high) == other and high - low <= last / 2 + 1 and low <= last - 1 <= high
        page.keyboard.press("Escape")
        assert shown() == [(0, last)] * 2 and not seen.wrong


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1500])
def test_the_keyboard_scrolls_a_table_that_is_too_wide(tmp_path: Path, chromium: Browser, width: int) -> None:
    with opened(chromium, report.write(remedies(tmp_path / "r")), width=width) as seen:
        table = seen.page.get_by_role("region", name="remedies compared")
        wide = table.evaluate("host => host.scrollWidth > host.clientWidth")
        assert table.get_attribute("tabindex") == ("0" if wide else None) and (wide or width > 400)
        if wide:
            table.focus()
            seen.page.keyboard.press("ArrowRight")
            seen.page.wait_for_function("host => host.scrollLeft > 0", arg=table.element_handle())
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width and not seen.wrong


@pytest.mark.slow
def test_remedies_are_compared_with_their_effects_and_curves(tmp_path: Path, chromium: Browser) -> None:
    folder = remedies(tmp_path / "r")
    with opened(chromium, report.write(folder)) as seen:
        page = seen.page
        (group,) = data_of(folder)["remedies"]["groups"]
        assert {row["remedy"]: row["judgement"] for row in group["rows"]} == {
            "none": "baseline", "clip_norm": "cured", "lower_lr": "no effect", "bf16": "does not apply"
        }  # fmt: skip
        cured = next(row for row in group["rows"] if row["remedy"] == "clip_norm")
        margin = 4.303 * (1 / 30) / math.sqrt(3)  # of 9, 10 and 11 of 30 updates more
        expected = [1 / 3, 1 / 3 - margin, 1 / 3 + margin, (1 / 3) / (1 / 30)]
        assert cured["effects"]["survived"] == pytest.approx(expected, rel=1e-3) and len(cured["jobs"]) == 3
        table = seen.text("#remedies-view table")
        assert (
            "cured" in table
            and "+33.3% [+25.1%, +41.6%]" in table
            and "it is bf16 already" in seen.text("#remedies-view")
        )
        assert page.locator("#remedies-view .interval").count() == 2
        assert page.locator("#remedies-view svg.curve").first.locator("path").count() >= 4
        page.locator("#remedies-view select").select_option("2")
        page.locator("#remedies-view .keys button", has_text="clip_norm").click()
        page.locator("#details", has_text="remedy=clip_norm seed=2").wait_for()
        assert not seen.wrong


def test_edges_are_shown_with_what_was_tried(tmp_path: Path, chromium: Browser) -> None:
    from gradlab.sweep.search.boundary_search import BoundarySearch
    from gradlab.sweep.search.edge_report import report as write_edges
    from gradlab.sweep.search.judge import FinishedJob
    from gradlab.sweep.search.options import BoundaryOption

    folder, edges = tmp_path / "e", {"none": 0.1, "clip_norm": 10.0}
    points = [(f"+remedy={name}",) for name in edges]
    search = BoundarySearch(BoundaryOption(low=0.01, high=100.0, tolerance=1.5, seeds=[0, 1, 2]), points, 0.1, False)
    count = 0
    while jobs := search.ask():
        told = []
        for overrides in jobs:
            values = dict(o.lstrip("+").split("=") for o in overrides)
            good = float(values["optimizer.lr"]) <= edges[values["remedy"]]
            ill: dict[str, Any] = {} if good else {"verdict": "exploding", "status": "failed", "began": 1}
            path = sweeps.job(folder / str(count), [*overrides], [2.0 - 0.1 * i for i in range(9)], **ill)
            kept = {"lost": not good, "ill": not good, "evidence": {"loss_last": 1.2}}
            told.append(FinishedJob(path.name, json.loads((path / "diagnosis.json").read_text()) | kept))
            count += 1
        search.tell(told)
    write_edges(folder, search, None)
    with opened(chromium, report.write(folder)) as seen:
        found = data_of(folder)
        assert found["map"] is None and found["remedies"] is None
        table = seen.text("#edges-view")
        assert "remedy=clip_norm" in table and "moves it up" in table
        marks = seen.page.locator(".strips .disc, .strips .cross")
        assert marks.count() == count and seen.page.locator(".strips .edge").count() == 6
        seen.page.locator(".strips .cross").last.click()
        seen.page.locator("#details", has_text="exploding").wait_for()
        assert not seen.wrong


def broken(folder: Path) -> Path:
    """Jobs that left nothing, half of it, garbage, an error; of each one."""
    sweeps.sweep(folder, LRS, [1, 10], lambda y, seed: 0.1 * y)
    (folder / "0" / "diagnosis.json").unlink()
    for name in ("diagnosis.json", "metrics.jsonl"):
        (folder / "1" / name).unlink()
    (folder / "2" / "metrics.jsonl").write_text("")
    (folder / "3" / "diagnosis.json").write_text("{garb")
    ended = {"verdict": None, "exit_code": 1, "outcome": {"status": "error", "error": f"RuntimeError: {EVIL}"}}
    (folder / "4" / "diagnosis.json").write_text(json.dumps(ended))
    return folder


def of_names(folder: Path) -> Path:
    for i, name in enumerate(["<b>a</b>", EVIL.replace(" ", ""), 'it\'s "x" & y']):
        path = sweeps.job(folder / f"{i} <i>%2F", [f"model.name={name}", f"optimizer.lr={i}"], [2.0, 1.0])
        (path / ".hydra" / "overrides.yaml").write_text(json.dumps([f"model.name={name}", f"optimizer.lr={i}"]))
    return folder


def of_seeds(folder: Path) -> Path:
    for seed in range(3):
        sweeps.job(folder / str(seed), ["model=lstm", f"seed={seed}"], [2.0 - 0.1 * seed - 0.01 * i for i in range(30)])
    return folder


def of_one(folder: Path) -> Path:
    sweeps.job(folder / "0", ["optimizer.lr=0.1"], [2.0, 1.0])
    return folder


def of_nothing(folder: Path) -> Path:
    (folder / "0" / ".hydra").mkdir(parents=True)
    (folder / "0" / ".hydra" / "overrides.yaml").write_text("- optimizer.lr=0.1\n")
    return folder


def of_nan(folder: Path) -> Path:
    for i, lr in enumerate(LRS):
        nan = [math.nan] * 3
        sweeps.job(folder / str(i), [f"optimizer.lr={lr}"], nan, nan, "nan_loss", "failed", 1)
    return folder


@pytest.mark.parametrize("make", sampled([broken, of_names, of_seeds, of_one, of_nothing, of_nan], 2))
@pytest.mark.filterwarnings("error")
def test_whatever_a_sweep_left_is_shown(make: Any, tmp_path: Path, chromium: Browser) -> None:
    folder = make(tmp_path / "s")
    rows = read(folder)
    with opened(chromium, report.write(folder, planned=len(rows)), dark=True) as seen:
        assert jobs_shown(seen) == [row["job"] for row in rows]
        assert seen.text("#details") and seen.page.evaluate("typeof evil") == "undefined"
        assert seen.page.locator("#table img").count() == 0 and not seen.wrong
        told = seen.text("#unfinished") if seen.page.locator("#unfinished").is_visible() else ""
        lost = {"broken": 4, "of_nothing": 1}.get(make.__name__, 0)
        assert told.startswith(f"{lost} job") and "resume=" in told if lost else not told
        for row, link in zip(rows, seen.page.locator("#table tbody a").all(), strict=True):
            at = link.evaluate("a => decodeURIComponent(a.pathname)")
            assert at == f"{folder.resolve()}/{row['job']}/"


@pytest.mark.slow
def test_the_first_view_of_256_jobs_takes_less_than_two_seconds(tmp_path: Path, chromium: Browser) -> None:
    lrs = [0.1 * 1.2**i for i in range(16)]
    folder = sweeps.sweep(tmp_path / "s", lrs, [2.0**i for i in range(16)], lambda y, seed: 0.5, updates=200)
    with opened(chromium, report.write(folder)) as seen:
        seen.page.locator("#table tbody tr").nth(255).wait_for(state="attached")
        paint, drawn = seen.page.evaluate(
            "['first-contentful-paint', 'map drawn'].map((name) => performance.getEntriesByName(name)[0].startTime)"
        )
        print(f"first view {paint:.0f} ms, map drawn {drawn:.0f} ms")
        assert paint < 2000 and drawn < 2000 and not seen.wrong


def test_jobs_that_were_not_begun_are_counted(sweep: Path) -> None:
    report.write(sweep, planned=30)
    assert data_of(sweep)["unfinished"]["count"] == 6
    report.write(sweep, planned=24)
    assert data_of(sweep)["unfinished"] == {"count": 0, "command": ""}
