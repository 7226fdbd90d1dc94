"""`python -m gradlab.report FOLDER [FOLDER ...]`."""

import sys

from gradlab.cli.report import main

if __name__ == "__main__":
    sys.exit(main())
