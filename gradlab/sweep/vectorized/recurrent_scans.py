"""Recurrent layers over a whole sequence, many lanes at once: batched products step by step, gradients of the weights
added up in place.

Everything of a step is done while it is in the cache; only what the backward pass needs is kept of every step.

L lanes, B batch, T time steps, F features of a step, D width, G gates side by side (D, 3D or 4D)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

aten = torch.ops.aten


class RecurrentWeights(NamedTuple):
    """The weights of one layer: w_ih (L, G, F), w_hh (L, G, D), b_ih and b_hh (L, G)."""

    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor
    b_hh: Tensor


class GradientSums:
    """Gradients of a layer's weights and inputs, as the backward pass adds them up step by step."""

    def __init__(self, x: Tensor, weights: RecurrentWeights, wants_x: bool) -> None:
        """x: (T, L, B, F)."""
        self.x, self.weights = x, weights
        # those of matrices transposed: BLAS is slow where a result's rows are short, and of few features they would be
        self.of = RecurrentWeights(*(w.new_zeros(w.mT.shape if w.dim() > 2 else w.shape) for w in weights))
        self.dx = torch.empty(x.shape, dtype=x.dtype, device=x.device) if wants_x else None

    def add(self, t: int, down: Tensor, before: Tensor, inner: Tensor | None = None) -> None:
        """down: (L, B, G), the gradient of a step's gates before their activations; before: (L, B, D), the last state.

        inner: where the recurrent product has another gradient than the inputs' (a GRU's n).
        """
        inner = down if inner is None else inner
        self.of.w_ih.baddbmm_(self.x[t].mT, down)
        self.of.w_hh.baddbmm_(before.mT, inner)
        self.of.b_ih.add_(down.sum(1))
        if inner is not down:
            self.of.b_hh.add_(inner.sum(1))
        if self.dx is not None:
            torch.bmm(down, self.weights.w_ih, out=self.dx[t])

    def result(self) -> tuple[Tensor | None, ...]:
        return self.dx, self.of.w_ih.mT, self.of.w_hh.mT, self.of.b_ih, self.of.b_hh


class RNNScan(torch.autograd.Function):
    """h[t] = act(W x[t] + U h[t-1] + b): x (T, L, B, F), h0 (L, B, D) -> every h, (T, L, B, D)."""

    @staticmethod
    def forward(ctx: Any, relu: bool, h0: Tensor, x: Tensor, *weights: Tensor) -> Tensor:
        w = RecurrentWeights(*weights)
        hs, h, bias = x.new_empty(x.shape[0], *h0.shape), h0, (w.b_ih + w.b_hh).unsqueeze(1)
        inputs, across = w.w_ih.transpose(1, 2), w.w_hh.transpose(1, 2)
        for t in range(x.shape[0]):
            h = torch.baddbmm(torch.baddbmm(bias, x[t], inputs), h, across, out=hs[t])
            h = h.relu_() if relu else h.tanh_()
        ctx.relu = relu
        ctx.save_for_backward(hs, h0, x, *weights)
        return hs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        hs, h0, x, *weights = ctx.saved_tensors
        w = RecurrentWeights(*weights)
        sums, dh = GradientSums(x, w, ctx.needs_input_grad[2]), grad[-1]
        for t in reversed(range(hs.shape[0])):
            down = aten.threshold_backward(dh, hs[t], 0) if ctx.relu else aten.tanh_backward(dh, hs[t])
            sums.add(t, down, hs[t - 1] if t else h0)
            dh = torch.baddbmm(grad[t - 1], down, w.w_hh) if t else torch.bmm(down, w.w_hh)
        sums.of.b_hh.copy_(sums.of.b_ih)
        return None, dh, *sums.result()


