"""One run from its config to its folder: decode what is not there yet, derive the summary, close."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from specbench.analysis.metrics import summarise
from specbench.config import RunConfig, as_dict, run_folder
from specbench.loggers import Logger, build_logger
from specbench.recording import Answer, choice_rows, sample_row, step_rows
from specbench.results.experiments import join_experiment
from specbench.results.files import read_json
from specbench.results.store import FAILED, FINISHED, Frames, RunStore, is_finished
from specbench.runner.conversation import Conversation, Repetitions, warm_up
from specbench.runner.dry_run import dry_run
from specbench.runner.estimate import WARM_UP_TOKENS
from specbench.runner.missing import make_missing
from specbench.runner.planning import make_task, ordered_samples, subset
from specbench.runner.reasons import first_reason
from specbench.runner.replaying import draft_numbers
from specbench.runner.resuming import continued
from specbench.runner.session import Session, on_device
from specbench.runner.stored import StoredBaseline, missing_baseline, stored_baseline
from specbench.types import Sample, SampleError, Task

log = logging.getLogger(__name__)


def run(config: RunConfig) -> float | None:
    """Measure one config and give its objective (None where it has none); a dry run gives its estimated seconds.

    A finished run is not repeated. Raises SampleError after everything was recorded when a sample failed or a
    divergence from AR is a bug; other SpecbenchErrors before measuring.
    """
    config = on_device(config)
    run_dir = run_folder(config)
    if config.dry_run:
        return dry_run(config, run_dir)
    if config.measure.acceptance == "replay" and not is_finished(run_dir):
        _make_baseline(config)
    logger = build_logger(config)
    try:
        if is_finished(run_dir):
            log.info("%s is finished and not repeated", run_dir.name)
            join_experiment(run_dir, config.experiment_name)
            summary, status = read_json(run_dir / "summary.json"), FINISHED
            logger.finish(summary, run_dir, status)
        else:
            summary, error = _Run(config, run_dir, logger).execute()
            if error is not None:
                raise SampleError(error)
    finally:
        logger.close()
    value = summary.get(config.objective)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _make_baseline(config: RunConfig) -> None:
    """Decode AR's answers where a replay finds none: a part that is missing is built, unless that is forbidden."""
    missing = missing_baseline(config)
    if missing is not None and config.artefact.if_missing == "build":
        log.info("decoding AR's answers first: they are stored and shared by all replays on this target and task")
        run(missing)


