"""What Python itself offers: getattr and setattr, partial, iterables, dictionaries, stacks of contexts."""

from __future__ import annotations

import ast
from collections.abc import Callable

from gradlab.audit.knowledge.call_site import CallSite
from gradlab.audit.knowledge.context_regions import regions
from gradlab.audit.knowledge.freezing import renew
from gradlab.audit.knowledge.known_names import kind_by_name, kind_made
from gradlab.audit.knowledge.tensor_methods import detached
from gradlab.audit.trace.iterables import (
    OTHERS,
    collected,
    dictionary,
    dictionary_of_pairs,
    element,
    number,
    parameters_of,
    several,
)
from gradlab.audit.trace.values import CALLABLE, UNSET, Value


def python_function(call: CallSite) -> Value | None:
    """The result of one of Python's own functions; None for any other."""
    for names, name in ((NAMES, call.name), (TAILS, call.tail)):
        if name in names and (made := names[name](call)) is not None:
            return made
    return None


def get_attribute(call: CallSite) -> Value | None:
    if len(call.args) < 2:
        return None
    word = call.args[1].value
    if isinstance(word, str):
        return call.engine.attribute(call.args[0], word, ast.Attribute(call.node.args[0], word, ast.Load()))
    any_of = f"{call.args[0].name}.?"  # of `torch.optim`, by a name of the configuration
    if call.args[0].kind == "external" and kind_made(any_of):
        return Value("external", any_of)
    return Value(made=True, framework=bool(call.args[0].lineage))


def set_attribute(call: CallSite) -> Value | None:
    if len(call.args) == 3:
        renew(call.engine, call.args[0], call.args[2])
    if len(call.args) != 3 or not isinstance(word := call.args[1].value, str):
        return None
    call.args[0].attributes[word] = call.args[2]
    return Value("none", "None")


def as_number(call: CallSite) -> Value | None:
    """`float(loss)` is `loss.item()`."""
    tensor = call.first is not None and call.first.kind == "tensor"
    return detached(call.engine, call.node, call.first) if tensor else None


def namespace(call: CallSite) -> Value:
    made = Value("instance", call.tail)
    made.attributes |= call.keywords | {f"[{key!r}]": value for key, value in call.keywords.items()}
    return made


def executed(call: CallSite) -> None:
    """exec() of another file's text: the numbers and words at the top of the module may be others from now on."""
    names = call.engine.top(call.engine.module).names
    for name, value in names.items():
        if value.kind == "number" and value.birth == 0:
            names[name] = Value("unknown", name, given=True, birth=0)


def partial(call: CallSite) -> Value | None:
    if not call.args:
        return None
    first = ast.Call(call.node.args[0], call.node.args[1:], call.node.keywords)
    return Value("partial", callee=call.args[0], args=tuple(call.args[1:]), keywords=call.keywords, call=first)


def counted(call: CallSite) -> Value:
    """range(n), range(0, n) or range(0, n, m); of any other only that it counts."""
    first, *others = call.node.args or [ast.Constant(0)]
    if others and not (isinstance(first, ast.Constant) and first.value == 0):
        return Value("counted", stop="")
    stop, *stride = [call.engine.canonical(node) for node in others or [first]]
    return Value("counted", stop=stop, stride="" if stride in ([], ["1"]) else stride[0])


def enumerated(call: CallSite) -> Value | None:
    if not call.args:
        return None
    start = call.keywords.get("start", call.args[1] if len(call.args) > 1 else None)
    first = start.value if start is not None and start.kind == "number" else 0
    return Value("enumerated", inner=call.args[0], start=first if isinstance(first, int) else 0)


def zipped(call: CallSite) -> Value:
    return Value("zipped", items=call.args)


def mapped(call: CallSite) -> Value:
    if call.name != "map" or len(call.args) != 2 or call.args[0].kind not in CALLABLE:
        return same(call)
    over = call.args[1]
    items = over.items if over.kind == "list" else [element(over)]
    return several([call.engine.apply(call.node, call.args[0], [item]) for item in items[:4]])


