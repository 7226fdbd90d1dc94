"""What `--fix` can mend: for each rule, texts in which the mistake may be gone. Each is audited before it is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gradlab.audit.finding import Finding
from gradlab.audit.fixes import names, orders
from gradlab.audit.fixes.page import Page

Fix = Callable[[Page, Finding], Iterator[list[str]]]

FIXES: dict[str, Fix] = {
    "GL101": orders.clip_first,
    "GL201": orders.unscale_first,
    "GL205": orders.update_after,
    "GL212": names.renamed,
    "GL402": orders.schedule_after,
    "GL605": orders.detached,
}
