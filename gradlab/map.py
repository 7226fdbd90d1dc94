"""`python -m gradlab.map`: the map of a sweep, drawn again, or refined around its boundary."""

import sys

from gradlab.cli.map import main

if __name__ == "__main__":
    sys.exit(main())
