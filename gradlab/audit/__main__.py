"""`python -m gradlab.audit PATH...`."""

from gradlab.audit.command import main, script

__all__ = ["main", "script"]

if __name__ == "__main__":
    script()
