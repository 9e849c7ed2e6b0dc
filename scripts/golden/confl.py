"""confl/: which layers are chosen, the trees, and whole generations with their searches."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from .official import build, decoder
from .outcome import Data, Outcome, close, equal, judge
from .spines import Tree, check_tree, generate, generation_differs, skipped_differs, tree_differs, verdict_differs

if TYPE_CHECKING:
    from specbench.types import Draft

OFFICIAL = "method=confl_official"


def check_selection_vectors(root: Path, data: Data) -> Iterator[Outcome]:
    """selection_vectors.json: logged selections of the authors, in float16; and what float64 gives."""
    for case in data.get("cases", []):
        yield judge(case["id"], _vector, case)


def check_selections(root: Path, data: Data) -> Iterator[Outcome]:
    """selection_cases.json: confidences of a model on given tokens, and the layers chosen from them."""
    for case in data.get("cases", []):
        yield judge(case["id"], _selection, root, case)


def check_tree_units(root: Path, data: Data) -> Iterator[Outcome]:
    """tree_units.json: trees from given probabilities, and their verification with and without padding."""
    for case in data.get("cases", []):
        yield judge(case["id"], _unit, case)


def check_trees(root: Path, data: Data) -> Iterator[Outcome]:
    """tree_cases.json: trees drafted and verified by a model."""
    from specbench.methods.layer_skip import layers_to_sublayers

    for case in data.get("cases", []):
        yield judge(case["id"], check_tree, root, case, "confl_official", layers_to_sublayers(case["skip_layers"]))


def check_confl(root: Path, data: Data) -> Iterator[Outcome]:
    """e2e.json: tokens, every step, every choice, and what the search knows after each prompt."""
    for case in data.get("cases", []):
        yield judge(case["id"], _decode, root, case)


def _vector(case: Data) -> Iterator[str]:
    import numpy as np

    from specbench.methods.confidence_selection import Rule, curvature, select_standardised

    z = np.array(case["z"], dtype=np.float16)
    found = select_standardised(z, case["num_layers"], case["lam"], Rule(dtype="float16"))
    yield from equal("leading run", curvature(z)[0], case["lead_run_count"])
    yield from equal("windows", found.windows, case["windows"])
    yield from equal("local means", found.local_means.tolist(), case["local_mean"])
    yield from equal("lambda * std", (case["lam"] * found.local_stds).tolist(), case["lam_std"])
    yield from equal("skip", found.layers, case["skip"])
    wide = select_standardised(z.astype(np.float64), case["num_layers"], case["lam"], Rule(dtype="float64"))
    yield from equal("float64 windows", wide.windows, case["float64_windows"])
    yield from equal("float64 skip", wide.layers, case["float64_skip"])


def _selection(root: Path, case: Data) -> Iterator[str]:
    import numpy as np
    import torch

    from specbench.methods.confidence_selection import curvature, select

    drafter: Any = build(root / case["model"], OFFICIAL, f"method.context_window={case['context_window']}").drafter
    with torch.inference_mode():
        drafter.request = _request(root / case["model"], case)
        drafter._prompt_length = len(case["prompt_ids"])
        values = drafter.confidences()
    yield from close_float16("confidences", values, case["layer_conf"])
    # From the recorded values on, everything is exact.
    found = select(np.array(case["layer_conf"]), case["num_layers"], case["lambda_before"], drafter.rule)
    yield from equal("z", found.z.tolist(), case["z"])
    run, mapped = curvature(found.z)
    yield from equal("leading run", run, case["lead_run_count"])
    yield from equal("curvature", mapped.tolist(), case["grad_mapped"])
    yield from equal("windows", found.windows, case["windows"])
    yield from equal("thresholds", found.thresholds.tolist(), case["thresholds"])
    yield from equal("skip", found.layers, case["skip"])
    own = select(values, case["num_layers"], case["lambda_before"], drafter.rule)
    yield from equal("skip from our confidences", own.layers, case["skip"])


def _request(folder: Path, case: Data) -> Any:
    """What a drafter sees after the case's ids were decoded; the next root is outside the window."""
    from specbench.decoding.target import Target

    target = Target(decoder(folder))
    committed = [*case["prompt_ids"], *case["generated_ids"], 0]
    target.prefill(committed, capacity=len(committed) + 256)
    return SimpleNamespace(target=target, committed=committed)


def close_float16(what: str, ours: Any, golden: Sequence[float]) -> Iterator[str]:
    """Differences of more than one float16 step."""
    import numpy as np

    for place, (a, b) in enumerate(zip(ours, golden, strict=True)):
        yield from close(f"{what}[{place}]", float(a), b, absolute=1.01 * float(np.spacing(np.float16(b))))


def _unit(case: Data) -> Iterator[str]:
    import torch

    from specbench.decoding.verification import verify
    from specbench.methods.chain import Branching
    from specbench.types import Sampling, VerifyResult

    config = _tree_config()
    sampling_widths = Branching(tuple(config.thresholds), tuple(config.widths_sampling))
    children = [sampling_widths.width(prob) for prob in case["top1_probs"]]
    yield from equal("children when sampling", children, case["sampling_tree_children_per_depth"])
    draft = unit_draft(case, Branching(tuple(config.thresholds), tuple(config.widths_greedy), config.max_nodes))
    tree = Tree(case["root_token"], draft)
    yield from tree_differs(tree, case["tree"])
    result = VerifyResult(argmax=torch.tensor(tree.answers(case["target_argmax"])))
    verdict = verify(draft, result, sampling=Sampling(), draws=None)  # type: ignore[arg-type]
    yield from verdict_differs(tree, verdict, case["padding_masked"])
    # With the published padding nodes in the draft, our verification walks into them as the published one does.
    verdict = verify(*padded(draft, result, case["vocab"]), sampling=Sampling(), draws=None)  # type: ignore[arg-type]
    official = case["official"]
    nodes = [tree.node.get(row, -1) for row in verdict.rows]
    yield from equal("official nodes", nodes[: official["accept_length"]], official["accepted_nodes"])
    if -1 not in official["accepted_nodes"]:
        yield from equal("official next token", verdict.next_token, official["next_token"])


