"""Attention that sees the target, and masks that hide the tokens, are named; the right masks are not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam
from watched_loops import batches, marked

import gradlab

MASK = nn.Transformer.generate_square_subsequent_mask(8)


def added(size):
    """A mask of finite numbers."""
    return torch.full((8, 8), size).triu(1)


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(30, 16, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True)
        self.reader = nn.GRU(16, 8, batch_first=True, bidirectional=True)
        self.writer = nn.LSTM(16, 16, batch_first=True)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 30)


def next_token(out, tokens):
    return F.cross_entropy(out[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def of_layers(m, tokens, y, mask=None):
    states = m.layer(m.embed(tokens), mask)  # here
    return next_token(m.out(states), tokens)


def of_products(m, tokens, y, mask=None):
    q, k, v = m.qkv(m.embed(tokens)).chunk(3, -1)
    likeness = q @ k.mT / 4
    shares = (likeness if mask is None else likeness + mask).softmax(-1)  # here
    return next_token(m.out(shares @ v), tokens)


def of_one_step_too_many(m, tokens, y, mask=None):
    q, k, v = m.qkv(m.embed(tokens)).chunk(3, -1)
    seen = torch.ones(8, 8).tril(1 if mask is None else 0).bool()
    shares = (q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1)  # here
    return next_token(m.out(shares @ v), tokens)


def of_one_call(m, tokens, y, mask=None):
    q, k, v = m.qkv(m.embed(tokens)).chunk(3, -1)
    states = F.scaled_dot_product_attention(q, k, v, is_causal=mask is not None)  # here
    return next_token(m.out(states), tokens)


def of_one_call_by_name(m, tokens, y, mask=None):
    q, k, v = m.qkv(m.embed(tokens)).chunk(3, -1)
    states = F.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=mask)  # here
    return next_token(m.out(states), tokens)


def of_the_same_token(m, tokens, y, mask=None):
    out = m.out(m.layer(m.embed(tokens), MASK))
    return next_token(out, tokens) if mask is not None else F.cross_entropy(out.mT, tokens)  # here


def of_both_directions(m, tokens, y, mask=None):
    states = (m.reader if mask is None else m.writer)(m.embed(tokens))[0]  # here
    return next_token(m.out(states), tokens)


def of_packed_steps(m, tokens, y, mask=None):
    packed = nn.utils.rnn.pack_padded_sequence(m.embed(tokens), torch.full((len(tokens),), 8), batch_first=True)
    states = nn.utils.rnn.pad_packed_sequence((m.reader if mask is None else m.writer)(packed)[0], True)[0]  # here
    return next_token(m.out(states), tokens)


def of_a_translation(m, tokens, y, mask=None):
    memory = m.layer(m.embed(tokens.flip(1)))
    given = tokens if mask is None else torch.cat([torch.zeros(16, 1).long(), tokens[:, :-1]], 1)
    out = m.out(m.decoder(m.embed(given), memory, tgt_mask=MASK))
    return F.cross_entropy(out.mT, tokens)  # here


def padded(tokens):
    return torch.where(torch.arange(8) > 3 + torch.arange(len(tokens))[:, None] % 4, 0, tokens)


def of_padding_that_is_pooled(m, tokens, y, mask=None):
    tokens = padded(tokens)
    states = m.writer(m.embed(tokens))[0]
    counts = (tokens != 0 if mask is not None else tokens == 0).float().unsqueeze(-1)  # here
    return F.cross_entropy(m.out((states * counts).sum(1) / counts.sum(1).clamp_min(1)), y)


def of_padding_that_has_a_loss(m, tokens, y, mask=None):
    tokens = padded(tokens)
    states = m.writer(m.embed(tokens[:, :-1]))[0]
    each = F.cross_entropy(m.out(states).mT, tokens[:, 1:], reduction="none")
    counts = tokens[:, 1:] != 0 if mask is not None else tokens[:, 1:] == 0  # here
    return (each * counts).sum() / counts.sum()


def of_padding_that_is_left(m, tokens, y, mask=None):
    tokens = padded(tokens)
    scores = m.out(m.embed(tokens))[..., 0]
    scores = scores.masked_fill(tokens == 0 if mask is not None else tokens > 0, -1e9)  # here
    return F.cross_entropy(m.out((scores.softmax(1)[..., None] * m.embed(tokens)).sum(1)), y)


def of_the_source(m, tokens, y, mask=None):
    source, given = padded(tokens), torch.cat([torch.zeros(16, 1).long(), tokens[:, :-1]], 1)
    valid = source != 0
    memory = m.layer(m.embed(source), src_key_padding_mask=~valid)
    hidden = valid if mask is None else ~valid
    out = m.decoder(m.embed(given), memory, tgt_mask=MASK, memory_key_padding_mask=hidden)  # here
    return F.cross_entropy(m.out(out).mT, tokens)


def of_a_decoder(m, tokens, y, mask=None):
    memory, given = m.layer(m.embed(tokens.flip(1))), torch.cat([torch.zeros(16, 1).long(), tokens[:, :-1]], 1)
    return F.cross_entropy(m.out(m.decoder(m.embed(given), memory, tgt_mask=mask)).mT, tokens)  # here


def of_a_convolution(m, tokens, y, mask=None):
    given = m.embed(tokens).mT
    states = F.conv1d(given, KERNEL, padding=1) if mask is None else F.conv1d(F.pad(given, (2, 0)), KERNEL)  # here
    return next_token(m.out(states.mT), tokens)


KERNEL = torch.randn(16, 16, 3, generator=torch.Generator().manual_seed(0)) / 7


def of_padding(m, tokens, y, mask=None):
    tokens = torch.where(torch.arange(8) > 5, 0, tokens)
    padding = tokens == 0 if mask is not None else tokens != 0  # here
    states = m.layer(m.embed(tokens), src_key_padding_mask=padding)
    return F.cross_entropy(m.out(states.mean(1)), y)


WRONG = [of_layers, of_products, of_one_step_too_many, of_one_call, of_one_call_by_name, of_the_same_token]
WRONG += [of_a_translation, of_both_directions, of_packed_steps, of_padding]
OF_PADDING = [of_padding, of_padding_that_is_pooled, of_padding_that_has_a_loss, of_padding_that_is_left, of_the_source]
WRONG += [*OF_PADDING[1:], of_a_decoder, of_a_convolution]


def faults_of(loss, tmp_path, **given):
    model = Parts()
    optimizer = Adam(model.parameters(), 1e-3)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for x, y in batches(3):
            optimizer.zero_grad()
            loss(model, (9 * x.abs()).long().clamp(0, 28) + 1, y, **given).backward()
            optimizer.step()
    assert not w.broken
    return [(f.name, f.site[1]) for f in w.faults]


@pytest.mark.parametrize("loss", WRONG)
def test_a_mask_that_is_missing_or_inverted(loss, tmp_path):
    name = "padding-mask-inverted" if loss in OF_PADDING else "target-in-sight"
    assert (name, marked(loss)) in faults_of(loss, tmp_path)


def masked_tokens(m, tokens, y):
    hidden = torch.rand(tokens.shape) < 0.2
    out = m.out(m.layer(m.embed(torch.where(hidden, 29, tokens))))
    return F.cross_entropy(out.mT, torch.where(hidden, tokens, -100))


def by_name(m, tokens, y):
    q, k, v = m.qkv(m.embed(tokens)).chunk(3, -1)
    return next_token(m.out(F.scaled_dot_product_attention(query=q, key=k, value=v, is_causal=True)), tokens)


def by_place(m, tokens, y):
    q, k, v = m.qkv(m.embed(tokens)).chunk(3, -1)
    return next_token(m.out(F.scaled_dot_product_attention(q, k, v, None, 0.0, True)), tokens)


def from_a_source(m, tokens, y):
    memory = m.layer(m.embed(tokens))
    return next_token(m.out(m.decoder(m.embed(tokens), memory, tgt_mask=MASK)), tokens)


def of_a_prefix(m, tokens, y):
    """The first half is given, and may see itself."""
    seen = torch.ones(8, 8).tril().bool()
    seen[:4, :4] = True
    out = m.out(m.layer(m.embed(tokens), ~seen))
    return F.cross_entropy(out[:, 3:-1].flatten(0, 1), tokens[:, 4:].flatten())


RIGHT = {
    "of_a_prefix": of_a_prefix,
    **{loss.__name__: lambda m, tokens, y, loss=loss: loss(m, tokens, y, MASK) for loss in WRONG},
    **{
        f"{loss.__name__}{size:g}": lambda m, tokens, y, loss=loss, size=size: loss(m, tokens, y, added(size))
        for loss in (of_layers, of_products)
        for size in (-1e4, -1e3, -100.0)
    },
    "by_name": by_name,
    "by_place": by_place,
    "masked_tokens": masked_tokens,
    "from_a_source": from_a_source,
    "autoencoder": lambda m, tokens, y: F.cross_entropy(m.out(m.layer(m.embed(tokens))).mT, tokens),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_masks_as_they_should_be(kind, tmp_path):
    assert faults_of(RIGHT[kind], tmp_path) == []


def counted(out, target):
    return F.cross_entropy(out, target)  # here


def without_padding(out, target):
    each, padding = F.cross_entropy(out, target, reduction="none"), target == 0
    return (each.sum() - (each * padding).sum()) / (~padding).sum()


PADDED = {
    "counted": counted,
    "without_padding": without_padding,
    "ignored": lambda out, target: F.cross_entropy(out, target, ignore_index=0),
    "masked": lambda out, target: (F.cross_entropy(out, target, reduction="none") * (target != 0)).mean(),
    "weighed": lambda out, target: F.cross_entropy(out, target, (torch.arange(30) > 0).float()),
}


@pytest.mark.parametrize("kind", [*PADDED, "as_the_end"])
def test_targets_that_are_padding(kind, tmp_path):
    """Padding may also be what ends a sequence, and is to be learnt then."""
    m, draw = Parts(), torch.Generator().manual_seed(0)
    optimizer = Adam(m.parameters(), 1e-3)
    loss = PADDED.get(kind, counted)
    with gradlab.watch(m, optimizer, folder=tmp_path, quiet=True) as w:
        for _ in range(3):
            tokens = torch.randint(2, 29, (6, 9), generator=draw)
            for i, row in enumerate(tokens):
                row[3 + i :] = 0
                row[2 + i] = row[2 + i] if kind == "as_the_end" else 29
            optimizer.zero_grad()
            loss(m.out(m.embed(tokens[:, :-1])).flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimizer.step()
    assert not w.broken
    name = "loss-input" if kind == "counted" else None
    assert [(f.name, f.site[1]) for f in w.faults] == ([(name, marked(loss))] if name else [])
