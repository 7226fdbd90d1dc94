"""One of several values, each with the condition under which it is the one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradlab.audit.interpreter.branch_conditions import truthy
from gradlab.audit.trace.conditions import TRUE, Formula, joined, negation
from gradlab.audit.trace.values import Value

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


def choice(alternatives: list[tuple[Formula, Value]]) -> Value:
    """One of several values, each with the condition under which it is the one."""
    flat = distinct(alternatives)
    if all(v is flat[0][1] for _, v in flat):
        return flat[0][1]
    kinds = [v.kind for _, v in flat]
    telling = [v for _, v in flat if v.kind not in ("none", "unknown", "number")] or [flat[0][1]]
    first = telling[0]
    data: dict[str, Any] = {**first.data, "choice": flat}
    factors = [[f for f in v.data.get("factors", []) if f[0] == "/"] for _, v in flat if v.kind == "tensor"]
    if any(f != factors[0] for f in factors):
        data["perhaps"] = True
    if all(v.kind == "bool" or (v.kind == "number" and isinstance(v.data.get("value"), bool)) for _, v in flat):
        parts = [joined("and", [when, truthy(v, v.name)]) for when, v in flat]
        return Value("bool", first.name, {"formula": joined("or", parts)})
    same = "none" in kinds or "unknown" in kinds or len({v.name for _, v in flat}) == 1
    made = Value(first.kind, first.name, data, birth=max(v.birth for _, v in flat))
    if same:
        made.attributes = first.attributes
    return made


def distinct(alternatives: list[tuple[Formula, Value]]) -> list[tuple[Formula, Value]]:
    """Each value once, those of choices among them: none is a choice itself, or what branches make grows with each."""
    found: dict[int, tuple[Formula, Value]] = {}
    for when, value in alternatives:
        for w, v in value.data.get("choice") or [(None, value)]:
            test = when if w is None else joined("and", [when, w])
            known = found.get(id(v))
            found[id(v)] = (test if known is None else joined("or", [known[0], test]), v)
    flat = list(found.values())
    return flat if len(flat) <= 6 else [*flat[:3], *flat[-3:]]


def either(it: Interpreter, test: Formula, one: Value, two: Value | None) -> Value:
    if two is None or one is two or test == TRUE:
        return one
    if test == ("false",):
        return two
    return choice([(test, one), (negation(test), two)])
