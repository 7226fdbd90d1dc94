"""Arguments of trainers that contradict each other, or the module that is trained."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from gradlab.audit.rules.registry import text_rule
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import called_name, dotted

PARSED = re.compile(r"(^|[._])(args|opts?|options|hparams|flags)$", re.I)
"""Names of what a parser returns."""
TRL = r"(SFT|DPO|ORPO|KTO|CPO|GRPO|RLOO|Reward)Config"
"""Names of what trl derives from transformers' arguments."""


def literal(node: ast.AST) -> float | None:
    """A number in the text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return float(node.value)
    return None


class Argument(NamedTuple):
    """An argument of a trainer: its value as far as it is in the text, and where it is given."""

    name: str
    value: ast.expr
    at: ast.expr


def trainers(module: Module) -> Iterator[ast.Call]:
    """Calls that make a trainer of Lightning's or transformers', or the arguments of one."""
    if not re.search(rf"(Trainer|TrainingArguments|{TRL})(\.from_argparse_args)?\s*\(", module.source.text):
        return
    for node in module.source.nodes.of(ast.Call):
        if re.search(rf"(^|\.)(Trainer(\.from_argparse_args)?|\w*TrainingArguments|{TRL})$", dotted(node.func)):
            yield node


def configured(module: Module) -> list[list[Argument]]:
    """The arguments of each trainer."""
    return [arguments(call, module) for call in trainers(module)]


def arguments(call: ast.Call, module: Module) -> list[Argument]:
    """Keywords, those of a dictionary in the file, and the defaults of arguments that are parsed."""
    parsed = parsed_defaults(module)
    found: dict[str, Argument] = {}
    if called_name(call) == "from_argparse_args" or any(called_name(k.value) == "vars" for k in call.keywords):
        found |= {name: Argument(name, value, value) for name, value in parsed.items()}
    for keyword in call.keywords:
        if keyword.arg is None and isinstance(keyword.value, ast.Name):
            found |= {name: Argument(name, value, value) for name, value in items(module, keyword.value.id)}
    for keyword in call.keywords:
        if keyword.arg is not None:
            owner, _, name = dotted(keyword.value).rpartition(".")
            value = parsed.get(name, keyword.value) if PARSED.search(owner) else keyword.value
            found[keyword.arg] = Argument(keyword.arg, value, keyword.value)
    return list(found.values())


def parsed_defaults(module: Module) -> dict[str, ast.expr]:
    """Defaults of the arguments that a file parses: `add_argument("--max_norm", default=1.0)`."""
    found: dict[str, ast.expr] = {}
    if "add_argument" in module.source.text:
        for call in module.source.nodes.of(ast.Call):
            default = next((k.value for k in call.keywords if k.arg == "default"), None)
            first = call.args[0] if call.args else None
            if called_name(call) == "add_argument" and isinstance(first, ast.Constant) and default is not None:
                found[str(first.value).lstrip("-").replace("-", "_")] = default
    return found


def items(module: Module, name: str) -> list[tuple[str, ast.expr]]:
    """The items of a dictionary that is written out in a file, and not changed there."""
    nodes = module.source.nodes
    used: list[ast.Attribute | ast.Subscript] = [*nodes.of(ast.Attribute), *nodes.of(ast.Subscript)]
    changed = any(dotted(part.value) == name for part in used)
    made = [node.value for node in nodes.of(ast.Assign) if name in map(dotted, node.targets)]
    if changed or len(made) != 1:
        return []
    if isinstance(made[0], ast.Call) and dotted(made[0].func) == "dict":
        return [(k.arg, k.value) for k in made[0].keywords if k.arg is not None]
    if not isinstance(made[0], ast.Dict):
        return []
    return [(str(k.value), v) for k, v in zip(made[0].keys, made[0].values) if isinstance(k, ast.Constant)]


@text_rule("GL812")
def two_precisions(module: Module) -> Iterator[ast.AST]:
    for trainer in configured(module):
        asked = [(a, constant(module, a.value)) for a in trainer if a.name in ("fp16", "bf16")]
        flags = {ast.unparse(value) for _, value in asked}
        named = all(isinstance(value, (ast.Name, ast.Attribute)) for _, value in asked)
        if len(asked) == 2 and len(flags) == 1 and (named or flags == {"True"}):
            yield asked[1][0].at


def constant(module: Module, node: ast.expr) -> ast.expr:
    """What a name stands for that a file binds once, to a constant; anything else itself."""
    made = [n.value for n in module.source.nodes.of(ast.Assign) if dotted(node) in map(dotted, n.targets)]
    return made[0] if isinstance(node, ast.Name) and len(made) == 1 and isinstance(made[0], ast.Constant) else node


@text_rule("GL813")
def manual_optimization(module: Module) -> Iterator[ast.AST]:
    if "Trainer" not in module.source.text:
        return
    own = [n for n in module.names.values() if isinstance(n, ast.ClassDef) and defines(n, "training_step")]
    classes = [*own, *fitted(module)]
    if not classes or not all(one is not None and optimizes_manually(one) for one in classes):
        return
    for argument in (argument for trainer in configured(module) for argument in trainer):
        value = literal(argument.value)
        least = {"gradient_clip_val": 0, "accumulate_grad_batches": 1}.get(argument.name)
        if least is not None and value is not None and value > least:
            yield argument.at


def fitted(module: Module) -> Iterator[ast.ClassDef | None]:
    """The classes of what trainers are given to fit, each wherever it is defined; None of what is not known."""
    bound = [(dotted(target), n.value) for n in module.source.nodes.of(ast.Assign) for target in n.targets]
    made = list(trainers(module))
    names = {name for name, value in bound if value in made}
    for call in module.source.nodes.of(ast.Call):
        model = next((k.value for k in call.keywords if k.arg == "model"), call.args[0] if call.args else None)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "fit" and model is not None:
            if call.func.value not in made and dotted(call.func.value) not in names:
                continue
            models = [value for name, value in bound if name == dotted(model)] or [model]
            yield from (class_of(value, module) for value in models)


def class_of(node: ast.expr, module: Module) -> ast.ClassDef | None:
    """The class of the project that an expression makes an object of, or loads one of, if it trains by its own step."""
    name = dotted(node.func).removesuffix(".load_from_checkpoint") if isinstance(node, ast.Call) else ""
    found: ast.AST | None = module.names.get(name)
    if found is None and name.partition(".")[0] in module.imports:
        found = (module.definition(name) or (None, None))[1]
    return found if isinstance(found, ast.ClassDef) and defines(found, "training_step") else None


def defines(node: ast.ClassDef, name: str) -> bool:
    return any(isinstance(n, ast.FunctionDef) and n.name == name for n in node.body)


def optimizes_manually(node: ast.ClassDef) -> bool:
    """`self.automatic_optimization = False`, and nothing that sets it otherwise."""
    values = [
        n.value
        for n in ast.walk(node)
        if isinstance(n, ast.Assign) and any(ast.unparse(t).endswith("automatic_optimization") for t in n.targets)
    ]
    return bool(values) and all(isinstance(v, ast.Constant) and v.value is False for v in values)
