"""`python -m gradlab.list [FOLDER]`: runs and sweeps, with their verdicts and key numbers."""

from __future__ import annotations

import sys

from gradlab.base.command import exit_code
from gradlab.report.terminal.listing import work


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    return exit_code(lambda: work(sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    sys.exit(main())
