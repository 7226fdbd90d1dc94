"""Pages in a browser, from disk, with the network off: they open without an error and do what they say."""

import json
import math
import re
import threading
from pathlib import Path
from typing import Any

import made
import pytest
from browser import Opened, opened
from helpers import sampled

from gradlab.diagnosis.replay.overflow import Overflow
from gradlab.diagnosis.replay.ranges import Range
from gradlab.report.pages import comparison_page, live_page, run_page
from gradlab.runs.record import RunRecord


@pytest.fixture
def collapsed(tmp_path: Path) -> Path:
    return run_page.write(made.collapse(tmp_path / "run"))


def charts(seen: Opened) -> dict[str, str]:
    """What stands beside each chart, by its id."""
    found = seen.page.locator(".chart").all()
    return {str(one.get_attribute("data-id")): " ".join(one.locator(".head").inner_text().split()) for one in found}


def painted(seen: Opened, selector: str) -> list[int]:
    """How many different colours each canvas shows."""
    return seen.page.eval_on_selector_all(
        selector,
        """all => all.map(of => { const c = document.createElement("canvas"); c.width = of.width; c.height = of.height;
        const pen = c.getContext("2d", {willReadFrequently: true}); pen.drawImage(of, 0, 0);
        const d = pen.getImageData(0, 0, c.width, c.height).data, s = new Set();
        for (let i = 0; i < d.length; i += 4) s.add((d[i] << 16) | (d[i+1] << 8) | d[i+2]); return s.size; })""",
    )


def drag(seen: Opened, selector: str, start: float, end: float) -> None:
    """Across an element, from and to these parts of its width."""
    box = seen.page.locator(selector).first.bounding_box()
    assert box
    y = box["y"] + box["height"] / 2
    seen.page.mouse.move(box["x"] + start * box["width"], y)
    seen.page.mouse.down()
    seen.page.mouse.move(box["x"] + end * box["width"], y, steps=5)
    seen.page.mouse.up()


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 1280), (False, 400)])
def test_page_opens_without_an_error(chromium: Any, collapsed: Path, dark: bool, width: int) -> None:
    with opened(chromium, collapsed, width=width, dark=dark) as seen:
        assert "no loss scale helps" in seen.text("header") and "scale collapse" in seen.text("h1")
        assert min(painted(seen, ".chart canvas")) > 3 and min(painted(seen, ".heat canvas")) > 4
        overflow = seen.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0
        first = [
            seen.page.locator(f"#{name}").bounding_box()["y"] for name in ("verdict", "story", "checked", "curves")
        ]
        assert first == sorted(first)
        assert seen.wrong == []


def test_pages_show_the_losses_that_lists_and_tables_show(chromium: Any, tmp_path: Path) -> None:
    lines = [made.line(i, 4.0 - i / 100 + i % 2 / 10) for i in range(1, 51)]
    made.run(tmp_path / "a", lines, made.diagnosis())
    kept = RunRecord(tmp_path / "a").measured
    assert kept["loss/final"] != lines[-1]["train/loss"]
    folders = [made.run(tmp_path / name, lines, made.diagnosis(measured=kept)) for name in ("b", "c")]
    first, last = (f"{kept[name]:.4g}" for name in ("loss/initial", "loss/final"))
    with opened(chromium, run_page.write(folders[0])) as seen:
        assert f"{first} → {last}" in seen.text("header")
    with opened(chromium, comparison_page.write(folders, tmp_path / "both.html")) as seen:
        head = seen.page.locator("#runs th[scope=col]").all_inner_texts()
        cells = seen.page.locator("#runs tbody tr").first.locator("th, td").all_inner_texts()
        shown = dict(zip(head, cells, strict=True))
        assert (shown["loss: first"], shown["last"]) == (first, last)
        assert not seen.wrong


