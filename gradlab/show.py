"""`python -m gradlab.show FOLDER`: a run's verdict and its curves, in the terminal."""

import sys

from gradlab.report.terminal.show import main

if __name__ == "__main__":
    sys.exit(main())
