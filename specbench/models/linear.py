"""Matrix products of a decode step: few rows, large weights, so that reading the weights should be the whole cost.

Four paths give the same product. `library` is torch's own linear. On CPUs without bfloat16 instructions torch
multiplies T bfloat16 rows in T times the time of one row; there `packed` keeps the weights in FBGEMM's packed
half-precision layout (float32 accumulation), which reads them once for all rows. bfloat16 weights are scaled by a
power of two first, so that their eight significant bits survive; activations stay in float32 between packed products,
since rounding them would only cost time. On CPUs with these instructions oneDNN multiplies, and torch's own linear
brings the weights into oneDNN's layout anew at every call, which costs as much as the product of a few rows;
`reordered` keeps them in that layout. float32 on CPUs without AVX-512 multiplies a few rows as `weight @ rows^T`,
padded to the row counts for which that is fast; where there is AVX-512, torch's own product of them is the faster one.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

_PACK_CHUNK_ELEMENTS = 8 * 2**20  # bounds the float32 copy that packing needs to 32 MiB
_HALF_TOP_EXPONENT = 14  # scaled weights stay below 2^15; half precision ends at 65504
_FEW_ROWS = 128  # up to here weight @ rows^T beats rows @ weight^T in float32


class Linear:
    """y = x W^T + b for x [..., in]; the weight is [out, in] until it is packed.

    `out_dtype` is the dtype of y (default: that of x); a packed product is always float32.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, out_dtype: torch.dtype | None = None) -> None:
        self.weight: Tensor | None = weight
        self.bias = bias
        self.out_dtype = out_dtype
        self._packed: list[torch.ScriptObject] = []
        self._unscale = torch.ones(1)
        self._reordered: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed:
            return self._packed_product(x)
        return self._product(x).to(self.out_dtype or x.dtype)

    def _product(self, x: Tensor) -> Tensor:
        if self._reordered is not None and x.dtype == self._reordered.dtype:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._reordered, self.bias, "none", [], "")
            return product
        weight = self.dense()
        if _few_float32_rows(x, weight):
            return _weight_first(x, weight, self.bias)
        return F.linear(x, weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))

    def prepare(self, path: str) -> None:
        """Move the weight into the layout of `path` (inference only); a moved one, shared by two models, stays."""
        if self.weight is None or path == "library":
            return
        if path == "packed":
            self._pack(self.weight)
        else:
            self._reordered = torch.ops.mkldnn._reorder_linear_weight(self.weight, 1)
        self.weight = None

    def _pack(self, weight: Tensor) -> None:
        scale = _exact_half_scale(weight)
        self._unscale = torch.full((1,), 1.0 / scale)
        rows = max(1, _PACK_CHUNK_ELEMENTS // weight.shape[1])
        self._packed = [
            torch.ops.quantized.linear_prepack_fp16(chunk.to(torch.float32, copy=True).mul_(scale), None)
            for chunk in weight.split(rows)
        ]

    def dense(self) -> Tensor:
        """The weight [out, in], unpacked to float32 where it was packed."""
        if self.weight is not None:
            return self.weight
        if self._reordered is not None:
            return self._reordered.to_dense()
        parts = [torch.ops.quantized.linear_unpack_fp16(part)[0] for part in self._packed]
        return torch.cat(parts).float() * self._unscale

    def _packed_product(self, x: Tensor) -> Tensor:
        x32 = x * self._unscale  # to float32; a power of two changes no bit of the product
        parts = [torch.ops.quantized.linear_dynamic_fp16(x32, part) for part in self._packed]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        return y if self.bias is None else y + self.bias


class ReducedHead(Linear):
    """A head that scores some tokens only: logits [..., vocab_size] with -inf for every token not in `ids` [n].

    `ids` ascend, so that among equal logits the same token comes first with and without the others.
    """

    def __init__(self, weight: Tensor, ids: Tensor, vocab_size: int, *, out_dtype: torch.dtype | None = None) -> None:
        super().__init__(weight, out_dtype=out_dtype)
        self.ids, self.vocab_size = ids, vocab_size

    def few(self, x: Tensor) -> Tensor:
        """The logits [..., n] of the scored tokens only."""
        return super().__call__(x)

    def __call__(self, x: Tensor) -> Tensor:
        scored = self.few(x)
        logits = scored.new_full((*scored.shape[:-1], self.vocab_size), float("-inf"))
        return logits.index_copy_(-1, self.ids, scored)


def scored_ids(head: Linear) -> Tensor | None:
    """The tokens [n] that a head scores, ascending; None for the whole vocabulary."""
    return head.ids if isinstance(head, ReducedHead) else None


def scored_logits(head: Linear, x: Tensor) -> Tensor:
    """Logits [..., n] of the tokens that `scored_ids` names."""
    return head.few(x) if isinstance(head, ReducedHead) else head(x)


def _exact_half_scale(weight: Tensor) -> float:
    """A power of two that lets `weight` be stored in half precision without loss (1.0 where none is needed)."""
    if weight.dtype == torch.float16:
        return 1.0
    low, high = weight.aminmax()  # abs() would copy the weight
    largest = max(-float(low), float(high))
    if largest == 0.0 or not math.isfinite(largest):
        return 1.0
    # Not beyond 2^126: the scale and its inverse must be float32 numbers themselves.
    return 2.0 ** min(126, _HALF_TOP_EXPONENT - math.frexp(largest)[1] + 1)


def _few_float32_rows(x: Tensor, weight: Tensor) -> bool:
    rows = x.numel() // x.shape[-1]
    both_float32 = x.dtype == weight.dtype == torch.float32
    slow_cpu = x.device.type == "cpu" and not _has_avx512()
    return both_float32 and slow_cpu and rows <= _FEW_ROWS and not _needs_grad(x, weight)


@functools.cache
def _has_avx512() -> bool:
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


def _needs_grad(x: Tensor, weight: Tensor) -> bool:
    return torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)


def _weight_first(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    flat = x.reshape(-1, x.shape[-1])
    rows = flat.shape[0]
    padded = max(2, 1 << (rows - 1).bit_length()) if rows <= 16 else rows
    if padded != rows:
        flat = F.pad(flat, (0, 0, 0, padded - rows))
    y = torch.mm(weight, flat.t())[:, :rows].t()
    y = y.contiguous() if bias is None else y + bias
    return y.view(*x.shape[:-1], -1)


def choose_path(dtype: torch.dtype, device: torch.device) -> str:
    """`packed` for half precision on a CPU whose instructions torch has no fast product for.

    Where there are such instructions, bfloat16 is `reordered`; float16 gains nothing by it. Everything else is
    `library`. The choice depends on the machine's instructions only, never on a timing, so that a run repeats bit for
    bit.
    """
    if device.type != "cpu" or dtype not in (torch.bfloat16, torch.float16):
        return "library"
    supported = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    if supported[dtype]():
        return "reordered" if dtype == torch.bfloat16 and hasattr(torch.ops.mkldnn, "_linear_pointwise") else "library"
    return "packed" if "fbgemm" in torch.backends.quantized.supported_engines else "library"
