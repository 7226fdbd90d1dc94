"""`python -m gradlab.advise`: max_norm, learning rate and accumulation, from what a run measured."""

import sys

from gradlab.cli.advise import main

if __name__ == "__main__":
    sys.exit(main())
