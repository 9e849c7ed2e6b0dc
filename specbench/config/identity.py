"""Which keys make two runs the same run, and the run_id made of them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from typing import Any

from specbench.config.root import RunConfig
from specbench.config.trees import flatten

# Everything is semantic unless it is named here, so that a new key can split runs but never mix them.
# `data.dir` is semantic as an absolute path: another folder may hold other prompts.
NOT_SEMANTIC = (
    "artefact",  # how a part came to be does not change it
    "dry_run",
    "hardware.num_threads",  # measured; recorded with each run
    "logger",
    "model.data",  # resolved into data.source
    "model.display_name",
    "objective",
    "paths",
    "size",  # only chooses other keys
    "task.default_max_new_tokens",  # resolved into sampling.max_new_tokens
    "task.only_source",  # resolved into data.source
)


def as_dict(config: RunConfig) -> dict[str, Any]:
    """The configuration as nested plain dicts, ready for YAML or JSON."""
    return dataclasses.asdict(config)


def semantic(config: RunConfig) -> dict[str, Any]:
    """The dotted keys and values that identify a run; of the device only its type counts (`cuda:1` is `cuda`)."""
    flat = {key: value for key, value in flatten(as_dict(config)).items() if not _listed(key)}
    flat["hardware.device"] = config.hardware.device.partition(":")[0]
    return flat


def run_id(config: RunConfig) -> str:
    """`<model>-<method>-<task>-<8 hex of sha256 of the semantic config>`, made of [A-Za-z0-9_.-] only.

    Pass a config whose `hardware.device` is resolved, so that runs on different devices keep different ids.
    """
    text = json.dumps(semantic(config), sort_keys=True, ensure_ascii=False)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    names = (config.model.name, config.method.name, config.task.name)
    return "-".join([*(re.sub(r"[^A-Za-z0-9_.]+", "_", name) for name in names), digest])


def _listed(key: str) -> bool:
    return any(key == entry or key.startswith(entry + ".") for entry in NOT_SEMANTIC)