@pytest.mark.slow
def test_what_no_curve_shows_is_said(chromium: Any, collapsed: Path) -> None:
    with opened(chromium, collapsed) as seen:
        told = charts(seen)
        assert "NaN (20)" in told["loss"] and "evaluation 2.5" in told["loss"]
        assert "NaN (20)" in told["norm"] and "infinite (1)" in told["norm"] and "threshold 1.5" in told["norm"]
        assert "skipped (20)" in told["scale"] and "grown (1)" in told["scale"]
        assert "after clipping" in told["norm"]
        assert set(told) == {"loss", "norm", "scale", "lr", "clip", "accuracy"}


@pytest.mark.slow
def test_cursor_is_one_for_all_charts(chromium: Any, collapsed: Path) -> None:
    with opened(chromium, collapsed) as seen:
        seen.page.locator(".chart[data-id=lr]").scroll_into_view_if_needed()
        box = seen.page.locator(".chart[data-id=lr] .u-over").bounding_box()
        assert box
        seen.page.mouse.move(box["x"] + box["width"] * 9 / 99, box["y"] + 10)
        told = charts(seen)
        assert "training 2.9" in told["loss"] and "before clipping 5" in told["norm"] and "scale 64" in told["scale"]
        assert seen.wrong == []


def test_drag_zooms_all_and_double_click_resets(chromium: Any, collapsed: Path) -> None:
    with opened(chromium, collapsed) as seen:
        whole = seen.text(".bar output")
        assert whole.startswith("updates 1 to 100")
        before = painted(seen, ".heat canvas")
        seen.page.locator(".chart[data-id=norm]").scroll_into_view_if_needed()
        drag(seen, ".chart[data-id=norm] .u-over", 0.2, 0.4)
        found = re.match(r"updates (\d+) to (\d+) of 1 to 100", seen.text(".bar output"))
        assert found and abs(int(found[1]) - 21) <= 1 and abs(int(found[2]) - 41) <= 1
        assert painted(seen, ".heat canvas") != before
        seen.page.locator(".chart[data-id=lr] .u-over").dblclick()
        assert seen.text(".bar output") == whole
        assert seen.wrong == []


@pytest.mark.slow
def test_keys_point_zoom_and_reset(chromium: Any, collapsed: Path) -> None:
    with opened(chromium, collapsed) as seen:
        line = seen.page.locator(".timeline")
        line.focus()
        seen.page.keyboard.press("Home")
        seen.page.keyboard.press("ArrowRight")
        assert line.get_attribute("aria-valuenow") == "2" and "training 2.98" in charts(seen)["loss"]
        assert "update 2: training 2.98" in str(line.get_attribute("aria-valuetext"))
        seen.page.keyboard.press("+")
        assert seen.text(".bar output").startswith("updates 2 to 51 of 1 to 100;")
        seen.page.keyboard.press("0")
        assert seen.text(".bar output").startswith("updates 1 to 100;")


@pytest.mark.slow
def test_logarithmic_scale_can_be_changed(chromium: Any, collapsed: Path) -> None:
    with opened(chromium, collapsed) as seen:
        button = seen.page.locator(".chart[data-id=loss] button")
        assert button.get_attribute("aria-pressed") == "false"
        button.click()
        assert seen.page.locator(".chart[data-id=loss] button").get_attribute("aria-pressed") == "true"
        assert min(painted(seen, ".chart[data-id=loss] canvas")) > 3 and seen.wrong == []


def test_map_tells_layer_update_and_value(chromium: Any, collapsed: Path) -> None:
    with opened(chromium, collapsed) as seen:
        canvas = seen.page.locator("#flow canvas")
        canvas.focus()
        seen.page.keyboard.press("ArrowRight")
        assert seen.text("#flow .tip").splitlines() == ["layers.0", "update 1", "gradient norm: 0.001"]
        seen.page.keyboard.press("ArrowDown")
        seen.page.keyboard.press("ArrowRight")
        assert seen.text("#flow .tip").splitlines() == ["layers.1", "update 6", "gradient norm: 0.01"]
        for _ in range(15):
            seen.page.keyboard.press("ArrowRight")
        assert "gradient norm: NaN" in seen.text("#flow .tip") and "NaN" in seen.text("#flow .legend")
        box = canvas.bounding_box()
        assert box
        canvas.scroll_into_view_if_needed()
        canvas.hover(position={"x": box["width"] - 20, "y": 6})
        assert seen.text("#flow .tip").splitlines()[0] == "layers.0"
        assert seen.wrong == []


