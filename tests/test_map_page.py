"""map.html: one file that shows what the sweep's files say, and lets nothing out of its data."""

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import sweeps

from gradlab.map import main
from gradlab.sweep import map_page
from gradlab.sweep.map_grid import METRICS
from gradlab.sweep.map_page import NUMBERS, embedded, page, short
from gradlab.sweep.results import read

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
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


def data_of(path: Path) -> dict[str, Any]:
    reader = Reader()
    reader.feed(path.read_text())
    assert len(reader.scripts) == 2, "the data and the program, and nothing that the data brought"
    return json.loads(reader.scripts[0])


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    folder = sweeps.sweep(tmp_path / "s & <b>", LRS, [1, 10, 100], lambda y, seed: 0.1 * y, seeds=2)
    for path in (folder / "0", folder / "23"):
        told = json.loads((path / "diagnosis.json").read_text())
        (path / "diagnosis.json").write_text(json.dumps(told | {"sentence": EVIL}))
    return folder


def test_the_page_holds_every_job_with_its_numbers_and_curves(sweep: Path) -> None:
    assert main([str(sweep)]) == 0
    rows, found = {row["job"]: row for row in read(sweep)}, data_of(sweep / "map.html")
    assert len(found["jobs"]) == len(rows) == 24
    for job in found["jobs"]:
        row = rows[job["job"]]
        assert job["verdict"] == row["verdict"] and found["outcomes"][job["outcome"]]["name"] == row["outcome"]
        assert job["numbers"] == [short(row[name]) for name in NUMBERS]
        assert job["curves"][0][-1] == row["updates"] and len({len(c) for c in job["curves"]}) == 1
    (one,) = found["slices"]
    names = list(METRICS)
    for cell in one["cells"]:
        i, j = cell["at"]
        assert {found["jobs"][k]["job"] for k in cell["jobs"]} == {
            job for job, row in rows.items() if (row["optimizer.lr"], row["clip.max_norm"]) == (LRS[j], [1, 10, 100][i])
        }
        assert cell["values"][names.index("stable")] == (1 if LRS[j] <= [0.1, 1, 10][i] else 0)
    assert {job["why"] for job in found["jobs"] if job["job"] in ("0", "23")} == {EVIL}


def test_nothing_is_fetched_and_nothing_of_the_data_is_markup(sweep: Path) -> None:
    assert main([str(sweep)]) == 0
    text = (sweep / "map.html").read_text()
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//|@import|url\(|fetch\(|XMLHttpRequest", text)
    assert "<title>map of s &amp; &lt;b&gt;</title>" in text and "evil()</script>" not in text
    assert "innerHTML" not in text and "outerHTML" not in text and "document.write" not in text
    assert json.loads(embedded(EVIL)) == EVIL and not set("<>&") & set(embedded(EVIL))
    assert page("map.html", "{{data}}", 1).count("{{data}}") == 2, "what is filled in is not filled in again"


def test_a_large_map_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lrs = [0.1 * 1.2**i for i in range(16)]
    folder = sweeps.sweep(tmp_path / "s", lrs, [2.0**i for i in range(16)], lambda y, seed: 0.5, updates=600)
    assert main([str(folder)]) == 0
    size = (folder / "map.html").stat().st_size
    jobs = data_of(folder / "map.html")["jobs"]
    assert len(jobs) == 256 and size < 3e6 and max(len(job["curves"][0]) for job in jobs) == 200, size
    monkeypatch.setattr(map_page, "BUDGET", 256 * 50)  # as many more jobs would
    assert main([str(folder)]) == 0
    assert max(len(job["curves"][0]) for job in data_of(folder / "map.html")["jobs"]) == 50


HARNESS = """
<script>
const press = (key) => document.getElementById("map").dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
const seen = {}, text = (id) => document.getElementById(id).textContent;
window.addEventListener("load", () => {
  press("ArrowRight"); press("ArrowRight"); press("ArrowUp"); press("ArrowUp"); press("ArrowUp"); press("ArrowUp");
  seen.live = text("live");
  press("Enter");
  seen.details = text("details");
  seen.paths = document.querySelectorAll("#details svg path").length;
  seen.links = [...document.querySelectorAll("#details a")].map((a) => a.getAttribute("href"));
  seen.hash = location.hash;
  const select = document.getElementById("metric");
  seen.offered = [...select.options].filter((o) => !o.hidden).map((o) => o.textContent);
  select.value = 1; select.dispatchEvent(new Event("change"));
  seen.legend = text("legend");
  const map = document.getElementById("map");
  const pixels = map.getContext("2d").getImageData(0, 0, map.width, map.height).data;
  seen.colours = new Set(Array.from({length: pixels.length / 4}, (_, i) => pixels.slice(4 * i, 4 * i + 3).join())).size;
  press("Escape");
  seen.after = text("details");
  document.getElementById("theme").click();
  const made = document.createElement("pre");
  made.id = "seen"; made.textContent = JSON.stringify(seen);
  document.body.append(made);
});
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium")
def test_a_browser_shows_it_without_an_error(sweep: Path, tmp_path: Path) -> None:
    assert main([str(sweep)]) == 0
    tried = sweep / "tried.html"
    tried.write_text((sweep / "map.html").read_text().replace("</body>", HARNESS))
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'p'}",
    ]
    command = [str(CHROMIUM), *flags, "--virtual-time-budget=5000", "--dump-dom", tried.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-2000:]
    seen = json.loads(html.unescape(found[1]))
    assert "optimizer.lr = 0.2, clip.max_norm = 100" in seen["live"] and "learnt: healthy" in seen["live"]
    rows = {row["job"]: row for row in read(sweep)}
    jobs = [j for j, row in rows.items() if (row["optimizer.lr"], row["clip.max_norm"]) == (0.2, 100)]
    assert seen["paths"] == 4 and seen["links"] == [f"{job}/" for job in jobs] and seen["hash"] == "#at=2%2C1"
    assert all(f"job {job}, seed {i}: healthy" in seen["details"] for i, job in enumerate(jobs))
    assert "gradient norm, largest" in seen["offered"] and "lost" in seen["legend"] and seen["colours"] > 4
    assert seen["after"] == "Choose a point to see its runs."
