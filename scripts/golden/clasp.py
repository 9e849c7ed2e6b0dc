"""clasp/: the search over whole layers on a given token, and whole generations with their searches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .official import answer, build, decoder, ids, rounds
from .outcome import Data, Outcome, close, equal, judge

if TYPE_CHECKING:
    from specbench.methods.layer_dp import LayerChoice

COSINE = 1e-5  # absolute; the tolerance for sums of cosines is 1e-3


def check_layer_search(root: Path, data: Data) -> Iterator[Outcome]:
    """dp_cases.json: the chosen layers and the cosine at the end of their path."""
    for case in data.get("cases", []):
        yield judge(case["id"], _search, root, case)


def check_clasp(root: Path, data: Data) -> Iterator[Outcome]:
    """e2e.json: tokens, every step, and every set."""
    for case in data.get("cases", []):
        yield judge(case["id"], _decode, root, case)


def search(folder: Path, tokens: Sequence[int], num_skip: int) -> LayerChoice:
    """The layers to leave out for the last of `tokens`, the others being its cached past."""
    import torch

    from specbench.decoding.loop import empty_draft
    from specbench.decoding.target import Target
    from specbench.methods.layer_dp import choose_layers
    from specbench.types import Needs

    target = Target(decoder(folder))
    after_layers = tuple(range(-1, target.decoder.num_sublayers, 2))
    with torch.inference_mode():
        target.prefill(tokens, capacity=len(tokens))
        seen = target.verify(tokens[-1], empty_draft(), Needs(residuals=after_layers), greedy=True)
        target.cache.keep([0])
        states = torch.cat([seen.residuals[index] for index in after_layers])
        return choose_layers(target.decoder, target.cache, states, num_skip)


def _search(root: Path, case: Data) -> Iterator[str]:
    found = search(root / case["model"], [*case["prefix_ids"], case["reference_token"]], case["M"])
    yield from equal("skip", _flags(found.layers, len(case["skip"])), case["skip"])
    yield from close("cosine", found.cosine, case["final_cosine"], absolute=COSINE)


def _decode(root: Path, case: Data) -> Iterator[str]:
    generator = build(
        root / case["model"],
        "method=clasp_official",
        f"method.num_skip_layers={case['M']}",
        f"method.optimize_interval={case['optimize_interval']}",
        f"method.controller.num_draft_tokens={case['gamma']}",
        f"method.controller.threshold={case['confidence_stop']}",
    )
    found = answer(generator, case)
    yield from ids(found, case)
    yield from rounds(found, case)
    chosen = {
        record.step: _flags((index // 2 for index in record.values["sublayers"]), len(case["optimizations"][0]["skip"]))
        for record in found.choices
        if record.step > 0  # step 0 installs the empty set
    }
    for golden in case["optimizations"]:
        step = golden["after_round"]
        if step == len(case["rounds"]) - 1:  # the official code still searches when nothing follows
            tokens = [*case["prompt_ids"], *found.tokens[:-1]]
            ours = _flags(search(root / case["model"], tokens, case["M"]).layers, len(golden["skip"]))
        else:
            ours = chosen.pop(step, [])
        yield from equal(f"set after round {step}", ours, golden["skip"])
    yield from equal("further searches", list(chosen), [])


def _flags(layers: Iterable[int], count: int) -> list[int]:
    skipped = set(layers)
    return [int(layer in skipped) for layer in range(count)]
