"""States that are loaded: a module's own tensors change nothing, and copies do."""

import copy

import pytest
from torch.optim import SGD
from watched_loops import batches, loss_of, marked, net, train

import gradlab


def best_model(keep):
    model = net()
    optimizer, state = SGD(model.parameters(), 0.1), None
    with gradlab.watch(model, optimizer, quiet=True) as watch:
        for epoch in range(3):
            train(model, optimizer, 3)
            state = keep(model.state_dict()) if epoch == 1 else state  # here
        model.load_state_dict(state)
    return watch


def target_network(source):
    model, target = net(), net()
    optimizer = SGD(model.parameters(), 0.1)
    with gradlab.watch(model, optimizer, quiet=True) as watch:
        for _ in range(3):
            train(model, optimizer, 3)
            target.load_state_dict((target if source == "itself" else model).state_dict())  # here
    return watch


def part_of_another_model(_):
    model, other = net(), net(1)
    optimizer = SGD(model.parameters(), 0.1)
    with gradlab.watch(model, optimizer, quiet=True) as watch:
        train(model, optimizer, 3)
        state = model.state_dict()
        state.update({name: value for name, value in other.state_dict().items() if name.startswith("0")})
        model.load_state_dict(state)
    return watch


def edited_in_place(write):
    """As averages are written: what is loaded is what was changed."""
    model, target = net(), net(1)
    optimizer = SGD(model.parameters(), 0.1)
    with gradlab.watch(model, optimizer, quiet=True) as watch:
        for _ in range(3):
            train(model, optimizer, 3)
            for module in (model, target):
                state = module.state_dict()
                for value in state.values():
                    write(value)
                module.load_state_dict(state)
    return watch


@pytest.mark.parametrize(
    "loop, given, wrong",
    [
        (best_model, dict, True),
        (best_model, copy.copy, True),
        (best_model, copy.deepcopy, False),
        (best_model, lambda state: {name: value.clone() for name, value in state.items()}, False),
        (target_network, "itself", True),
        (target_network, "the model", False),
        (part_of_another_model, None, False),
        (edited_in_place, lambda value: value.clamp_(-1, 1), False),
    ],
)
def test_a_module_that_loads_what_it_has(loop, given, wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    watch = loop(given)
    assert not watch.broken
    assert [(f.name, f.site[1]) for f in watch.faults] == ([("state-of-itself", marked(loop))] if wrong else [])


@pytest.mark.parametrize("lines", [1, 2])
def test_parameters_that_a_line_of_the_program_freezes(lines, tmp_path):
    """If the file has several such lines, which of them it was is not known."""
    source = "def freeze(layer):\n    for p in layer.parameters():\n        p.requires_grad = False\n" * lines
    source += """
def loop(model, optimizer, batches, loss_of):
    for i, batch in enumerate(batches):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        if not i:
            freeze(model[0])
"""
    (tmp_path / "program.py").write_text(source)
    names = {}
    exec(compile(source, str(tmp_path / "program.py"), "exec"), names)
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path / "run", quiet=True) as watch:
        names["loop"](model, optimizer, batches(16), loss_of)
    [fault] = watch.faults
    step = source.splitlines().index("        optimizer.step()") + 1
    assert (fault.name, fault.site[1]) == ("frozen-and-forgotten", 3 if lines == 1 else step)
