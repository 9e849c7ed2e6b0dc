"""A method as its official file says, on a golden model, and what its steps must have been."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .outcome import Data, equal

if TYPE_CHECKING:
    from specbench.decoding.loop import SpeculativeDecoding
    from specbench.models.decoder import Decoder
    from specbench.types import Generation


def decoder(folder: Path) -> Decoder:
    """The golden model of a folder in float32; loaded once, also when it is reached through links."""
    return _loaded(folder.resolve())


@functools.cache
def _loaded(folder: Path) -> Decoder:
    import torch

    from specbench.models.checkpoint import load_decoder

    return load_decoder(folder, dtype=torch.float32, device="cpu")


def build(folder: Path, *overrides: str, **parts: Any) -> SpeculativeDecoding:
    """What `python run.py <overrides>` would build on this model, greedy; `parts` are further fields of `Parts`."""
    from specbench.decoding.target import Target
    from specbench.methods.build import Parts, build_generator
    from specbench.types import Sampling

    config = _config(overrides)
    return build_generator(config, Parts(target=Target(decoder(folder)), sampling=Sampling(), **parts))  # type: ignore[return-value]


@functools.cache
def _config(overrides: tuple[str, ...]) -> Any:
    from specbench.config import compose

    return compose(["model=tiny", *overrides]).method


def answer(generator: SpeculativeDecoding, case: Data) -> Generation:
    """One golden prompt. The official answer leaves its end token out, ours keeps it."""
    eos = case.get("eos_id")
    return generator.generate(
        case["prompt_ids"], max_new_tokens=case["max_new_tokens"], seed=0, stop_ids=() if eos is None else (eos,)
    )


def ids(found: Generation, case: Data) -> Iterator[str]:
    """Differences between the tokens, up to the end token or our budget."""
    budget = int(case["max_new_tokens"])
    yield from equal("ids", _before_end(found.tokens, case), _before_end(case["output_ids"], case)[:budget])


def rounds(found: Generation, case: Data) -> Iterator[str]:
    """Differences between the steps and the golden rounds; in the last one the cut may differ."""
    steps, golden = found.steps or (), case["rounds"]
    yield from equal("number of rounds", len(steps), len(golden))
    for step, theirs in zip(steps, golden, strict=False):
        name = f"round {step.step}"
        yield from equal(f"{name} drafted", step.draft_tokens, theirs["draft_ids"])
        if step.step < len(golden) - 1:
            yield from equal(f"{name} accepted", step.num_accepted, theirs["accepted"])
            yield from equal(f"{name} emitted", step.num_emitted, theirs["emitted"])


def _before_end(tokens: Sequence[int], case: Data) -> list[int]:
    return list(itertools.takewhile(lambda token: token != case.get("eos_id"), tokens))