class _Run:
    def __init__(self, config: RunConfig, run_dir: Path, logger: Logger) -> None:
        self.config, self.run_dir, self.logger = config, run_dir, logger
        self.task: Task = make_task(config)
        self.samples = ordered_samples(config, self.task)

    def execute(self) -> tuple[dict[str, Any], str | None]:
        """Decode, summarise and write; gives the summary and, when the run failed, why."""
        session = Session(self.config, make_missing)
        environment, stored = self._check(session)
        with RunStore(self.run_dir) as store, _messages_in(self.run_dir / "run.log"):
            if self.config.measure.retry_failed:
                store.forget_failed()
            done = store.finished_ids()
            environment = continued(self.run_dir, environment) if done else environment
            store.write_config(yaml.safe_dump(as_dict(self.config), sort_keys=False))
            store.write_environment(environment)
            if session.latency_record is not None:
                store.write_latency(session.latency_record)
            todo = [sample for sample in self.samples if sample.id not in done]
            self._note_resume(len(todo))
            self.logger.start(self.config, self.run_dir.name, len(todo), environment)
            self.logger.resume(store.frames().samples)
            self._decode(session, store, todo, stored)
            return self._finalize(session, store)

    def _check(self, session: Session) -> tuple[dict[str, Any], StoredBaseline | None]:
        """Stop a run that cannot start before its folder is made; where it runs, and its stored baseline if it has one.

        The method comes first: its trained parts may have to be made, and belong to the record.
        """
        _ = session.method
        first = self.samples[0]
        session.encode_question(first.turns[0], raw=first.raw)
        environment = session.environment()
        stored = stored_baseline(self.config, environment) if self.config.measure.baseline == "stored" else None
        return environment, stored

    def _note_resume(self, left: int) -> None:
        done = len(self.samples) - left
        if done:
            log.info("%s: continuing after %d of %d samples", self.run_dir.name, done, len(self.samples))
            if self.config.method.scope != "sample":
                log.warning("method.scope=%s: what was learnt before is lost", self.config.method.scope)

    def _decode(self, session: Session, store: RunStore, todo: Sequence[Sample], stored: StoredBaseline | None) -> None:
        if not todo:
            return
        max_new_tokens = self.config.answer_tokens
        warm_up(
            session,
            todo[0],
            passes=self.config.measure.warmup,
            max_new_tokens=min(WARM_UP_TOKENS, max_new_tokens),
        )
        repetitions = Repetitions(self.config.measure.drift_repeats, self.config.measure.drift_share)
        previous = None
        for sample in todo:
            self._forget(session, previous, sample)
            conversation = Conversation(
                session,
                sample,
                index=self.samples.index(sample),
                max_new_tokens=max_new_tokens,
                repetitions=repetitions,
                stored=stored,
            )
            self._record(store, sample, conversation.measure())
            previous = sample

    def _forget(self, session: Session, previous: Sample | None, sample: Sample) -> None:
        """Drop what a task taught where its subset changes; a conversation itself starts anew for scope=sample."""
        new_subset = previous is not None and subset(self.config, previous) != subset(self.config, sample)
        if self.config.method.scope == "task" and new_subset:
            session.method.reset()

    def _record(self, store: RunStore, sample: Sample, answers: Sequence[Answer]) -> None:
        self._score(sample, answers)
        rows = [sample_row(answer) for answer in answers]
        steps = [row for answer in answers for row in step_rows(answer)]
        store.append(sample.id, rows, steps, [row for answer in answers for row in choice_rows(answer)])
        self.logger.sample(rows, steps)

    def _score(self, sample: Sample, answers: Sequence[Answer]) -> None:
        """Score whole conversations; the score stands on every turn's row."""
        groups: dict[tuple[str, int], list[Answer]] = {}
        for answer in answers:
            if answer.used:
                groups.setdefault((answer.arm, answer.turn.repeat), []).append(answer)
        for turns in groups.values():
            if len(turns) == len(sample.turns) and all(answer.text is not None for answer in turns):
                scores = self.task.score(sample, [answer.text or "" for answer in turns])
                for answer in turns:
                    answer.scores = scores

    # ---- the end

    def _finalize(self, session: Session, store: RunStore) -> tuple[dict[str, Any], str | None]:
        frames = store.frames()
        summary = self._summary(session, frames)
        error = _failure(summary, frames)
        if summary["drafted_nothing"] and self.config.method.name != "ar":
            log.warning("method=%s drafted nothing in any step: nothing but AR was measured", self.config.method.name)
        status = FINISHED if error is None else FAILED
        store.finalize(summary, status=status, error=error)
        self.logger.finish(summary, self.run_dir, status)
        return summary, error

    @property
    def _unit_of(self) -> Callable[[str], str] | None:
        """What learns together: samples alone, those of a subset, or the whole run."""
        if self.config.method.scope == "sample":
            return None
        if self.config.method.scope == "run":
            return lambda _: "run"
        return {sample.id: subset(self.config, sample) for sample in self.samples}.__getitem__

    def _summary(self, session: Session, frames: Frames) -> dict[str, Any]:
        config = self.config
        searches = getattr(getattr(session.method, "drafter", None), "searches", False)
        metrics = summarise(
            frames.samples,
            frames.steps,
            frames.choices if searches or len(frames.choices) else None,
            dtype=config.hardware.dtype,
            count_tokens=lambda text: len(session.chat.encode_raw(text)),
            unit_of=self._unit_of,
            seed=config.seed,
        )
        identity = {
            "run_id": self.run_dir.name,
            "model": config.model.name,
            "model_name": config.model.display_name,
            "method": config.method.name,
            "controller": config.method.controller.name,
            "bound": config.method.controller.bound,
            "task": self.task.name,
        }
        return {
            **identity,
            **metrics,
            **_curve_numbers(session),
            **draft_numbers(getattr(session.method, "drafter", None), session.draft_card),
        }


def _curve_numbers(session: Session) -> dict[str, Any]:
    """t(T) of the target, for what a step costs; a replay takes no time that it could explain."""
    if session.config.measure.acceptance == "replay":
        return {}
    curve = session.curve
    points = [[length, seconds] for length, seconds in sorted(curve.seconds.items())]
    return {"t_curve": points, "t_curve_noisy": curve.noisy}


@contextmanager
def _messages_in(file: Path) -> Iterator[None]:
    """Append what is logged inside the body to `file`, so that a run folder tells its own story."""
    handler = logging.FileHandler(file, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


def _failure(summary: dict[str, Any], frames: Frames) -> str | None:
    """Why a run that went to its end still failed, or None."""
    if summary["num_failed"]:
        return (
            f"{summary['num_failed']} of {summary['num_samples']} samples failed; their rows say why"
            f"{first_reason(frames.samples, 'error')}. The same command tries them again with measure.retry_failed=true"
        )
    if summary["num_skipped"] == summary["num_samples"]:
        told = f"all {summary['num_samples']} samples were skipped, so nothing was measured; their rows say why"
        return told + first_reason(frames.samples, "skipped")
    if summary["num_bugs"] and summary["mat"] is not None:  # an outside reference may differ; that is reported
        return (
            f"{summary['num_bugs']} answers differ from AR by more than rounding explains (measure.tie_gap): "
            "the method or the decoder has a bug"
        )
    if summary["num_score_disagreements"]:
        return f"{summary['num_score_disagreements']} answers equal AR's but score differently: scoring has a bug"
    return None
