"""The rules with a fix: each yields texts in which the mistake may be gone. A text is audited before it is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gradlab.audit.finding import Finding
from gradlab.audit.fixes import deprecated_names, statement_order
from gradlab.audit.fixes.source_lines import SourceLines

Fix = Callable[[SourceLines, Finding], Iterator[list[str]]]

FIXES: dict[str, Fix] = {
    "GL101": statement_order.clip_first,
    "GL201": statement_order.unscale_first,
    "GL205": statement_order.update_after,
    "GL212": deprecated_names.renamed,
    "GL402": statement_order.schedule_after,
    "GL605": statement_order.detached,
}
