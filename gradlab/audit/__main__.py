"""`python -m gradlab.audit PATH...`."""

from __future__ import annotations

import sys

from gradlab.audit.cli import main

if __name__ == "__main__":
    sys.exit(main())
