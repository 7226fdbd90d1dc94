"""Expressions: what they stand for, and the events of the calls in them."""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING, Any

from gradlab.audit import calls, known
from gradlab.audit.conditions import FALSE, TRUE, Formula, joined, negation
from gradlab.audit.known import dotted
from gradlab.audit.scope import Scope, usage
from gradlab.audit.testing import canonical, formula
from gradlab.audit.values import Value, number, several

if TYPE_CHECKING:
    from gradlab.audit.project import Module


class Expressions:
    scope: Scope
    selves: list[Value | None]
    entered: int
    out: list

    def value(self, node: ast.expr | None) -> Value:
        if node is None:
            return Value("none", "None", birth=0)
        work = getattr(self, f"of_{type(node).__name__}", None)
        if work is not None:
            return work(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
        return Value()

    def parts(self, node: ast.AST) -> list[Value]:
        """The values of the names in an expression, without following its calls again."""
        return [self.value(part) for part in ast.walk(node) if isinstance(part, ast.Name)] + [
            self.value(part) for part in ast.walk(node) if isinstance(part, ast.Attribute) and dotted(part)
        ]

    def of_Constant(self, node: ast.Constant) -> Value:
        if node.value is None:
            return Value("none", "None", birth=0)
        return Value("number", "", {"value": node.value}, birth=0)

    def of_Name(self, node: ast.Name) -> Value:
        if (found := self.scope.find(node.id)) is not None:
            return found
        module = self.module  # type: ignore[attr-defined]
        value = self.top_level(module, node.id)
        if value is None and node.id in module.imports:
            name, level = module.imports[node.id]
            value = self.imported(name, level, module)
        if value is None and hasattr(builtins, node.id):
            value = Value("external", node.id, birth=0)
        if value is None:
            value = Value("unknown", node.id, {"given": True}, birth=0)
            value.kind = usage(self.scope.node).kind(node.id) or known.by_name(node.id) or "unknown"
        self.world(module).names[node.id] = value  # type: ignore[attr-defined]
        return value

    def top_level(self, module: Module, name: str) -> Value | None:
        found = module.names.get(name)
        if isinstance(found, ast.ClassDef):
            return Value("class", name, {"node": found, "module": module})
        if found is not None:
            return Value("function", name, {"node": found, "module": module, "scope": self.world(module)})  # type: ignore[attr-defined]
        return None

    def imported(self, name: str, level: int, module: Module) -> Value:
        if level or "." in name:
            found = self.project.resolve(name, level, module)  # type: ignore[attr-defined]
            if found is not None:
                there, node = found
                value = self.top_level(there, getattr(node, "name", ""))
                if value is not None:
                    return value
        return Value("external", name, birth=0)

    def of_Attribute(self, node: ast.Attribute) -> Value:
        return self.attribute(self.value(node.value), node.attr, node)

    def attribute(self, value: Value, name: str, node: ast.Attribute) -> Value:
        if name in value.attributes:
            held = value.attributes[name]
            if held.kind == "unknown" and held.data.get("given") and "class" in value.data:
                held.kind = self.class_usage(value, name, dotted(node)) or "unknown"
            return held
        made = self.known_attribute(value, name, node)
        if made is None:
            made = Value("unknown", f"{value.name}.{name}", {"given": True}, birth=value.birth)
            text = dotted(node)
            owner = value.data.get("class")
            if owner is not None and text:
                made.kind = self.class_usage(value, name, text) or known.by_name(name) or "unknown"
            elif text and value.kind in ("unknown", "instance", "accelerator", "arguments"):
                made.kind = usage(self.scope.node).kind(text) or known.by_name(name) or "unknown"
            if value.data.get("framework"):
                made.data["framework"] = True
        if value.kind not in ("external", "number", "none"):
            value.attributes[name] = made
        return made

    def class_usage(self, value: Value, name: str, text: str) -> str:
        for owner in value.data.get("lineage", [value.data.get("class")]):
            if kind := usage(owner).kind(f"self.{name}"):
                return kind
        return usage(self.scope.node).kind(text)

    def known_attribute(self, value: Value, name: str, node: ast.Attribute) -> Value | None:
        if value.kind == "external":
            dotted_name = f"{value.name}.{name}"
            found = self.project.resolve(dotted_name, 0, self.module) if "." in dotted_name else None  # type: ignore[attr-defined]
            if found is not None and (top := self.top_level(found[0], getattr(found[1], "name", ""))) is not None:
                return top
            return Value("external", dotted_name, birth=0)
        if value.kind == "param" and name == "grad":
            return Value("gradient", data={"of": value}, birth=value.birth)
        if value.kind in ("gradient", "param") and name == "data":
            return value
        if value.kind == "ddp" and name == "module":
            return Value("model", f"{value.name}.module", {"raw": value, "of": value.data.get("of")}, birth=value.birth)
        if value.kind == "optimizer" and name == "param_groups":
            return Value("groups", data={"of": value})
        if value.kind == "tensor" and name in ("loss", "data", "values", "logits"):
            return Value("tensor", name, {**value.data}) if name in ("loss", "logits") else Value("detached")
        if value.kind == "accelerator" and name == "sync_gradients":
            return calls.sync_flag(value)
        return calls.member(self, value, name)  # type: ignore[arg-type]

    def of_Subscript(self, node: ast.Subscript) -> Value:
        value = self.value(node.value)
        if not isinstance(node.slice, ast.Slice):
            self.value(node.slice)
        if value.kind == "list" and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
            items = value.data["items"]
            return items[node.slice.value] if -len(items) <= node.slice.value < len(items) else Value()
        if value.kind == "group":
            return Value("params", data={"of": value.data.get("of")})
        if value.kind == "tensor":
            return Value("tensor", "", {**value.data})
        key = f"[{ast.unparse(node.slice)}]"
        if key not in value.attributes:
            made = Value("unknown", f"{value.name}{key}", {"given": True}, birth=value.birth)
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                made.kind = known.by_name(node.slice.value) or "unknown"
            value.attributes[key] = made
        return value.attributes[key]

    def of_Tuple(self, node: ast.Tuple | ast.List) -> Value:
        return several([self.value(item) for item in node.elts])

    of_List = of_Tuple

    def of_Starred(self, node: ast.Starred) -> Value:
        return self.value(node.value)

    def of_Lambda(self, node: ast.Lambda) -> Value:
        return Value("lambda", data={"node": node, "scope": self.scope})

    def of_NamedExpr(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        self.scope.names[node.target.id] = value
        return value

    def of_Await(self, node: ast.Await) -> Value:
        return self.value(node.value)

    def of_IfExp(self, node: ast.IfExp) -> Value:
        self.value(node.test)
        test = formula(self, node.test)  # type: ignore[arg-type]
        out, branches = self.out, []  # type: ignore[attr-defined, has-type]
        from gradlab.audit.tree import If

        for part in (node.body, node.orelse):
            self.out = []
            branches.append((self.value(part), self.out))
        self.out = out
        if branches[0][1] or branches[1][1]:
            self.out.append(If(test, branches[0][1], branches[1][1]))
        if test == TRUE:
            return branches[0][0]
        if test == FALSE:
            return branches[1][0]
        return self.choice([(test, branches[0][0]), (negation(test), branches[1][0])])

    def choice(self, alternatives: list[tuple[Formula, Value]]) -> Value:
        """One of several values, each with the condition under which it is the one."""
        flat: list[tuple[Formula, Value]] = []
        for when, value in alternatives:
            inner = value.data.get("choice")
            flat += [(joined("and", [when, w]), v) for w, v in inner] if inner and len(inner) <= 3 else [(when, value)]
        if all(v is flat[0][1] for _, v in flat):
            return flat[0][1]
        kinds = [v.kind for _, v in flat]
        telling = [v for _, v in flat if v.kind not in ("none", "unknown", "number")] or [flat[0][1]]
        one = telling[0]
        data: dict[str, Any] = {**one.data, "choice": flat[:4]}
        factors = [[f for f in v.data.get("factors", []) if f[0] == "/"] for _, v in flat if v.kind == "tensor"]
        if any(f != factors[0] for f in factors):
            data["perhaps"] = True
        if all(v.kind == "bool" or (v.kind == "number" and isinstance(v.data.get("value"), bool)) for _, v in flat):
            from gradlab.audit.testing import truthy

            parts = [joined("and", [when, truthy(v, v.name)]) for when, v in flat]
            return Value("bool", one.name, {"formula": joined("or", parts)})
        same = "none" in kinds or "unknown" in kinds or len({v.name for _, v in flat}) == 1
        made = Value(one.kind, one.name, data, birth=max(v.birth for _, v in flat))
        if same:
            made.attributes = one.attributes
        return made

    def of_BoolOp(self, node: ast.BoolOp) -> Value:
        values = [self.value(part) for part in node.values]
        if isinstance(node.op, ast.Or) and any(
            v.kind not in ("unknown", "bool", "number", "none", "tensor") for v in values
        ):
            return next(v for v in values if v.kind not in ("unknown", "bool", "number", "none", "tensor"))
        return Value("bool", data={"formula": formula(self, node)})  # type: ignore[arg-type]

    def of_Compare(self, node: ast.Compare) -> Value:
        self.value(node.left)
        for part in node.comparators:
            self.value(part)
        return Value("bool", data={"formula": formula(self, node)})  # type: ignore[arg-type]

    def of_UnaryOp(self, node: ast.UnaryOp) -> Value:
        value = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return Value("bool", data={"formula": formula(self, node)})  # type: ignore[arg-type]
        if value.kind == "number" and isinstance(node.op, ast.USub) and isinstance(value.data["value"], (int, float)):
            return number(-value.data["value"])
        return value

    def of_BinOp(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(node.op, ast.Mod) and left.kind == "index":
            return Value("bool", data={"formula": formula(self, node)})  # type: ignore[arg-type]
        if isinstance(node.op, (ast.Add, ast.Sub)) and left.kind == "index" and right.kind == "number":
            sign = 1 if isinstance(node.op, ast.Add) else -1
            if isinstance(right.data["value"], int):
                return Value("index", left.name, {"offset": left.data["offset"] + sign * right.data["value"]})
        if left.kind == "list" and right.kind == "list" and isinstance(node.op, ast.Add):
            return several([*left.data["items"], *right.data["items"]])
        if left.kind == "params" or right.kind == "params":
            return left if left.kind == "params" else right
        return self.combined(node.op, left, right, node.right, node.left)

    def combined(
        self, op: ast.operator, left: Value, right: Value, right_node: ast.expr, left_node: ast.expr | None = None
    ) -> Value:
        """Arithmetic on tensors: a loss remembers what it was divided by and multiplied with."""
        if left.kind != "tensor" and right.kind != "tensor":
            return Value()
        if left.kind == "tensor" and right.kind == "tensor" and isinstance(op, (ast.Add, ast.Sub)):
            data = {
                **left.data,
                "choice": None,
                "roots": left.data.get("roots", frozenset()) | right.data.get("roots", frozenset()),
            }
            data["parts"] = [*left.data.get("parts", [left]), *right.data.get("parts", [right])]
            if left.data.get("factors") != right.data.get("factors"):
                data["factors"] = [*left.data.get("factors", []), *right.data.get("factors", [])]
            data["opaque"] = bool(left.data.get("opaque") or right.data.get("opaque"))
            del data["choice"]
            return Value("tensor", "", data)
        one, other, node = (left, right, right_node) if left.kind == "tensor" else (right, left, left_node)
        data = {k: v for k, v in one.data.items() if k != "choice"}
        if isinstance(op, (ast.Div, ast.Mult, ast.FloorDiv)) and node is not None:
            text = canonical(self, node)  # type: ignore[arg-type]
            sign = "/" if isinstance(op, ast.Div) and one is left else "*"
            data["factors"] = [*data.get("factors", []), (sign, text, other)]
        elif other.kind == "unknown" and other.data.get("opaque"):
            data["opaque"] = True
        return Value("tensor", "", data)

    def of_ListComp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Value:
        outer, self.scope = self.scope, Scope(self.scope, self.scope.node, self.module)  # type: ignore[attr-defined]
        try:
            for generator in node.generators:
                over = self.value(generator.iter)
                self.bind(generator.target, self.element(generator.iter, over))  # type: ignore[attr-defined]
                for test in generator.ifs:
                    self.value(test)
            value = self.value(node.elt)
        finally:
            self.scope = outer
        if value.kind == "param":
            return Value("params", data=dict(value.data))
        if value.kind == "gradient":
            return Value("gradients", data=dict(value.data))
        if value.kind in ("params", "tensor", "optimizer", "scheduler"):
            return value
        return Value()

    of_GeneratorExp = of_ListComp
    of_SetComp = of_ListComp

    def of_DictComp(self, node: ast.DictComp) -> Value:
        return Value()

    def of_Dict(self, node: ast.Dict) -> Value:
        value = Value("dict")
        items = []
        for key, part in zip(node.keys, node.values):
            item = self.value(part)
            items.append(item)
            if isinstance(key, ast.Constant):
                value.attributes[f"[{key.value!r}]"] = item
        if "params" in (v.kind for v in items):
            return next(v for v in items if v.kind == "params")
        value.data["items"] = items
        return value

    def of_Call(self, node: ast.Call) -> Value:
        return calls.call(self, node)  # type: ignore[arg-type]

    def element(self, node: ast.expr, over: Value) -> Value:
        """What one turn of a loop over a value binds."""
        if over.kind == "params":
            param = Value("param", data=dict(over.data))
            return several([Value("number", data={"value": "name"}), param]) if over.data.get("named") else param
        if over.kind == "groups":
            return Value("group", data=dict(over.data))
        if over.kind == "enumerated":
            inner = over.data["inner"]
            index = Value("index", "i", {"offset": over.data["start"]})
            return several([index, Value("unknown", "batch") if inner.kind != "params" else self.element(node, inner)])
        if over.kind == "counted":
            return Value("index", "i", {"offset": 0})
        if over.kind == "list" and over.data["items"]:
            return over.data["items"][0]
        if over.kind in ("optimizer", "scheduler", "scaler") or over.kind == "tensor":
            return over
        if over.kind == "zipped":
            return several([self.element(node, v) for v in over.data["items"]])
        return Value("unknown", "")
