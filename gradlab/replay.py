"""`python -m gradlab.replay`: the update that ended a run, replayed operation by operation."""

import sys

from gradlab.cli.replay import main

if __name__ == "__main__":
    sys.exit(main())
