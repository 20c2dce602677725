"""Two GPU kernels that read the states' width once where plain operations would read it several times.

`adapter_tail`   logits[m] = sum_l gelu(raw[l, m] + bias_l) P_l, in one pass over raw forwards and one backwards
`mix`            out[n] = sum_l w_l states[l, n], and the gradient of w: one pass over the states each.

They are written in Triton, which comes with torch's CUDA wheels; where `usable` says no, plain operations serve.

Shapes: L layers, M tokens, A reduced numbers, two outputs (a span's start and end).
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bertvision.heads.spec import Gelu
from bertvision.shapes import Float

# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false
try:
    import triton
    import triton.language as tl
except ImportError:  # a build of torch without CUDA
    triton = None


# Block sizes were measured on an H200 at 25 layers of 12,288 tokens.
_ROWS = 256  # rows whose gradients one program adds up
_plain = False


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Take plain operations inside: vmap knows how to batch those."""
    global _plain
    before, _plain = _plain, True
    try:
        yield
    finally:
        _plain = before


def usable(states: Tensor, outputs: int = 2) -> bool:
    return (
        triton is not None
        and not _plain
        and states.is_cuda
        and states.dtype == torch.bfloat16
        and states.is_contiguous()
        and not states.requires_grad
        and outputs == 2
        and torch.is_autocast_enabled("cuda")
    )


if triton is not None:

    @triton.jit
    def _gelu_and_slope(x, TANH: tl.constexpr):
        """GELU and its derivative; what a kernel does not use is not computed."""
        if TANH:
            square = x * x
            t = tl.inline_asm_elementwise(  # the hardware's own tanh: exact to 11 bits, bf16 has 8
                "tanh.approx.f32 $0, $1;", "=f,f", [x * (0.7978845608028654 + 0.035677408136 * square)],
                dtype=tl.float32, is_pure=True, pack=1,
            )  # fmt: skip
            half = 0.5 * t + 0.5
            return x * half, half + x * (1.0 - t * t) * (0.3989422804014327 + 0.053516112 * square)
        s = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
        return x * s, s + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)

    @triton.jit(do_not_specialize=["M"])
    def _tail_forward(
        raw, bias, weight, out, M, L, A, bias_step,
        BM: tl.constexpr, BA: tl.constexpr, TANH: tl.constexpr,
    ):  # fmt: skip
        """raw (L, M, A), bias (L or 1, A), weight (L, 2, A) -> out (M, 2)."""
        rows = tl.program_id(0) * BM + tl.arange(0, BM)
        # Sums stay in registers until the end: a product with two columns is too narrow for the matrix units.
        start = tl.zeros((BM, BA), tl.float32)
        end = tl.zeros((BM, BA), tl.float32)
        for layer in range(L):
            for begin in range(0, A, BA):
                a = begin + tl.arange(0, BA)
                here = a < A
                inside = (rows[:, None] < M) & here[None, :]
                x = tl.load(raw + rows[:, None] * A + a[None, :], mask=inside, other=0.0).to(tl.float32)
                x += tl.load(bias + layer * bias_step + a, mask=here, other=0.0)[None, :]
                reduced, _ = _gelu_and_slope(x, TANH)
                start += reduced * tl.load(weight + layer * 2 * A + a, mask=here, other=0.0)[None, :]
                end += reduced * tl.load(weight + (layer * 2 + 1) * A + a, mask=here, other=0.0)[None, :]
            raw += M.to(tl.int64) * A
        tl.store(out + rows * 2, tl.sum(start, 1), mask=rows < M)
        tl.store(out + rows * 2 + 1, tl.sum(end, 1), mask=rows < M)

    @triton.jit(do_not_specialize=["M"])
    def _tail_backward(
        raw, bias, weight, gradient, raw_gradient, parts, M, L, A, bias_step,
        ROWS: tl.constexpr, BM: tl.constexpr, BA: tl.constexpr, TANH: tl.constexpr,
    ):  # fmt: skip
        """gradient (M, 2) -> raw_gradient (L, M, A), and sums over ROWS rows for start, end and bias."""
        part, layer, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        a = block * BA + tl.arange(0, BA)
        here = a < A
        b = tl.load(bias + layer * bias_step + a, mask=here, other=0.0)[None, :]
        start = tl.load(weight + layer * 2 * A + a, mask=here, other=0.0)[None, :]
        end = tl.load(weight + (layer * 2 + 1) * A + a, mask=here, other=0.0)[None, :]
        start_sum = tl.zeros((BM, BA), tl.float32)
        end_sum = tl.zeros((BM, BA), tl.float32)
        bias_sum = tl.zeros((BM, BA), tl.float32)
        raw += layer.to(tl.int64) * M * A
        raw_gradient += layer.to(tl.int64) * M * A
        for begin in range(0, ROWS, BM):
            rows = part * ROWS + begin + tl.arange(0, BM)
            inside = (rows[:, None] < M) & here[None, :]
            place = rows[:, None] * A + a[None, :]
            x = tl.load(raw + place, mask=inside, other=0.0).to(tl.float32) + b
            g = tl.load(gradient + rows * 2, mask=rows < M, other=0.0)[:, None]
            h = tl.load(gradient + rows * 2 + 1, mask=rows < M, other=0.0)[:, None]
            reduced, slope = _gelu_and_slope(x, TANH)
            slope *= g * start + h * end  # rows behind the last have g = h = 0
            tl.store(raw_gradient + place, slope.to(tl.bfloat16), mask=inside)
            start_sum += reduced * g
            end_sum += reduced * h
            bias_sum += slope
        to = parts + (part * L + layer) * 3 * A + a
        tl.store(to, tl.sum(start_sum, 0), mask=here)
        tl.store(to + A, tl.sum(end_sum, 0), mask=here)
        tl.store(to + 2 * A, tl.sum(bias_sum, 0), mask=here)

    @triton.jit(do_not_specialize=["N"])
    def _mix_forward(states, weights, out, N, L, BN: tl.constexpr):
        n = tl.program_id(0) * BN + tl.arange(0, BN)
        total = tl.zeros((BN,), tl.float32)
        for layer in range(L):
            x = tl.load(states + n, mask=n < N, other=0.0).to(tl.float32)
            total += tl.load(weights + layer) * x
            states += N
        tl.store(out + n, total.to(tl.bfloat16), mask=n < N)

    @triton.jit(do_not_specialize=["N"])
    def _mix_backward(states, gradient, parts, N, L, BN: tl.constexpr):
        """parts (programs, L): sums of states * gradient over BN numbers."""
        part = tl.program_id(0)
        n = part * BN + tl.arange(0, BN)
        g = tl.load(gradient + n, mask=n < N, other=0.0).to(tl.float32)
        for layer in range(L):
            x = tl.load(states + n, mask=n < N, other=0.0).to(tl.float32)
            tl.store(parts + part * L + layer, tl.sum(x * g, 0))
            states += N