class LSTMScan(torch.autograd.Function):
    """Gates i, f, g, o side by side: h0, c0 (L, B, D), x (T, L, B, F) -> every h, every c."""

    @staticmethod
    def forward(ctx: Any, h0: Tensor, c0: Tensor, x: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        w, steps, d = RecurrentWeights(*weights), x.shape[0], h0.shape[-1]
        gates = x.new_empty(steps, *h0.shape[:-1], 4 * d)
        hs, cs = x.new_empty(steps, *h0.shape), x.new_empty(steps, *h0.shape)
        h, c, bias = h0, c0, (w.b_ih + w.b_hh).unsqueeze(1)
        inputs, across = w.w_ih.transpose(1, 2), w.w_hh.transpose(1, 2)
        for t in range(steps):
            z = torch.baddbmm(torch.baddbmm(bias, x[t], inputs), h, across, out=gates[t])
            z[..., : 2 * d].sigmoid_()
            z[..., 2 * d : 3 * d].tanh_()
            z[..., 3 * d :].sigmoid_()
            i, f, g, o = z.split(d, -1)
            c = torch.mul(f, c, out=cs[t]).addcmul_(i, g)
            h = torch.mul(c.tanh(), o, out=hs[t])
        ctx.save_for_backward(gates, hs, cs, h0, c0, x, *weights)
        return hs, cs

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor, grad_c: Tensor) -> Any:
        gates, hs, cs, h0, c0, x, *weights = ctx.saved_tensors
        w, d = RecurrentWeights(*weights), h0.shape[-1]
        sums, down = GradientSums(x, w, ctx.needs_input_grad[2]), torch.empty_like(gates[0])
        di, df, dg, do = down.split(d, -1)
        dh, later = grad_h[-1], torch.zeros_like(c0)
        for t in reversed(range(gates.shape[0])):
            i, f, g, o = gates[t].split(d, -1)
            bent = cs[t].tanh()
            dc = aten.tanh_backward(dh * o, bent).add_(later).add_(grad_c[t])
            aten.sigmoid_backward(dh * bent, o, grad_input=do)
            aten.sigmoid_backward(dc * g, i, grad_input=di)
            aten.sigmoid_backward(dc * (cs[t - 1] if t else c0), f, grad_input=df)
            aten.tanh_backward(dc * i, g, grad_input=dg)
            sums.add(t, down, hs[t - 1] if t else h0)
            later = dc.mul_(f)
            dh = torch.baddbmm(grad_h[t - 1], down, w.w_hh) if t else torch.bmm(down, w.w_hh)
        sums.of.b_hh.copy_(sums.of.b_ih)
        return dh, later, *sums.result()


class GRUScan(torch.autograd.Function):
    """Gates r, z, n side by side, h = n + z (h - n), n = tanh(x_n + r (U_n h + b_n)): h0, x -> every h."""

    @staticmethod
    def forward(ctx: Any, h0: Tensor, x: Tensor, *weights: Tensor) -> Tensor:
        w, steps, d = RecurrentWeights(*weights), x.shape[0], h0.shape[-1]
        gates, inner = x.new_empty(steps, *h0.shape[:-1], 3 * d), x.new_empty(steps, *h0.shape)
        hs, h = torch.empty_like(inner), h0
        inputs, across = w.w_ih.transpose(1, 2), w.w_hh.transpose(1, 2)
        for t in range(steps):
            z = torch.baddbmm(w.b_ih.unsqueeze(1), x[t], inputs, out=gates[t])
            own = torch.baddbmm(w.b_hh.unsqueeze(1), h, across)
            rz, n = z[..., : 2 * d].add_(own[..., : 2 * d]).sigmoid_(), z[..., 2 * d :]
            inner[t] = own[..., 2 * d :]
            n.addcmul_(rz[..., :d], inner[t]).tanh_()
            h = torch.addcmul(n, rz[..., d:], h - n, out=hs[t])
        ctx.save_for_backward(gates, inner, hs, h0, x, *weights)
        return hs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        gates, inner, hs, h0, x, *weights = ctx.saved_tensors
        w, d = RecurrentWeights(*weights), h0.shape[-1]
        sums, dh = GradientSums(x, w, ctx.needs_input_grad[1]), grad[-1]
        for t in reversed(range(gates.shape[0])):
            r, z, n = gates[t].split(d, -1)
            before = hs[t - 1] if t else h0
            dn = aten.tanh_backward(dh * (1 - z), n)
            dr = aten.sigmoid_backward(dn * inner[t], r)
            dz = aten.sigmoid_backward(dh * (before - n), z)
            own = torch.cat([dr, dz, dn * r], -1)
            sums.add(t, torch.cat([dr, dz, dn], -1), before, own)
            dh = torch.baddbmm((dh * z).add_(grad[t - 1]) if t else dh * z, own, w.w_hh)
        return dh, *sums.result()
