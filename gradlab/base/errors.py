"""What went wrong, in one or two lines that name the field, what was given and what is allowed."""

from __future__ import annotations

import re
from pathlib import Path

from gradlab.base import components
from gradlab.base.option import OPTIONS, Invalid
from gradlab.base.suggestions import did_you_mean, must_be, no_such_field
from gradlab.base.visible import visible

APPENDED = ("experiment", "remedy", "pitfall", "sweep")
"""Groups that a plus appends."""
EXTRAS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit", "optuna": "optuna"}
"""Launchers and sweepers that an extra installs, and its name."""
HYDRA = ("hydra", "omegaconf", "antlr4")
"""Packages whose errors are a user's: composing a configuration is all that they do."""

BAD_VALUES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Exceptions that the values of a damaged or foreign file cause, wherever they are used."""

MORE = {
    "data": "; your own: data=custom data.target=my_package.data:make, or text files: data=text data.path=FOLDER",
    "model": "; your own: model=custom model.target=my_package.nets:Net",
    "logger": "; the local files are always written",
}
"""Added where a group has no such option."""


MANY = 6
"""From this many options on they are not listed."""


class Usage(ValueError):
    """A command line that cannot be read; the message is complete."""


def explain(error: BaseException, folder: Path | None = None) -> str | None:
    """What a user did wrong, in one or two lines; None for a fault of gradlab, which deserves its traceback."""
    message = explained(error, folder)
    return None if message is None else visible(message)


def explained(error: BaseException, folder: Path | None) -> str | None:
    if isinstance(error, (Invalid, Usage)):
        return str(error)
    if (found := re.match("Invalid raised while resolving interpolation: (.*)", str(error))) is not None:
        return found[1]
    if str(error).startswith("Unable to configure handler") and isinstance(error.__cause__, OSError):
        error = error.__cause__  # of logging: a run's log cannot be opened
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or folder or 'output'}: {error.strerror}"
    if isinstance(error, RuntimeError) and "Expected to have finished reduction" in str(error):  # DDP's
        return "trainer.find_unused_parameters=false: must be true: the model leaves some of its parameters out"
    if isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker"):  # raised wherever the run is
        return f"data.workers: a worker that reads ahead died: {' '.join(str(error).split())[:200]}"
    if isinstance(error, SystemExit):
        return f"the code that the configuration names called sys.exit({error.code!r})"
    if package(type(error).__module__) not in HYDRA and package(raised_in(error)) not in HYDRA:
        return of_plugin(error)
    cause = error.__cause__ or error
    return (
        unknown_option(error)
        or ambiguous(error)
        or missing_plus(error)
        or field_of_null(error)
        or remedy_file(error)
        or unknown_field(error, cause)
        or wrong_value(error, cause)
        or two_lines(error)
        or f"the configuration cannot be composed ({type(error).__name__})"
    )


def exit_code(error: BaseException) -> int:
    """2 for a wrong command, 1 for a fault of gradlab or of the machine, such as a full disk."""
    if isinstance(error, OSError) and package(type(error).__module__) not in HYDRA:
        return 2 if isinstance(error, FileNotFoundError) else 1
    return 1 if isinstance(error, SystemExit) or explain(error) is None or of_plugin(error) else 2


def package(module: str) -> str:
    return module.split(".")[0]


def of_plugin(error: BaseException) -> str | None:
    """What a plugin of Hydra, not gradlab's, raises as Hydra imports it or as it sweeps."""
    trace, name = error.__traceback__, ""
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if module.startswith("hydra_plugins.") and not module.startswith("hydra_plugins.gradlab"):
            name = ".".join(module.split(".")[:2])
        elif package(module) == "gradlab":
            name = ""
        trace = trace.tb_next
    if not name:
        return None
    said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return f"{name} does not work with what is installed here ({said}): uninstall it, or try other versions"