class _Tail(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, bias: Tensor, weight: Tensor, tanh: bool) -> Tensor:
        L, M, A = raw.shape
        bias, weight = bias.float().contiguous(), weight.float().contiguous()
        out = torch.empty(M, 2, device=raw.device)
        _tail_forward[(triton.cdiv(M, 32),)](
            raw, bias, weight, out, M, L, A, _step(bias), BM=32, BA=64, TANH=tanh, num_warps=4
        )
        ctx.save_for_backward(raw, bias, weight)
        ctx.tanh = tanh
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        raw, bias, weight = ctx.saved_tensors
        L, M, A = raw.shape
        gradient = gradients[0].float().contiguous()
        raw_gradient = torch.empty_like(raw)
        parts = torch.empty(triton.cdiv(M, _ROWS), L, 3, A, device=raw.device)
        block = min(512, triton.next_power_of_2(A))
        _tail_backward[(parts.shape[0], L, triton.cdiv(A, block))](
            raw, bias, weight, gradient, raw_gradient, parts, M, L, A, _step(bias),
            ROWS=_ROWS, BM=8, BA=block, TANH=ctx.tanh, num_warps=4,
        )  # fmt: skip
        start_end, bias_gradient = parts.sum(0).split([2, 1], dim=1)  # (L, 2, A), (L, 1, A)
        bias_gradient = bias_gradient.squeeze(1)
        if _step(bias) == 0:
            bias_gradient = bias_gradient.sum(0, keepdim=True)
        return raw_gradient, bias_gradient, start_end, None


def _step(bias: Tensor) -> int:
    """Numbers between the biases of neighbouring layers: none where one serves all."""
    return 0 if bias.shape[0] == 1 else bias.shape[1]


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weights: Tensor) -> Tensor:
        out = torch.empty(states.shape[1:], dtype=states.dtype, device=states.device)
        weights = weights.float().contiguous()
        _mix_forward[(triton.cdiv(out.numel(), 1024),)](
            states, weights, out, out.numel(), states.shape[0], BN=1024, num_warps=8
        )
        ctx.save_for_backward(states)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        (states,) = ctx.saved_tensors
        gradient = gradients[0].to(torch.bfloat16).contiguous()
        L, N = states.shape[0], gradient.numel()
        parts = torch.empty(triton.cdiv(N, 2048), L, device=states.device)
        _mix_backward[(parts.shape[0],)](states, gradient, parts, N, L, BN=2048, num_warps=4)
        return None, parts.sum(0)


def adapter_tail(
    raw: Float[Tensor, "L M A"], bias: Float[Tensor, "l A"], weight: Float[Tensor, "L 2 A"], kind: Gelu
) -> Float[Tensor, "M 2"]:
    """sum_l gelu(raw_l + bias_l) weight_l^T; one row of bias serves all layers."""
    return _Tail.apply(raw, bias, weight, kind == "tanh")  # type: ignore[return-value]


def mix(states: Float[Tensor, "L *batch H"], weights: Float[Tensor, " L"]) -> Float[Tensor, "*batch H"]:
    """sum_l weights_l states_l; no gradient goes into the states."""
    return _Mix.apply(states, weights)  # type: ignore[return-value]
