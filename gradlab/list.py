"""`python -m gradlab.list [FOLDER]`: runs and sweeps, with their verdicts and key numbers."""

import sys

from gradlab.report.terminal.listing import main

if __name__ == "__main__":
    sys.exit(main())
