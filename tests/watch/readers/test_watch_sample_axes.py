"""Layers that run over the samples of a batch as over the steps of a sequence are named where they are made."""

import inspect

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam
from watched_loops import batches

import gradlab


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.gru = nn.LSTM(4, 16), nn.GRU(4, 16, num_layers=2)
        self.first = nn.GRU(4, 16, batch_first=True)
        self.seen = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32), 2, enable_nested_tensor=False)
        self.last = nn.Linear(16, 4)


def of_steps(x):
    return x.view(16, 2, 4)


def last_of_lstm(m, x, y):
    states, _ = m.lstm(of_steps(x))
    states = F.relu(states)
    return F.cross_entropy(m.last(states[:, -1, :]), y)


def last_of_gru(m, x, y):
    states, _ = m.gru(of_steps(x))
    return F.cross_entropy(m.last(states.select(1, 1)), y)


def first_of_attention(m, x, y):
    states = m.seen(of_steps(x).repeat(1, 1, 4))
    return F.cross_entropy(m.last(states[:, 0]), y)


def faults_of(loss, tmp_path):
    model = Parts()
    optimizer = Adam(model.parameters(), 1e-3)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for x, y in batches(3):
            optimizer.zero_grad()
            loss(model, x, y).backward()
            optimizer.step()
    assert not w.broken
    return [(f.name, f.site[1]) for f in w.faults]


MADE = {last_of_lstm: "nn.LSTM(", last_of_gru: "nn.GRU(", first_of_attention: "nn.TransformerEncoderLayer("}


@pytest.mark.parametrize("loss", MADE)
def test_one_sample_is_read_for_the_last_step(loss, tmp_path):
    lines, first = inspect.getsourcelines(Parts)
    made = next(first + i for i, line in enumerate(lines) if MADE[loss] in line)
    assert faults_of(loss, tmp_path) == [("samples-as-steps", made)]


def patches(m, x, y):
    """The steps are frames of one film, with a target each, and the samples its patches."""
    return F.cross_entropy(m.last(m.seen(of_steps(x).repeat(1, 1, 4)).mean(dim=1)), y)


def class_of_a_film(m, x, y):
    states = m.seen(of_steps(x).repeat(1, 1, 4))
    return F.cross_entropy(m.last(states[:, 0].mean(0, keepdim=True)), y[:1])


def turned_back(m, x, y):
    states, _ = m.gru(of_steps(x).transpose(0, 1))
    return F.cross_entropy(m.last(states.transpose(0, 1)[:, -1]), y)


def each_sample(m, x, y):
    states, _ = m.gru(of_steps(x))
    return sum(F.cross_entropy(m.last(states[:, i]), y) for i in range(2))


def looked_at(m, x, y):
    states, _ = m.gru(of_steps(x).transpose(0, 1))
    assert states[:, 0].norm() > 0
    return F.cross_entropy(m.last(states[-1]), y)


def last_of_each_length(m, x, y):
    states, _ = m.lstm(of_steps(x).transpose(0, 1))
    lengths = np.arange(len(y)) % 2 + 1
    return F.cross_entropy(m.last(states[lengths - 1, np.arange(len(y))]), y)


RIGHT = {
    "lengths": last_of_each_length,
    "batch_first": lambda m, x, y: F.cross_entropy(m.last(m.first(of_steps(x))[0][:, -1]), y),
    "steps_first": lambda m, x, y: F.cross_entropy(m.last(m.lstm(of_steps(x).transpose(0, 1))[0][-1]), y),
    "attention": lambda m, x, y: F.cross_entropy(m.last(m.seen(of_steps(x).repeat(1, 1, 4))[0]), y[:2]),
    "patches": patches,
    "class_of_a_film": class_of_a_film,
    "turned_back": turned_back,
    "each": each_sample,
    "looked_at": looked_at,
}


@pytest.mark.parametrize("kind", RIGHT)
def test_the_samples_are_where_the_layer_takes_them(kind, tmp_path):
    assert faults_of(RIGHT[kind], tmp_path) == []
