"""The reference page that is made from the table of codes."""

from __future__ import annotations

import re

import pytest

from gradlab.codes import CODES, GROUPS
from gradlab.codes.reference import reference

PAGE = reference()
SECTIONS = {text[:5]: text for text in PAGE.split('### <a id="')[1:]}


def test_every_code_has_one_section_in_its_group():
    assert list(SECTIONS) == sorted(CODES)
    assert len(re.findall("^## ", PAGE, re.MULTILINE)) == len(GROUPS)


@pytest.mark.parametrize("code", CODES)
def test_a_section_has_all_of_the_documentation(code):
    kind, text = CODES[code], SECTIONS[code]
    assert text.startswith(f'{code}"></a>{code} `{kind.name}`\n')
    assert kind.message[1:] in text
    for part in (kind.severity, *kind.found_by, kind.why, kind.measured, kind.pitfall, kind.fix):
        assert part in text
    assert text.index(f"\n{kind.wrong}\n```") < text.index(f"\n{kind.example}\n```")
    assert ("off unless selected" in text) is not kind.default


def test_links_of_the_table_lead_to_anchors():
    assert set(re.findall(r"\]\(#(\w+)\)", PAGE)) == set(re.findall(r'<a id="(\w+)">', PAGE)) == set(CODES)


def test_code_blocks_are_closed():
    fences = [line for line in PAGE.splitlines() if line.startswith("```")]
    assert len(fences) == 4 * len(CODES)
    assert all(fence == "```" for fence in fences[1::2])
