"""Modules of the audited project: imports are followed to files beside the audited one, never to installed packages."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from gradlab.audit.source.files import Source, read
from gradlab.audit.source.syntax import dotted, walk

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef

KEPT = 50
"""Modules that are kept in memory between files."""
ABOVE = 2
"""How many folders above a script an imported package is looked for: `scripts/train.py` beside `package/`."""
STARS = 6
"""A file that takes everything from more files than this is a catalogue: not searched for each name."""
STARRED = 40
"""Files that are searched for what `from x import *` brings."""
CALLERS, NEAR, LARGE = 2, 80, 200_000
"""Files that are followed because they call functions of the audited one, files that are searched for them, and the
characters of the largest of these."""
DEEP = 4
"""How many imports of imports are followed."""
INSTALLED = {
    *sys.stdlib_module_names,
    *("torch", "torchvision", "numpy", "lightning", "pytorch_lightning", "transformers", "accelerate", "timm", "apex"),
    *("tqdm", "wandb", "einops", "datasets", "sklearn", "scipy", "pandas", "matplotlib", "deepspeed", "yaml"),
}
READ = 700_000
"""Characters of other files that are read for one: imports beyond them are not followed."""
AUTOCAST = re.compile(r"(torch\.)?((cuda\.)?amp\.)?autocast")


@dataclass(eq=False)
class Module:
    source: Source
    names: dict[str, Definition] = field(default_factory=dict)  # functions and classes at the top
    catalogue: dict[str, Module] | None = None  # of the names that come with `from x import *`
    project: Project | None = field(default=None, repr=False)

    @property
    def path(self) -> str:
        return str(self.source.path)

    @cached_property
    def imports(self) -> dict[str, tuple[str, int]]:
        """The dotted name and the level of each imported name."""
        found: dict[str, tuple[str, int]] = {}
        for plain in self.source.nodes.of(ast.Import):
            for alias in plain.names:
                name = alias.asname or alias.name.split(".")[0]
                found[name] = (alias.name if alias.asname else name, 0)
        for node in self.source.nodes.of(ast.ImportFrom):
            for alias in node.names:
                origin = f"{node.module}.{alias.name}" if node.module else alias.name
                known = found.get(alias.asname or alias.name, ("", 0))[0]
                if not known.startswith("torch."):  # what comes after PyTorch's own is for versions without it
                    found[alias.asname or alias.name] = (origin, node.level)
        return found

    def definition(self, name: str) -> tuple[Module, Definition] | None:
        """The function or class in another file that a dotted name stands for, which begins with an imported one."""
        first, _, rest = name.partition(".")
        origin, level = self.imports[first]
        return self.project.resolve(f"{origin}.{rest}" if rest else origin, level, self) if self.project else None

    @cached_property
    def stars(self) -> list[tuple[str, int]]:
        """What `from x import *` takes everything from."""
        nodes = self.source.nodes.of(ast.ImportFrom)
        return [(n.module, n.level) for n in nodes if n.module and any(alias.name == "*" for alias in n.names)]

    @cached_property
    def declared(self) -> set[str]:
        """Names at the top that functions assign."""
        return {name for node in self.source.nodes.of(ast.Global) for name in node.names}

    @cached_property
    def casts(self) -> bool:
        """Whether autocast is used outside of the networks defined here: then networks from elsewhere do not cast."""
        networks = [
            c for c in self.source.nodes.of(ast.ClassDef) if any(getattr(n, "name", "") == "forward" for n in c.body)
        ]
        inside = {id(part) for network in networks for part in walk(network)}
        named = {name for name, (path, _) in self.imports.items() if AUTOCAST.fullmatch(path)}
        names = [n for n in self.source.nodes.of(ast.Name) if n.id in named]
        uses = [*names, *(n for n in self.source.nodes.of(ast.Attribute) if AUTOCAST.fullmatch(dotted(n)))]
        return any(id(n) not in inside for n in uses) or bool(named and not uses)


def module_of(source: Source, project: Project) -> Module:
    """The definitions at the top, those under `if` and `try` included."""
    found = Module(source, project=project)
    left: list[ast.stmt] = [*reversed(source.tree.body)] if source.tree is not None else []
    while left:
        node = left.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.names.setdefault(node.name, node)
        elif isinstance(node, (ast.If, ast.Try)):
            left += reversed([*node.body, *node.orelse])
    return found


@lru_cache(maxsize=1000)
def methods_of(node: ast.ClassDef) -> dict[str, Function]:
    """The methods of a class by name: of several definitions the last one, of a property the one that reads it."""
    found: dict[str, Function] = {}
    for item in node.body:
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            decorators = {getattr(decorator, "attr", "") for decorator in item.decorator_list}
            found |= {} if decorators & {"setter", "deleter"} else {item.name: item}
    return found


class Project:
    """Modules by path, parsed once."""

    def __init__(self) -> None:
        self.modules: dict[Path, Module | None] = {}
        self.resolved: dict[tuple[str, int, Path], tuple[Module, Definition] | None] = {}
        self.folders: dict[Path, list[Path]] = {}  # the files beside each folder's
        self.texts: dict[Path, str] = {}
        self.used: dict[Path, int] = {}  # characters of each file that was read for the audited one
        self.unread: set[Path] = set()  # files that were not, because they are too many

    def add(self, source: Source) -> Module:
        key = source.path.resolve()
        if (known := self.modules.get(key)) is None:
            known = self.modules[key] = module_of(source, self)
        known.source.path = source.path  # as it was asked for, if it was read before for an import
        if self.unread:  # what was given up for another file is tried again for this one
            self.resolved.clear()
            for module in self.modules.values():
                if module is not None:
                    module.catalogue = None
        self.used, self.unread = {}, set()
        return known

    def load(self, path: Path) -> Module | None:
        key = path.resolve()
        if key not in self.used:
            if sum(self.used.values()) > READ:
                self.unread.add(key)
                return None
            self.used[key] = path.stat().st_size if path.is_file() else 0
        if key not in self.modules:
            source = read(path) if path.is_file() else None
            self.modules[key] = module_of(source, self) if source is not None and source.tree else None
        return self.modules[key]

    def forget(self) -> None:
        """Drop the modules if there are many: trees cost memory, and time in the garbage collector."""
        if len(self.modules) > KEPT:
            self.modules.clear()
            self.resolved.clear()
            self.texts.clear()

    def resolve(self, dotted: str, level: int, of: Module, depth: int = 0) -> tuple[Module, Definition] | None:
        """The function or class that an imported name stands for, if it is in a file beside or above this one."""
        if depth > DEEP or (not level and dotted.split(".")[0] in INSTALLED):
            return None
        key = (dotted, level, of.source.path)
        if key not in self.resolved:
            self.resolved[key] = None  # a circle of imports ends here
            found = self.file(dotted, level, of)
            self.resolved[key] = None if found is None else self.within(*found, depth)
        return self.resolved[key]

    def callers(self, of: Module, names: set[str]) -> list[Module]:
        """Files beside and above a module, and beside its folder, that name it and call one of these functions."""
        path = of.source.path.resolve()
        stem = path.parent.name if path.stem == "__init__" else path.stem
        called = re.compile(rf"\b({'|'.join(map(re.escape, sorted(names)))})\s*\(")
        found = []
        for other in self.beside(path.parent):
            text = "" if other == path or other.name.startswith("test_") else self.text(other)
            if re.search(rf"\b{re.escape(stem)}\b", text) and called.search(text):
                module = self.load(other)
                found += [module] if module is not None and module.source.tree is not None else []
        return found[:CALLERS]

    def beside(self, folder: Path) -> list[Path]:
        """The Python files of a folder, of the one above it, and of that one's other folders."""
        if folder not in self.folders:
            above = [] if (folder / ".git").exists() or folder.parent == folder else [folder.parent]
            files = [path for one in (folder, *above) for path in sorted(one.glob("*.py"))]
            if above and (folder / "__init__.py").is_file():
                files += sorted(path for path in folder.parent.glob("*/*.py") if path.parent != folder)
            self.folders[folder] = files[:NEAR]
        return self.folders[folder]

    def text(self, path: Path) -> str:
        """The text of a file, empty where it is large or cannot be read."""
        if path not in self.texts:
            try:
                large = path.stat().st_size > LARGE
                self.texts[path] = "" if large else path.read_text(encoding="utf-8", errors="ignore")
            except OSError:
                self.texts[path] = ""
        return self.texts[path]

    def file(self, dotted: str, level: int, of: Module) -> tuple[Module | None, str] | None:
        """The file that an import leads to, and what it takes from there; None where there is no such file."""
        parts = dotted.split(".")
        start = of.source.path.resolve().parent
        if level:
            for _ in range(level - 1):
                start = start.parent
            starts = [start]
        else:
            starts = [start]
            while (start / "__init__.py").exists() and len(starts) < 6:
                start = start.parent
                starts.append(start)
            for above in start.parents[:ABOVE]:
                package = above / parts[0]  # of which this file is a part, or which is marked as one, or has that file
                marked = any((package / f"{name}.py").is_file() for name in ("__init__", *parts[1:2]))
                if marked or start.is_relative_to(package):
                    starts.append(above)
        for folder in starts:
            for cut in range(len(parts) - 1, 0, -1):
                base = folder.joinpath(*parts[:cut])
                for path in (base.with_suffix(".py"), base / "__init__.py"):
                    if path.is_file():
                        return self.load(path), parts[cut]
            if level and len(parts) == 1 and (folder / "__init__.py").is_file():
                return self.load(folder / "__init__.py"), parts[0]
        return None

    def within(self, found: Module | None, name: str, depth: int) -> tuple[Module, Definition] | None:
        if found is None:
            return None
        if name in found.names:
            return found, found.names[name]
        if name in found.imports:
            return self.resolve(*found.imports[name], found, depth + 1)
        return self.starred(name, found, depth + 1)

    def starred(self, name: str, of: Module, depth: int = 0) -> tuple[Module, Definition] | None:
        """What a name stands for that comes with `from x import *`."""
        there = self.catalogue(of).get(name)
        if there is None:
            return None
        if name in there.names:
            return there, there.names[name]
        return self.resolve(*there.imports[name], there, depth)

    def reexported(self, name: str, of: Module) -> tuple[str, int, Module] | None:
        """What a file of `from x import *` has imported under a name: its dotted name and level there."""
        there = self.catalogue(of).get(name)
        return (*there.imports[name], there) if there is not None and name in there.imports else None

    def catalogue(self, of: Module) -> dict[str, Module]:
        """The modules of the names that come with `from x import *`, those included that these modules take so."""
        if of.catalogue is None:
            of.catalogue = {}
            for module in self.star_modules(of):
                for name in (*module.names, *module.imports):
                    of.catalogue.setdefault(name, module)
        return of.catalogue

    def star_modules(self, of: Module) -> list[Module]:
        """In the order of the imports, each followed by what it takes itself."""
        found: dict[int, Module] = {}
        left = [(of, 0)]
        while left and len(found) < STARRED:
            module, depth = left.pop()
            if id(module) in found:
                continue
            found[id(module)] = module
            if depth > DEEP or len(module.stars) > STARS:
                continue
            for source, level in reversed(module.stars):
                if level or source.split(".")[0] not in INSTALLED:
                    there, name = self.file(f"{source}.*", level, module) or (None, "")
                    if there is not None and name == "*":
                        left.append((there, depth + 1))
        return [module for module in found.values() if module is not of]
