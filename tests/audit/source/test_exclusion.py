"""`exclude` of the settings: names and paths, below folders, and with --force-exclude of files that are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradlab.audit.command import main

LOOP = (Path(__file__).parents[1] / "wrong" / "clip_after_step.py").read_text()
FILES = ("a.py", "old/b.py", "src/old/c.py", "src/made_d.py")


def findings(folder: Path, capsys, exclude: str, *arguments: str) -> set[str]:
    """The files with findings."""
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(LOOP)
    (folder / "pyproject.toml").write_text(f"[tool.gradlab.audit]\nexclude = {exclude}\n")
    code = main([*arguments, "--severity", "error"])
    found = {line.split(":")[0] for line in capsys.readouterr().out.splitlines() if ": GL" in line}
    assert code == bool(found)
    return found


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        ("[]", set(FILES)),
        ("['old']", {"a.py", "src/made_d.py"}),
        ("['old/']", {"a.py", "src/made_d.py"}),
        ("['src/old']", {"a.py", "old/b.py", "src/made_d.py"}),
        ("['./src/*']", {"a.py", "old/b.py"}),
        ("['made_*.py', 'b.py']", {"a.py", "src/old/c.py"}),
        ("['*']", set()),
    ],
)
def test_names_and_paths_below_the_folder_of_the_settings(exclude, left, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert findings(tmp_path, capsys, exclude, ".") == left
    assert findings(tmp_path, capsys, exclude, *FILES) == set(FILES)
    assert findings(tmp_path, capsys, exclude, "--force-exclude", *FILES) == left
    monkeypatch.chdir(tmp_path / "src")
    assert findings(tmp_path, capsys, exclude, ".") == {name[4:] for name in left if name.startswith("src/")}


def test_everything_excluded_is_no_finding(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert findings(tmp_path, capsys, "['old', 'a.py']", "--force-exclude", "a.py", "old") == set()
    assert main(["--force-exclude", "a.py"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["old"]) == 0
    assert capsys.readouterr().err == "gradlab.audit: no Python file in old that the settings do not exclude\n"


def test_the_pre_commit_hook_excludes_what_the_settings_exclude():
    text = (Path(__file__).parents[3] / ".pre-commit-hooks.yaml").read_text()
    entry = next(line for line in text.splitlines() if "entry:" in line)
    assert entry.split()[1:] == ["python", "-m", "gradlab.audit", "--force-exclude"]
