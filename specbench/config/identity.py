"""Which keys make two runs the same run, and the run_id made of them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.config.root import RunConfig
from specbench.config.trees import flatten

# Everything is semantic unless it is named here, so that a new key can split runs but never mix them.
# `data.dir` is semantic as an absolute path: another folder may hold other prompts.
NOT_SEMANTIC = (
    "artefact",  # how a part came to be does not change it
    "dry_run",
    "experiment_name",
    "logger",
    "measure.retry_failed",
    "model.data",  # resolved into data.source
    "model.display_name",
    "objective",
    "paths",
    "size",  # only chooses other keys
    "task.default_max_new_tokens",  # resolved into sampling.max_new_tokens
    "task.only_source",  # resolved into data.source
)
# What differs between machines that do the same job: where its data lies, and what it runs on.
_OF_THE_MACHINE = ("data", "hardware.device", "hardware.name", "hardware.num_threads")
# Keys that came later, with the value that every run had before: at that value they do not change a run_id.
LATER = {
    "measure.acceptance": "decode",
    "model.draft_vocab": "own",
    "method.controller.width_divisor": 1,
    "hardware.num_threads": None,  # measured once per results root and machine; a number that is given tells runs apart
}


def as_dict(config: RunConfig) -> dict[str, Any]:
    """The configuration as nested plain dicts, ready for YAML or JSON."""
    return dataclasses.asdict(config)


def semantic(config: RunConfig) -> dict[str, Any]:
    """The dotted keys and values that identify a run; of the device only its type counts (`cuda:1` is `cuda`)."""
    flat = _without(flatten(as_dict(config)), NOT_SEMANTIC)
    flat["hardware.device"] = config.hardware.device.partition(":")[0]
    return flat


def run_id(config: RunConfig) -> str:
    """`<model>-<method>-<task>-<8 hex of sha256 of the semantic config>`, made of [A-Za-z0-9_.-] only.

    Pass a config whose `hardware.device` is resolved, so that runs on different devices keep different ids.
    """
    names = (config.model.name, config.method.name, config.task.name)
    return _named(names, semantic(config))


def run_folder(config: RunConfig) -> Path:
    """Where the run of a config, its device resolved, lies or will lie."""
    return Path(config.paths.results_dir) / "runs" / run_id(config)


def is_known(config: RunConfig) -> bool:
    """Whether a folder of the results may be of this run; its id takes the device, which takes a slow import."""
    folder = run_folder(config)
    return any(folder.parent.glob(f"{folder.name.rpartition('-')[0]}-*"))


def job_key(config: Mapping[str, Any]) -> str:
    """What a job is called on every machine: like `run_id`, but without data source and device.

    `config` is what `as_dict` gives or a run's config.yaml holds.
    """
    flat = _without(flatten(config), NOT_SEMANTIC + _OF_THE_MACHINE)
    return _named([str(flat[f"{part}.name"]) for part in ("model", "method", "task")], flat)


def _named(names: Sequence[str], values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, ensure_ascii=False)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return "-".join([*(re.sub(r"[^A-Za-z0-9_.]+", "_", name) for name in names), digest])


def _without(flat: Mapping[str, Any], entries: Sequence[str]) -> dict[str, Any]:
    kept = {key: value for key, value in flat.items() if key not in LATER or value != LATER[key]}
    return {k: v for k, v in kept.items() if not any(k == entry or k.startswith(entry + ".") for entry in entries)}
