"""What Python itself offers for calls and names: getattr, setattr, partial, dictionaries, stacks of contexts."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.name_lookup import attribute
from gradlab.audit.knowledge import known_names
from gradlab.audit.knowledge.losses import regions
from gradlab.audit.trace.events import Region
from gradlab.audit.trace.values import Value, dictionary, several

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


def language(it: Interpreter, node: ast.Call, name: str, args: list[Value], keywords: dict[str, Value]) -> Value | None:
    """A call of one of Python's own; None for any other."""
    tail = name.split(".")[-1]
    if name == "len":
        return Value("unknown", "", {"made": True, "length": True})
    if name == "getattr" and len(args) >= 2:
        word = args[1].data.get("value")
        if isinstance(word, str):
            return attribute(it, args[0], word, ast.Attribute(node.args[0], word, ast.Load()))
        return Value("unknown", "", {"made": True, "framework": "class" in args[0].data})
    if name == "setattr" and len(args) == 3 and isinstance(word := args[1].data.get("value"), str):
        args[0].attributes[word] = args[2]
        return Value("none", "None")
    if name in ("functools.partial", "partial") and args:
        call = ast.Call(node.args[0], node.args[1:], node.keywords)
        return Value("partial", "", {"callee": args[0], "args": args[1:], "keywords": keywords, "call": call})
    if name == "dict" and not args:
        return dictionary(keywords)
    if tail in ("ExitStack", "AsyncExitStack"):
        return Value("stack", tail, {"scope": it.scope})
    if tail == "initialize" and "deepspeed" in name:
        engine = Value("engine", name, {"of": keywords.get("model", args[1] if len(args) > 1 else None)})
        return several([engine, Value(), Value(), Value()])
    return None


def unpacked(it: Interpreter, node: ast.Call) -> tuple[list[Value], dict[str, Value]]:
    """The arguments of a call, `*` and `**` taken apart where what they hold is known."""
    args: list[Value] = []
    for part in node.args:
        value = it.value(part)
        args += value.data["items"] if isinstance(part, ast.Starred) and value.kind == "list" else [value]
    keywords: dict[str, Value] = {}
    for pair in node.keywords:
        value = it.value(pair.value)
        if pair.arg is not None:
            keywords[pair.arg] = value
        elif value.kind == "dict":
            keywords |= {key[2:-2]: held for key, held in value.attributes.items() if key[:2] in ("['", '["')}
        else:
            keywords["**"] = value
    return args, keywords


def of_dictionary(it: Interpreter, owner: Value, name: str, args: list[Value]) -> Value | None:
    if name == "values":
        return several(list(owner.data.get("items", [])))
    if name == "items":
        pairs = [(key, value) for key, value in owner.attributes.items() if key.startswith("[")]
        return several([several([Value("number", data={"value": key}), value]) for key, value in pairs])
    if name in ("get", "pop", "setdefault") and args and isinstance(key := args[0].data.get("value"), str):
        if (held := owner.attributes.get(f"[{key!r}]")) is not None:
            return held
        return Value(known_names.by_name(key) or "unknown", key, {"given": True})
    return None


def entered(it: Interpreter, node: ast.Call, stack: Value, args: list[Value]) -> Value:
    """`stack.enter_context(c)` is `with c` up to the end of the stack's own block."""
    if not args:
        return Value()
    if isinstance(own := stack.data.get("region"), Region) and it.scope is not stack.data["scope"]:
        own.kind = "unknown"  # entered in a helper
    it.regions = [*it.regions, *regions(it, args[0], node.args[0])]
    return args[0].data.get("as", args[0])


def engine(it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value]) -> Value:
    """DeepSpeed's: it scales, divides, clips, zeroes and counts windows by itself, as its configuration says."""
    it.emit("opaque", node, owner, name=name, receives={"framework"})
    if name == "backward":
        it.emit("backward", node, args[0] if args else None, through=owner)
    elif name == "step":
        it.emit("step", node, owner)
        it.emit("zero", node, owner)
    return Value("unknown", "", {"made": True, "opaque": True})
