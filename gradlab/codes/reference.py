"""The reference of all codes as a Markdown page."""

from __future__ import annotations

from gradlab.codes import CODES, GROUPS, Code

INTRODUCTION = """
# Mistakes that audit and watch find

`python -m gradlab.audit` finds them in the source, `gradlab.watch` while the loop runs. `error` is a wrong result,
`warning` probably one, `advice` correct code that could be better. A comment `# gradlab: ignore[GL101]` at the end of a
line silences a code there.
""".strip()
FOUND_BY = {
    ("audit",): "audit",
    ("watch",): "watch",
    ("audit", "watch"): "audit and watch",
}


def reference() -> str:
    """The Markdown page: a table of all codes, then one section for each, with its number as the anchor."""
    rows = [f"| [{c.code}](#{c.code}) | `{c.name}` | {c.severity} | {FOUND_BY[c.found_by]} |" for c in CODES.values()]
    table = "\n".join(["| code | name | severity | found by |", "|---|---|---|---|", *rows])
    parts = [INTRODUCTION, table]
    for group in GROUPS:
        parts.append(f"## {(group.__doc__ or '').strip().rstrip('.')}")
        parts += [section(code) for code in group.CODES]
    return "\n\n".join(parts) + "\n"


def section(code: Code) -> str:
    """One code: heading with anchor, facts, message, reason, measured effect, wrong and right example."""
    facts = f"{code.severity}, found by {FOUND_BY[code.found_by]}"
    if not code.default:
        facts += f", off unless selected (`--select {code.code}`)"
    parts = [f'### <a id="{code.code}"></a>{code.code} `{code.name}`', f"*{facts}*", f"**{sentence(code.message)}**"]
    parts.append(code.why)
    if code.measured:
        parts.append(f"Measured: {code.measured}")
    if code.pitfall:
        parts.append(f"See it with `+pitfall={code.pitfall}`.")
    parts += ["Wrong:", fenced(code.wrong), f"Right: {code.fix}.", fenced(code.example)]
    return "\n\n".join(parts)


def sentence(text: str) -> str:
    """With a period, and a capital letter unless the first word is an identifier."""
    return f"{text[0].upper() + text[1:] if text.split()[0].isalpha() else text}."


def fenced(code: str) -> str:
    language = "toml" if code.startswith("[") else "python"
    return f"```{language}\n{code}\n```"