def test_slider_shows_the_profile_of_its_update(chromium: Any, collapsed: Path) -> None:
    with opened(chromium, collapsed) as seen:
        slider = seen.page.locator("#profile-at")
        assert seen.text(".profile output") == "76 of 96; largest over smallest 1000"  # the last that can be drawn
        slider.focus()
        seen.page.keyboard.press("ArrowLeft")
        assert seen.text(".profile output").startswith("71 of 96")
        assert seen.page.locator(".profile svg circle").count() == 4
        seen.page.keyboard.press("End")
        assert seen.text(".profile output") == "96 of 96" and seen.page.locator(".profile svg circle").count() == 0
        assert "✕" in str(seen.page.locator(".profile svg").text_content())
        seen.page.locator("#flow canvas").focus()
        seen.page.keyboard.press("ArrowRight")
        seen.page.keyboard.press("Enter")
        assert seen.text(".profile output").startswith("1 of 96") and seen.wrong == []


def test_command_is_copied(chromium: Any, collapsed: Path) -> None:
    with opened(chromium, collapsed) as seen:
        button = seen.page.locator(".remedies button")
        button.click()
        seen.page.get_by_role("button", name="copied").or_(seen.page.locator("text=copied")).first.wait_for()
        told = seen.page.evaluate("navigator.clipboard.readText()")
        assert told == "python -m gradlab clip=norm optimizer.lr=0.01 expect=healthy"


@pytest.mark.slow
def test_light_and_dark(chromium: Any, collapsed: Path) -> None:
    with opened(chromium, collapsed) as seen:
        paper = "getComputedStyle(document.body).backgroundColor"
        light = seen.page.evaluate(paper)
        seen.page.locator("#theme").click()
        dark = seen.page.evaluate(paper)
        assert light == "rgb(255, 255, 255)" and dark != light
        seen.page.emulate_media(media="print")
        assert seen.page.evaluate(paper) == "rgb(255, 255, 255)"
        assert not seen.page.locator("#theme").is_visible() and seen.wrong == []


@pytest.mark.slow
def test_on_paper_charts_are_light_and_fit_the_sheet(chromium: Any, collapsed: Path) -> None:
    with opened(chromium, collapsed, width=1600, dark=True) as seen:
        width = "Math.max(...[...document.querySelectorAll('.chart canvas, .heat canvas')].map(c => c.clientWidth))"
        assert seen.page.evaluate(width) > 1000
        seen.page.evaluate(
            "addEventListener('beforeprint', () => { window.printed = document.documentElement.className; })"
        )
        assert len(seen.page.pdf(format="A4")) > 20_000
        assert seen.page.evaluate("window.printed") == "light"
        assert seen.page.evaluate(width) > 1000, "as before"
        seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        seen.page.wait_for_timeout(100)
        assert seen.page.evaluate(width) <= 700 and seen.wrong == []


@pytest.mark.slow
def test_whatever_a_run_is_called_is_text(chromium: Any, tmp_path: Path) -> None:
    hostile = "</script><img src=x onerror=\"document.title='broken'\">"
    finding = {
        "code": hostile,
        "severity": "critical",
        "sentence": hostile,
        "began": 1,
        "evidence": {hostile: hostile},
        "causes": [hostile],
    }
    told = made.diagnosis(
        hostile, sentence=hostile, findings=[finding], overrides=[hostile], unchecked={hostile: hostile}
    )
    layers = [{"names": [hostile], "order": [""], "modules": []}, {"attempt": 1, "grad/layer": [1.0]}]
    folder = made.run(
        tmp_path / "run", [made.line(1, 1.0, **{hostile: 2.0})], told, layers, config=f"{json.dumps(hostile)}: 1\n"
    )
    for page in (run_page.write(folder), comparison_page.write([folder, folder], tmp_path / "both.html")):
        with opened(chromium, page) as seen:
            assert hostile in seen.text("body") and seen.page.locator("img").count() == 0
            assert seen.page.title() != "broken" and seen.wrong == []


