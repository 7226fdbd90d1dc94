"""Run studies and write down what they show.

python experiments/reproduce.py exploding          runs its commands, then writes its page and the ledger
python experiments/reproduce.py exploding --read   writes them from the runs that are there
python experiments/reproduce.py                    lists the studies
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import lab  # noqa: E402
from ledger import ledger  # noqa: E402
from page import write  # noqa: E402


def load(name: str) -> lab.Study:
    path = HERE / name / "study.py"
    if not path.is_file():
        raise SystemExit(f"{name}: must be one of {', '.join(names())}")
    spec = importlib.util.spec_from_file_location(f"study_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.STUDY


def names() -> list[str]:
    return sorted(p.parent.name for p in HERE.glob("*/study.py"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", help="studies; none: list them")
    parser.add_argument("--read", action="store_true", help="read the runs that are there instead of running")
    given = parser.parse_args()
    if not given.name:
        for name in names():
            print(f"{name:24} {load(name).title}")
        return
    for name in given.name:
        study = load(name)
        write(name, study, lab.run(name, study, fresh=not given.read))
    ledger()


if __name__ == "__main__":
    main()