def copied(call: CallSite) -> Value:
    """A model's copy is another model: what wraps the one does not wrap the other."""
    if not call.args or call.args[0].kind not in ("model", "ddp", "unknown"):
        return same(call)
    old = call.args[0]
    made = old.derived(old.kind, old.name, of=None, wrapped=False, call=call.node)
    made.attributes = old.attributes
    return made


def same(call: CallSite) -> Value:
    """What was given, in another order or wrapping."""
    if call.tail == "chain" and any(a.kind == "params" for a in call.args):
        return parameters_of(call.args)
    telling = (a for a in call.args if a.kind in ("params", "list", "enumerated"))
    found = next(telling, call.args[-1] if call.args else Value())
    return collected(call.engine.branches, found) if call.tail in COLLECTED else found


def annotated(call: CallSite) -> Value | None:
    return call.args[-1] if call.name.startswith("typing") and call.args else None


def signature(call: CallSite) -> Value:
    return Value(given=True, birth=max((a.birth for a in call.args), default=0))


COLLECTED = ("list", "tuple", "sorted", "set")
SAME = (
    *("list", "tuple", "iter", "sorted", "reversed", "set", "filter", "chain", "copy"),
    *("tqdm", "tqdm_notebook", "track"),
)
NAMES: dict[str, Callable[[CallSite], Value | None]] = {
    "len": lambda call: Value(made=True, traced=True, is_length=True, counted=call.first),
    "getattr": get_attribute,
    "setattr": set_attribute,
    "functools.partial": partial,
    "partial": partial,
    "exec": executed,
    "float": as_number,
}
TAILS: dict[str, Callable[[CallSite], Value | None]] = {
    **dict.fromkeys(("ExitStack", "AsyncExitStack"), lambda call: Value("stack", call.tail, scope=call.engine.scope)),
    **dict.fromkeys(("range", "trange", "count"), counted),
    **dict.fromkeys(
        ("dict", "OrderedDict"),
        lambda call: dictionary_of_pairs(call.args[0]) if call.args else dictionary(call.keywords),
    ),
    **dict.fromkeys(("SimpleNamespace", "Namespace", "Munch", "EasyDict", "AttrDict", "Box"), namespace),
    "enumerate": enumerated,
    "zip": zipped,
    "map": mapped,
    "deepcopy": copied,
    "cast": annotated,
    "signature": signature,
    "super": lambda call: Value("super", owner=call.engine.selves[-1] or UNSET),
    **dict.fromkeys(SAME, same),
}
"""By the last part of the name: `itertools.count`, `copy.deepcopy`, `tqdm.tqdm`."""


def dict_method(call: CallSite, owner: Value) -> Value | None:
    if call.name in ("update", "setdefault"):
        owner.attributes[OTHERS] = Value()
    if call.name == "update" and call.node.args and not isinstance(call.node.args[0], ast.Dict):
        for key, default in owner.attributes.items():  # it may be another value from now on
            if default.kind in ("number", "none"):
                owner.attributes[key] = Value("unknown", f"{owner.name}{key}", given=True)
        return Value()
    if call.name == "values":
        return several(list(owner.items))
    if call.name == "items":
        pairs = [(key, value) for key, value in owner.attributes.items() if key.startswith("[")]
        return several([several([number(key), value]) for key, value in pairs])
    if call.name in ("get", "pop", "setdefault") and call.args and isinstance(key := call.args[0].value, str):
        if (held := owner.attributes.get(f"[{key!r}]")) is not None:
            return held
        return Value(kind_by_name(key) or "unknown", key, given=True)
    return None


def enter_context(call: CallSite, stack: Value) -> Value:
    """`stack.enter_context(c)` is `with c` up to the end of the stack's own block."""
    engine = call.engine
    if not call.args:
        return Value()
    engine.regions = [*engine.regions, *regions(call.args[0], call.node.args[0])]
    stack.after = (*call.args[0].after, *stack.after)
    return call.args[0].entered or call.args[0]
