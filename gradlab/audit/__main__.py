"""`python -m gradlab.audit PATH...`."""

from __future__ import annotations

import sys

from gradlab.audit.command import main

if __name__ == "__main__":
    sys.setrecursionlimit(4000)  # a long chain of `elif`, or of `+`, is a deep tree
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
