"""Frozen records shared by every room: what is drafted, verified, recorded and asked for.

Nothing here imports torch at run time, so that results, tasks and analysis stay light.
Shapes: k = draft rows of a step, V = target vocabulary, d = hidden size, T = k + 1 (root row first).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class SpecbenchError(Exception):
    """A problem the user can act on; the command prints its text without a traceback and exits with 2."""


class ConfigError(SpecbenchError):
    """A key or value that is not legal; the text names the key and the legal values."""


class DataError(SpecbenchError):
    """A missing, truncated or malformed data file; the text names the file and the line."""


class ModelError(SpecbenchError):
    """A model that cannot be loaded, or two models that do not pair."""


class SampleError(SpecbenchError):
    """A problem of one sample only (prompt too long, NaN logits): recorded as a failed row, the run goes on."""


@dataclass(frozen=True)
class Sample:
    """One conversation of a task: the unit of resume and the cluster of the bootstrap.

    `turns` are user messages, asked one after another. `raw` means that the only turn is given to the model as
    it is (completion style), without a chat template. `metadata` is what the task needs to score the answers.
    """

    id: str
    turns: tuple[str, ...]
    category: str = ""
    reference: Any = None
    raw: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Task(Protocol):
    """A named set of samples with a score; tasks never see a model."""

    name: str  # as tables show it: `gsm8k`, or `gsm8k_mini` on an embedded set
    default_max_new_tokens: int  # a turn
    score_names: tuple[str, ...]  # keys that `score` returns, best first; empty when no score is computed

    def samples(self) -> Sequence[Sample]:
        """All samples of the chosen source, in file order."""

    def score(self, sample: Sample, answers: Sequence[str]) -> dict[str, float]:
        """Scores of one conversation (`answers`: one text a turn), each in [0, 1]; {} when none is defined."""


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen from logits: temperature 0 is greedy; top_k 0 and top_p 1 mean no cut."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True)
class Resume:
    """The first j rows of a chain (root included) already went through layers < `layer`; K/V is in the cache."""

    layer: int
    hidden: Tensor  # [j, d], the residual stream before layer `layer`


@dataclass(frozen=True)
class Draft:
    """What a drafter proposes in one step.

    `parents[i]` is the row index of draft row i's parent among the draft rows, -1 = the root; None = a chain.
    `q[m, V]` are draft distributions in the TARGET's vocabulary and `q_row[i]` the row of q that token i was drawn
    from (-1 = a point mass); None when greedy or when all are point masses. `spine`: number of leading rows drafted
    one after another. `passengers`: number of last rows that ride along and can never be accepted.
    """

    tokens: Tensor  # [k] int64
    parents: tuple[int, ...] | None = None
    q: Tensor | None = None
    q_row: tuple[int, ...] | None = None
    spine: int | None = None  # None = no spine (acceptance_rate is null); chains say k
    passengers: int = 0
    resume: Resume | None = None
    leaf_bonus: bool = True
    info: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.tokens.shape[0])


@dataclass(frozen=True)
class Needs:
    """What a drafter wants to see of a verify pass; `residuals` and `sublayer_outputs` name sublayers 0..2L-1."""

    argmax: bool = False
    logits: bool = False
    last_hidden: bool = False
    residuals: tuple[int, ...] = ()
    sublayer_outputs: tuple[int, ...] = ()
    prompt_rows: int = 0


@dataclass(frozen=True)
class VerifyResult:
    """The target's answer for the rows of one step, root first (T = k + 1 rows); only what was needed is there."""

    logits: Tensor | None = None  # [T, V]
    argmax: Tensor | None = None  # [T]
    last_hidden: Tensor | None = None  # [T, d], after the final norm
    residuals: Mapping[int, Tensor] = field(default_factory=dict)  # sublayer -> [T, d]
    sublayer_outputs: Mapping[int, Tensor] = field(default_factory=dict)  # sublayer -> [T, d]
    prompt: VerifyResult | None = None  # the same for the last `prompt_rows` prompt rows, in step 0 only


@dataclass(frozen=True)
class Verdict:
    """What verification decided: accepted draft rows in order, emitted tokens, and the next root."""

    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    num_accepted: int
    num_accepted_spine: int
    next_token: int
    stopped: bool = False


@dataclass(frozen=True)
class StepRecord:
    """One draft + verify step as data; seconds are wall-clock, counts are tokens."""

    step: int
    context_length: int  # committed tokens before the step
    num_draft_tokens: int | None  # spine length; None without a spine
    num_tree_tokens: int  # every row that could be accepted
    num_passengers: int
    num_accepted: int
    num_accepted_spine: int
    num_emitted: int  # after the cut at stop and budget
    draft_s: float
    verify_s: float
    adapt_s: float
    host_s: float
    draft_tokens: tuple[int, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    stop_reason: str | None = None  # why drafting ended; None where the drafter did not say
    block_lengths: tuple[int, ...] | None = None  # spine tokens of each block that a controller could ask about
    block_scores: tuple[float, ...] | None = None  # the stop rule's value after each block that it judged
    oracle_length: int | None = None  # spine tokens worth drafting, where verification showed it


@dataclass(frozen=True)
class ChoiceRecord:
    """One change of a skip set (or of another structural choice) during decoding."""

    step: int
    context_length: int
    kind: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Generation:
    """The answer to one prompt. `steps` is None for generators without steps (the outside references)."""

    tokens: tuple[int, ...]
    finish_reason: str  # "stop" or "length"
    prefill_s: float
    decode_s: float
    ttft_s: float
    steps: tuple[StepRecord, ...] | None = None
    choices: tuple[ChoiceRecord, ...] = ()


class Generator(Protocol):
    """What the runner calls: the decode loop around a drafter, or an outside reference."""

    def generate(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        seed: int,
        stop_ids: Iterable[int] = (),
        reference_ids: Sequence[int] | None = None,
    ) -> Generation:
        """Decode at most `max_new_tokens` tokens after `prompt` (token ids), cut at the first stop id (kept)."""

    def reset(self) -> None:
        """Forget everything learnt; `method.scope` says when that is asked for."""
