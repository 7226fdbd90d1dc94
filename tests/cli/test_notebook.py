"""The notebook of the documentation runs from its first cell to its last, and says what its text says."""

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "failing-model.ipynb"


@pytest.mark.slow
def test_the_notebook_fails_and_is_cured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "kept without outputs"
            exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), names)
    run, cured, sweep, gradlab = (names[name] for name in ("run", "cured", "sweep", "gradlab"))
    assert not run.healthy and run.evidence and cured.healthy
    table = gradlab.compare(run, cured, sweep)
    assert len(table) == 5 and list(table["verdict"])[:2] == [run.verdict, cured.verdict]
    assert "optimizer.lr" in table and "optimizer.momentum" not in table, "what is alike is left out"
    assert list(table["optimizer.lr"])[2:] == [0.5, 0.05, 0.005] and table.index[0] == str(run.folder)
    assert table["eval_loss"].iloc[1] == pytest.approx(cured.metrics["eval/loss"].dropna().iloc[-1])
    assert len(sweep.results) == 3 and len(gradlab.compare(run.folder)) == 1
    with pytest.raises(ValueError, match="needs runs"):
        gradlab.compare()