def raised_in(error: BaseException) -> str:
    """Name of the module that raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""


def two_lines(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "\n  ".join(lines[:2])


def ambiguous(error: BaseException) -> str | None:
    """`clip.max_norm=1,2` or `seed=range(0,3)` without -m."""
    found = re.search(r"Ambiguous value for argument '(.+)'", str(error))
    found = found or re.search(r"Sweep parameters '(.+)' requires --multirun", str(error))
    return f"{found[1]}: several values need --multirun (-m); a list is [1,2]" if found else None


def missing_plus(error: BaseException) -> str | None:
    """`experiment=fp16_collapse`."""
    found = re.search(r"Could not override '(\w+)'", str(error))
    if found is None or found[1] not in APPENDED:
        return None
    return f"{found[1]}: is appended, so it needs a plus: +{found[1]}=..."


def field_of_null(error: BaseException) -> str | None:
    """`pitfall.measure_every=1` without +pitfall, or where +pitfall is swept: Hydra then begins without one."""
    if "Unexpected type for root: NoneType" not in str(error):
        return None
    trace, field = error.__traceback__, "pitfall"
    while trace is not None:  # the message does not name the field; Hydra's frame that applies the override does
        field = getattr(trace.tb_frame.f_locals.get("override"), "key_or_group", field)
        trace = trace.tb_next
    return (
        f"{field}: its group has no option chosen; choose one first, such as +pitfall=no_clip "
        "(a sweep over +pitfall= does not count)"
    )


def unknown_option(error: BaseException) -> str | None:
    """`clip=foo`."""
    options, missing = getattr(error, "options", None), getattr(error, "missing_cfg_file", None)
    if not missing:
        return None
    group, _, name = str(missing).removesuffix(".yaml").rpartition("/")
    allowed = [str(o) for o in options or (components.names(group) if group else [])]  # of several, Hydra lists none
    if group in ("hydra/launcher", "hydra/sweeper") and name in EXTRAS:
        return f"{group}={name}: needs an extra: pip install 'gradlab[{EXTRAS[name]}]'"
    if not group:
        return f"--config-name {name}: there is no such file"
    return f"{group}={name}: {must_be(name, allowed)}{MORE.get(group, '')}"


def unknown_field(error: BaseException, cause: BaseException) -> str | None:
    """`clip.maxnorm=1`, `sed=1`, `clp=norm`."""
    found = re.search(r"Could not override '([^']+)'", str(error))
    if found is None:
        return None
    full = found[1].split("@")[0]
    group, _, name = full.rpartition(".")
    parent = getattr(cause, "parent_node", None)
    if full.startswith("logger.") and getattr(cause, "object_type", None) is dict:
        chosen = ", ".join(map(str, parent or ())) or "none"
        return f"{full}: must be logger.NAME.FIELD of a logger that logger= names; it names {chosen}"
    if not group or parent is None:
        return f"{full}: {no_such_field(name)}"
    known = [str(k) for k in parent]
    above = str(parent._get_full_key(None))
    if group.startswith(f"{above}."):  # the field is of one that does not exist itself
        group, name = above, group.removeprefix(f"{above}.").split(".")[0]
    having = [
        f"{g}={o}" for (g, o), cls in OPTIONS.items() if g == group and name in getattr(cls, "__dataclass_fields__", ())
    ]
    if having and len(having) < MANY:
        return f"{full}: no such field of the chosen option, but of {', '.join(sorted(having))}"
    return f"{full}: no such field{did_you_mean(name, known)}; {group} has {', '.join(known) or 'no fields'}"


def remedy_file(error: BaseException) -> str | None:
    """A user's file in `remedy/` with other fields than a remedy has, or values that they do not take."""
    found = re.match(r"In '(remedy/([^']+))': \S+ raised.*\n\s*(.*)", str(error))
    if found is None:
        return None
    file, name, what = f"{found[1]}.yaml", found[2], found[3]
    if "not a subclass of Remedy" in what:
        return f"{file}: must begin with the line `# @package remedy.{name}`"
    if (unknown := re.match(r"Key '(.+)' not in", what)) is not None:
        what = f"{unknown[1]}: no such field{did_you_mean(unknown[1], ('why', 'set', 'multiply'))}"
    return f"{file}: {what}; why is text, set and multiply hold a field and its value or factor a line"


def wrong_value(error: BaseException, cause: BaseException) -> str | None:
    """`clip.max_norm=abc`."""
    found = re.search(r"Error merging override (\S+?)=(.*)", str(error))
    if found is None:
        return None
    kinds = {"Float": "a number", "Integer": "a whole number", "bool": "true or false", "Boolean": "true or false"}
    kind = re.search(r"could not be converted to (\w+)|is not a valid (\w+)", str(cause))
    wanted = next((g for g in kind.groups() if g), None) if kind else None
    allowed = f"must be {kinds.get(wanted, wanted)}" if wanted else str(cause).splitlines()[0]
    allowed = "must not be null" if "is not Optional" in allowed else allowed
    return f"{found[1].lstrip('+')}={found[2]}: {allowed}"
