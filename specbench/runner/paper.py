"""The runs that a paper's figures need: which are there, which are missing, and the missing ones one after another.

A job counts as there when its run is finished below the results folder, or frozen: by its identity on any machine, so
that a clone that carries the frozen files has nothing left to do.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specbench.config import RunConfig, aligned, as_dict, compose_each, job_key, run_folder, sweep_jobs
from specbench.results.frozen import freeze, join_frozen
from specbench.results.store import is_finished
from specbench.runner import run
from specbench.runner.estimate import estimated_seconds
from specbench.runner.planning import duration
from specbench.runner.session import on_device
from specbench.types import ConfigError, SpecbenchError

log = logging.getLogger(__name__)

_ALL = 80  # conversations that `num_samples=null` is taken to mean in an estimate


@dataclass(frozen=True)
class Job:
    """One run of an experiment; `key` is its identity on any machine, `words` what run.py would be given."""

    words: tuple[str, ...]
    config: RunConfig
    key: str

    @property
    def run_dir(self) -> Path:
        """Where its run lies or will lie."""
        return run_folder(self.config)


@dataclass
class Plan:
    """An experiment: all its jobs, those that have to run still, and one text a job or kind of job that cannot."""

    experiment: str
    jobs: list[Job] = field(default_factory=list)
    missing: list[Job] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float | None:
        """Estimated seconds of the missing jobs; None where the time of some is not known."""
        estimates = [estimated_seconds(job.config, job.config.num_samples or _ALL) for job in self.missing]
        known = [seconds for seconds in estimates if seconds is not None]
        return sum(known) if len(known) == len(estimates) else None


def plan(experiment: str, words: Sequence[str], done: Collection[str]) -> Plan:
    """What is left of an experiment run with these further words, where jobs with the keys in `done` are done."""
    made = Plan(experiment)
    try:
        every = sweep_jobs([f"experiment={experiment}", *words])
    except ConfigError as error:
        made.problems.append(str(error))
        return made
    for own, config in zip(every, compose_each(every), strict=True):
        if isinstance(config, ConfigError):
            made.problems += [str(config)] if str(config) not in made.problems else []
            continue
        made.jobs.append(Job(tuple(own), on_device(config), job_key(as_dict(config))))
    left = [job for job in made.jobs if job.key not in done and not is_finished(job.run_dir)]
    made.missing = list({job.key: job for job in left}.values())  # jobs of a sweep may be one and the same run
    return made


def plans(experiments: Sequence[str], words: Sequence[str], frozen: Collection[str]) -> list[Plan]:
    """A plan each; a job that several need is planned with the first."""
    made, done = [], set(frozen)
    for name in experiments:
        made.append(plan(name, words, done))
        done |= {job.key for job in made[-1].missing}
    return made


def overview(plans: Sequence[Plan]) -> str:
    """One line an experiment (jobs, those to run, the estimate), what cannot run, and the sum."""
    rows = [("experiment", "jobs", "to run", "about")]
    estimates = [each.seconds for each in plans]
    for each, seconds in zip(plans, estimates, strict=True):
        about = "-" if seconds is None else duration(seconds)
        rows.append((each.experiment, str(len(each.jobs)), str(len(each.missing)), about))
    known = sum(seconds or 0.0 for seconds in estimates)
    problems = [f"{each.experiment}: cannot run: {text}" for each in plans for text in each.problems]
    return "\n".join([*aligned(rows), f"together about {duration(known)} (-: no earlier run tells)", *problems])


def carry_out(plan: Plan, folder: Path) -> list[str]:
    """Run what is missing, freeze into `folder`, and give what went wrong, each with the words of its job.

    A job that fails does not stop the others. What is finished is frozen whatever happened.
    """
    problems = list(plan.problems)
    try:
        for number, job in enumerate(plan.missing, start=1):
            log.info("%s: job %d of %d: %s", plan.experiment, number, len(plan.missing), " ".join(job.words))
            problems += _failure(job)
    finally:
        for results_dir, size in {(job.config.paths.results_dir, job.config.size) for job in plan.jobs}:
            freeze(results_dir, folder, size=size)
        join_frozen(folder, plan.experiment, [job.key for job in plan.jobs])
    return problems


def _failure(job: Job) -> list[str]:
    try:
        run(job.config)
    except SpecbenchError as error:  # a SampleError among them: its rows are stored
        return [f"{' '.join(job.words)}: {error}"]
    except Exception as error:
        log.exception("unexpected error")
        return [f"{' '.join(job.words)}: {type(error).__name__}: {error}"]
    return []
