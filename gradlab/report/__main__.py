"""`python -m gradlab.report FOLDER [FOLDER ...]`."""

import sys

from gradlab.report.command import main

if __name__ == "__main__":
    sys.exit(main())
