"""What other packages raise, in one line."""

from typing import Any

import pytest

from gradlab.base.errors import exit_code, explain


def raised(code: str, module: str) -> Exception:
    """What code raises in a module of that name, called by one of Hydra."""
    called: dict[str, Any] = {"__name__": module}
    exec(f"def sweep():\n    {code}", called)
    try:
        exec("sweep()", {"__name__": "hydra.core.plugins", "sweep": called["sweep"]})
    except Exception as error:
        return error
    raise AssertionError


def test_a_plugin_of_hydra_that_fails_is_named() -> None:
    error = raised("raise TypeError('mutable default\\n of a field')", "hydra_plugins.hydra_odd_sweeper.config")
    said = (
        "hydra_plugins.hydra_odd_sweeper does not work with what is installed here (TypeError: mutable default of a fi"
    )
    assert str(explain(error)).startswith(said) and "\n" not in str(explain(error)) and exit_code(error) == 1


@pytest.mark.parametrize("module", ["hydra_plugins.gradlab_sweepers.map", "gradlab.runs.job"])
def test_a_fault_of_gradlab_keeps_its_traceback(module: str) -> None:
    assert explain(raised("1 / 0", module)) is None


def test_a_worker_that_dies_while_the_model_is_at_work_is_told() -> None:
    error = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
    assert (
        explain(error)
        == "data.workers: a worker that reads ahead died: DataLoader worker (pid 7) is killed by signal: Killed."
    )