EMPTY: dict[str, dict[str, Any]] = {
    "no update": {"lines": [], "told": made.diagnosis(None, sentence="model.layers=0: must be >= 1", exit_code=2)},
    "nothing but lines": {"lines": [made.line(1, 1.0)]},
    "one update": {"lines": [made.line(1, 2.0)], "told": made.diagnosis()},
    "NaN from the first": {
        "lines": [made.line(at, math.nan) for at in (1, 2)],
        "told": made.diagnosis("nan_loss", ill=True),
    },
    "zeros": {"lines": [made.line(at, 0.0) for at in range(1, 50)], "told": made.diagnosis()},
    "extremes": {"lines": [made.line(at, 10.0 ** (at * 6 - 300)) for at in range(1, 100)], "told": made.diagnosis()},
    "negative": {"lines": [made.line(at, -float(at)) for at in range(1, 50)], "told": made.diagnosis()},
    "one record": {"lines": [made.line(1, 1.0)], "of_layers": made.layers(1, [1], lambda i, at: 0.0)},
    "all null": {"lines": [made.line(1, 1.0)], "of_layers": made.layers(2, [1, 2], lambda i, at: None)},
}


@pytest.mark.parametrize("what", sampled(EMPTY, 3))
def test_a_run_of_which_there_is_little(chromium: Any, tmp_path: Path, what: str) -> None:
    with opened(chromium, run_page.write(made.run(tmp_path / "run", **EMPTY[what]))) as seen:
        assert seen.wrong == []
        assert ("nothing to draw" in seen.text("#curves")) == (what == "no update")
        assert seen.page.locator(".chart").count() == 0 or min(painted(seen, ".chart canvas")) > 1


@pytest.mark.slow
def test_of_hundred_thousand_updates_what_fits_is_drawn(chromium: Any, tmp_path: Path) -> None:
    lines = [made.line(at, 2 + math.sin(at / 5000)) for at in range(1, 100_001)]
    folder = made.run(
        tmp_path / "run", lines, made.diagnosis(), made.layers(20, list(range(1, 100_001, 50)), lambda i, at: 1.0 + i)
    )
    page = run_page.write(folder)
    assert page.stat().st_size < 4e6
    with opened(chromium, page) as seen:
        seen.page.locator(".profile svg").wait_for()
        assert "has 100000 lines" in seen.text("#thinned") and seen.wrong == []


@pytest.mark.slow
def test_runs_over_each_other(chromium: Any, tmp_path: Path) -> None:
    lines = [made.line(at, 5.0) for at in range(1, 31)]
    other = made.run(tmp_path / "other", lines, made.diagnosis(), config="clip: {}\n", choices="      clip: none\n")
    page = comparison_page.write([made.collapse(tmp_path / "run"), other], tmp_path / "both.html")
    with opened(chromium, page) as seen:
        assert "scale collapse" in seen.text("#runs") and "healthy" in seen.text("#runs")
        rows = [row.split() for row in seen.page.locator("#fields tbody tr").all_inner_texts()]
        assert ["clip", "norm", "none"] in rows and ["clip.max_norm", "1.5", "-"] in rows
        loss = seen.page.locator(".chart[data-id^=loss]")
        assert "1 NaN 2 5" in " ".join(loss.inner_text().split())
        seen.page.locator("input[type=checkbox]").first.uncheck()
        told = " ".join(seen.page.locator(".chart[data-id^=loss]").inner_text().split())
        assert "2 5" in told and "NaN" not in told
        assert seen.wrong == []


