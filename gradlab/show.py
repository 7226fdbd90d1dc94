"""`python -m gradlab.show FOLDER`: a run's verdict and its curves, in the terminal."""

from __future__ import annotations

import sys

from gradlab.base.command import exit_code
from gradlab.report.terminal.show import work


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    return exit_code(lambda: work(sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    sys.exit(main())
