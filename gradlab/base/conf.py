"""Where the configurations are."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def conf_dir() -> Path:
    """The folder of configurations: the package's own in an installed wheel, else the checkout's."""
    return PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"


def yaml_names(folder: Path) -> list[str]:
    """The options that a folder of configurations holds."""
    return sorted(p.stem for p in folder.glob("*.yaml"))
