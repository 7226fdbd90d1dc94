"""Fills the generated references into the pages: `<!-- reference: NAME -->`."""

from typing import Any

from gradlab.codes.reference import reference as codes
from gradlab.config.reference import reference as options
from gradlab.diagnosis.reference import reference as diagnosis

REFERENCES = {"codes": codes, "diagnosis": diagnosis, "options": options}


def on_page_markdown(markdown: str, **_: Any) -> str:
    for name, reference in REFERENCES.items():
        mark = f"<!-- reference: {name} -->"
        if mark in markdown:
            markdown = markdown.replace(mark, reference())
    return markdown