@functools.cache
def _tree_config() -> Any:
    from specbench.config import compose

    config: Any = compose(["model=tiny", OFFICIAL]).method
    return config.tree


def unit_draft(case: Data, branching: Any) -> Draft:
    """The draft of a chain whose distributions have the case's top-1 probabilities and top-10 order."""
    import torch

    from specbench.controllers.fixed import FixedLength
    from specbench.methods.chain import ChainDrafter
    from specbench.types import Sampling

    rows = iter(zip(case["top1_probs"], case["topk_tokens"], strict=True))

    def forward(feed: Any) -> tuple[Any, Any]:
        prob, tokens = next(rows)
        left = [(1 - prob) * (10 - rank) / 45 for rank in range(1, 10)]
        logits = torch.full((case["vocab"],), -1e9, dtype=torch.float64)
        # A hair below: a probability that equals a threshold is not above it, whatever softmax rounds.
        logits[torch.tensor(tokens)] = torch.tensor([prob - 1e-9, *left], dtype=torch.float64).log()
        return logits, torch.zeros(1)

    request: Any = SimpleNamespace(
        sampling=Sampling(), stop_ids=(), target=SimpleNamespace(decoder=SimpleNamespace(device="cpu"))
    )
    depth = len(case["top1_probs"])
    chain = ChainDrafter(FixedLength(depth), case["vocab"], request, branching)
    return chain.draft(forward, [case["root_token"]], budget=depth)


def padded(draft: Draft, result: Any, vocab: int) -> tuple[Draft, Any]:
    """The draft with one padding node, token 0, below every leaf that is less deep than the spine's end."""
    import torch

    from specbench.types import Draft, VerifyResult

    parents = list(draft.parents or range(-1, len(draft) - 1))
    depth = [0] * len(draft)
    for row, parent in enumerate(parents):
        depth[row] = 1 if parent < 0 else depth[parent] + 1
    short = [row for row in range(len(draft)) if row not in parents and depth[row] < (draft.spine or 0)]
    tokens = torch.cat([draft.tokens, torch.zeros(len(short), dtype=torch.int64)])
    unknown = torch.full((len(short),), vocab)  # what the published code reads there is another node's answer
    padded_draft = Draft(tokens, parents=(*parents, *short), spine=draft.spine)
    return padded_draft, VerifyResult(argmax=torch.cat([result.argmax, unknown]))


def _decode(root: Path, case: Data) -> Iterator[str]:
    same = ("context_window", "search_interval", "skip_ratio", "max_opt_iter", "max_score", "lambda_init")
    generator = build(
        root / case["model"],
        OFFICIAL,
        *(f"method.{key}={case[key]}" for key in same),
        f"method.controller.num_draft_tokens={case['max_draft']}",
        f"method.controller.threshold={case['stop_prob']}",
    )
    drafter: Any = generator.drafter
    layers = sorted({sublayer // 2 for sublayer in drafter.skip})
    yield from equal("initial set", layers, case["initial_set"])
    for number, prompt in enumerate(case["prompts"]):
        skipped, name = len(layers), f"prompt {number}"
        found = generate(generator, case, prompt)
        yield from generation_differs(found, prompt, name)
        yield from skipped_differs(found, prompt, skipped, unit=2)
        yield from _choices_differ(found, prompt)
        layers = sorted({sublayer // 2 for sublayer in drafter.skip})
        yield from equal(f"{name}: installed at the end", layers, prompt["installed_set"])
        yield from _state_differs(drafter.search, prompt["state_after"])


def _choices_differ(found: Any, prompt: Data) -> Iterator[str]:
    chosen = [record for record in found.choices if record.values["reason"] == "chosen"]
    yield from equal(
        "choices after steps", [c.step - 1 for c in chosen], [s["after_step"] for s in prompt["selections"]]
    )
    for record, golden in zip(chosen, prompt["selections"], strict=False):
        values, where = record.values, f"choice after step {golden['after_step']}"
        pairs = {
            "opt_iter": "opt_iter_before",
            "lambda": "lambda_before",
            "lambda_next": "lambda_after",
            "selected_layers": "skip",
            "active": "optimization_active",
            "best_accepted": "best_acc",
            "best_layers": "best_set",
            "windows": "windows",
        }
        for ours, theirs in pairs.items():
            yield from equal(f"{where}: {ours}", values[ours], golden[theirs])
        installed = sorted({sublayer // 2 for sublayer in values["sublayers"]})
        yield from equal(f"{where}: installed", installed, golden["installed"])
        yield from close_float16(f"{where}: confidences", values["confidences"], golden["layer_conf"])


def _state_differs(search: Any, golden: Data) -> Iterator[str]:
    yield from equal("opt_iter", search.opt_iter, golden["opt_iter"])
    yield from equal("lambda", search.lam, golden["lam"])
    yield from equal("best accepted", search.best_accepted, golden["best_acc"])
    yield from equal("best layers", search.best_layers, golden["best_set"])
    yield from equal("active", search.active, golden["optimization_active"])
