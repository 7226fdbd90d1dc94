"""`python -m gradlab.map x=... y=...`: a map refined around its boundary."""

from __future__ import annotations

import sys

from gradlab.command import exit_code
from gradlab.errors import Usage
from gradlab.sweep import zoom_command

HELP = """\
python -m gradlab.map x=FIELD:LOW:HIGH[:linear] y=FIELD:LOW:HIGH[:linear] [OVERRIDE...]
  Runs a map over two fields and refines it where neighbouring runs end differently. Also resolution=256, coarse=16
  (cells a side at the boundary and everywhere), judge=stable|learns|verdict, checks=50, max_runs=N; other overrides
  are those of python -m gradlab.
"""


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if zoom_command.asks_for_runs(given):
        return zoom_command.run(given)
    return exit_code(lambda: work(given))


def work(arguments: list[str]) -> int:
    if not {"--help", "-h"} & set(arguments):
        raise Usage("x=FIELD:LOW:HIGH and y=FIELD:LOW:HIGH must be given; see python -m gradlab.map --help")
    print(HELP, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
