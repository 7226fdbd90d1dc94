"""The description of one mistake in a training loop."""

from __future__ import annotations

from dataclasses import dataclass

SEVERITIES = ("advice", "warning", "error")
"""advice: correct, and could be better. warning: probably wrong. error: a wrong result."""


@dataclass(frozen=True, kw_only=True)
class Code:
    """All of a code's documentation. Texts have no period at the end, except `why` and `measured`."""

    code: str
    """GL and three digits; the first digit is the group's."""
    name: str
    severity: str
    message: str
    """One line of at most 120 characters."""
    why: str
    """The consequence, in sentences."""
    measured: str = ""
    """The measured effect, in sentences that follow the word "Measured"."""
    pitfall: str = ""
    """The pitfall that reproduces the mistake, `+pitfall=NAME`."""
    wrong: str
    """Code with the mistake."""
    fix: str
    """What to do, in the imperative."""
    example: str
    """The code without the mistake."""
    found_by: tuple[str, ...] = ("audit", "watch")
    """audit: from the source. watch: from the running loop."""
    default: bool = True
    """Whether the audit reports it without being asked."""

    @property
    def explanation(self) -> str:
        """Why it matters, with the measured effect and the pitfall that shows it."""
        parts = [self.why, f"Measured: {self.measured}" * bool(self.measured)]
        parts.append(f"See it with `+pitfall={self.pitfall}`." * bool(self.pitfall))
        return " ".join(part for part in parts if part)