@pytest.mark.slow
def test_page_follows_a_run_through_its_resumption_to_its_end(chromium: Any, tmp_path: Path) -> None:
    folder = made.run(tmp_path / "run", [made.line(at, 3.0) for at in range(1, 11)])

    def write(lines: list[dict[str, Any]], mode: str = "a") -> None:
        with (folder / "metrics.jsonl").open(mode) as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    with live_page.Server(folder, 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with opened(chromium, server.address) as seen:
            expect = seen.page.get_by_text
            seen.page.locator(".chart").first.wait_for()
            assert "training 3" in charts(seen)["loss"] and "running" in seen.text("h1")
            write([made.line(11, 4.5)])
            expect("4.5", exact=True).first.wait_for()
            assert "updates 1 to 11;" in seen.text(".bar output")
            write([made.line(at, 3.5) for at in range(1, 8)], "w")
            expect("updates 1 to 7;").first.wait_for()
            (folder / "diagnosis.json").write_text(json.dumps(made.diagnosis("stalled")))
            expect("the run has ended").wait_for()
            assert "stalled" in seen.text("h1") and seen.wrong == []
            server.shutdown()


@pytest.mark.slow
def test_the_end_is_told_in_the_order_in_which_it_came(chromium: Any, tmp_path: Path) -> None:
    """Also the update that was replayed, which is the first of the last streak; no name is read as a value."""
    folder = made.collapse(tmp_path / "run")
    told = json.loads((folder / "diagnosis.json").read_text())
    told["outcome"] |= {"first_failed_attempt": 91, "first_failed_epoch": 2}
    told["evidence"] |= {"scale_fell_from": 81, "scale_fell_in_epoch": 2, "skipped_since": 20, "samples": []}
    told["evidence"]["skipped_last_in_a_row"] = 10
    told["first_overflow"] = Overflow("forward", "head", "Linear", output_max=1e6, limit=65504.0).as_dict()
    (folder / "diagnosis.json").write_text(json.dumps(told))
    with opened(chromium, run_page.write(folder)) as seen:
        story = seen.text("#story")
        parts = ["begins to fall", "the first of the last streak", "overflows first", "the run ends"]
        assert sorted(parts, key=story.index) == parts
        evidence = seen.text(".evidence")
        assert "scale fell from" not in evidence and "began to fall" in evidence
        assert "samples" not in evidence, "there are none"
        assert seen.wrong == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "derivative", "where"),
    [
        ("loss", None, "the loss (pow)"),
        ("forward", None, "the model (pow)"),
        ("backward", "sqrt", "the derivative of sqrt,"),
        ("backward", None, "the backward pass (pow)"),
    ],
)
def test_ranges_are_said_of_where_the_operation_is(
    chromium: Any, tmp_path: Path, phase: str, derivative: str | None, where: str
) -> None:
    folder = made.collapse(tmp_path / "run")
    told = json.loads((folder / "diagnosis.json").read_text())
    base = Range("base", [3], "float32", -1.0, 1.0, 1.0, 0.0)
    o = Overflow(phase, "", "", operation="pow", derivative=derivative, ranges=[base])
    told["first_overflow"] = o.as_dict()
    (folder / "diagnosis.json").write_text(json.dumps(told))
    with opened(chromium, run_page.write(folder)) as seen:
        assert f"What went into {where}" in seen.page.content()


@pytest.mark.parametrize("largest", [5.0, 5e3])
def test_a_map_says_which_end_of_its_colours_values_are_beyond(chromium: Any, tmp_path: Path, largest: float) -> None:
    of_layers = made.layers(2, [1, 2], lambda i, at: 1.0)
    for line in of_layers[1:]:
        line["update/norm"], line["param/norm"] = [1e-3, largest], [1.0, 1.0]
    folder = made.run(tmp_path / "run", [made.line(i, 1.0) for i in (1, 2)], made.diagnosis(), of_layers)
    with opened(chromium, run_page.write(folder)) as seen:
        legend = "\n".join(one.inner_text() for one in seen.page.locator(".heat + .legend").all())
        assert "update ÷ weights" in legend
        assert ("≥ 10" in legend) == (largest > 10) and "≤" not in legend, legend
