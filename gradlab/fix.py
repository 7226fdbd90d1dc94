"""`python -m gradlab.fix`: the smallest change that cures a failed run, proven under the same seed and further ones."""

from __future__ import annotations

import sys

from gradlab.cli import fix
from gradlab.cli.main import run


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    return fix.main(run, arguments)


if __name__ == "__main__":
    sys.exit(main())
