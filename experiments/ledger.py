"""The ledger: every claim that a study decided, in experiments/README.md."""

from __future__ import annotations

import json

from lab import HERE, VERDICTS

HEAD = """\
| | claim | source | here | measured | study |
|---|---|---|---|---|---|
"""

LEDGER = """\
# The ledger

What two collections of advice on gradients claim ("GM", a guide to gradient management; "GC", a note on the collapse of
the fp16 loss scale), and what runs of gradlab say. {total} claims: {confirmed} confirmed, {refuted} refuted,
{depends} that depend on the case. Every number is computed from the folders of runs by `experiments/<study>/study.py`;
`make reproduce NAME=<study>` runs a study again and writes its page and this one. A result holds for the model, data
and seeds that its page names.

What gradlab itself costs is in [cost](cost/README.md).

"""


def ledger() -> None:
    """experiments/README.md: every claim that a study decided; those of the two sources, then others."""
    rows = []
    for file in sorted(HERE.glob("*/results.json")):
        rows += [(file.parent.name, c) for c in json.loads(file.read_text())["claims"]]
    ours = [(n, c) for n, c in rows if not c["source"].startswith(("GM:", "GC:"))]
    theirs = [row for row in rows if row not in ours]
    counts = {v: sum(c["verdict"] == v for _, c in theirs) for v in VERDICTS}
    text = LEDGER.format(total=len(theirs), **counts) + HEAD + listed(theirs)
    text += "\n## Other claims\n\nOf common practice, and of gradlab itself.\n\n" + HEAD + listed(ours)
    (HERE / "README.md").write_text(text)
    print(f"{len(theirs)} claims: {counts}; and {len(ours)} others")


def listed(rows: list[tuple[str, dict[str, str]]]) -> str:
    lines = []
    for i, (name, c) in enumerate(rows, 1):
        page = f"[{name}]({name}/README.md)"
        lines.append(f"| {i} | {c['claim']} | {c['source']} | **{c['verdict']}** | {c['measured']} | {page} |\n")
    return "".join(lines)
