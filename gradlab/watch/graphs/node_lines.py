"""The lines that nodes of a graph were made at, where an update in which these are noted has made them."""

from __future__ import annotations

from typing import Any

from gradlab.watch.call_site import CallSite

SITE = "gradlab_site"
"""Key of the lines in the metadata of a node."""
Lines = tuple["CallSite | None", ...]
"""Of the user's functions that were running, the innermost first."""


def site_of(node: Any) -> CallSite | None:
    """The line that has made a node, if it was made in such an update."""
    return lines_of(node)[0] if lines_of(node) else None


def lines_of(node: Any) -> Lines:
    return node.metadata.get(SITE, ())  # type: ignore[no-any-return]
