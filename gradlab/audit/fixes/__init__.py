"""What `--fix` can mend: for each rule, texts in which the mistake may be gone. Each is audited before it is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gradlab.audit.finding import Finding
from gradlab.audit.fixes import deprecated_names, statement_order
from gradlab.audit.fixes.source_lines import Page

Fix = Callable[[Page, Finding], Iterator[list[str]]]

FIXES: dict[str, Fix] = {
    "GL101": statement_order.clip_first,
    "GL201": statement_order.unscale_first,
    "GL205": statement_order.update_after,
    "GL212": deprecated_names.renamed,
    "GL402": statement_order.schedule_after,
    "GL605": statement_order.detached,
}
