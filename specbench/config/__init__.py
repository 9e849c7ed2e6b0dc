"""The configuration of a run: typed, checked, without torch. Hydra is used here and in run.py only."""

from specbench.config.command import command
from specbench.config.composing import compose, compose_train_draft, run_config
from specbench.config.controllers import ControllerConfig
from specbench.config.identity import NOT_SEMANTIC, as_dict, is_known, job_key, run_folder, run_id, semantic
from specbench.config.jobs import run_job
from specbench.config.methods import MethodConfig
from specbench.config.methods_clasp import ClaspConfig
from specbench.config.methods_confl_swift import ConflConfig, SwiftConfig
from specbench.config.methods_del import DelConfig
from specbench.config.methods_knapspec import KnapspecConfig
from specbench.config.methods_lookahead import LookaheadConfig, OuroborosConfig
from specbench.config.methods_mla import CalibrationConfig, MlaConfig, ReconstructConfig
from specbench.config.parts import (
    ArtefactConfig,
    DataConfig,
    HardwareConfig,
    LoggerConfig,
    MeasureConfig,
    ModelConfig,
    PathsConfig,
    SamplingConfig,
    TaskConfig,
)
from specbench.config.root import RunConfig
from specbench.config.sizes import SIZES
from specbench.config.sweeps import compose_each, experiments, sweep_jobs
from specbench.config.text import aligned
from specbench.config.training import CorpusConfig, DistilConfig, TrainDraftConfig
from specbench.config.trees import flatten

__all__ = [
    "NOT_SEMANTIC",
    "SIZES",
    "ArtefactConfig",
    "CalibrationConfig",
    "ClaspConfig",
    "ConflConfig",
    "ControllerConfig",
    "CorpusConfig",
    "DataConfig",
    "DelConfig",
    "DistilConfig",
    "HardwareConfig",
    "KnapspecConfig",
    "LoggerConfig",
    "LookaheadConfig",
    "MeasureConfig",
    "MethodConfig",
    "MlaConfig",
    "ModelConfig",
    "OuroborosConfig",
    "PathsConfig",
    "ReconstructConfig",
    "RunConfig",
    "SamplingConfig",
    "SwiftConfig",
    "TaskConfig",
    "TrainDraftConfig",
    "aligned",
    "as_dict",
    "command",
    "compose",
    "compose_each",
    "compose_train_draft",
    "experiments",
    "flatten",
    "is_known",
    "job_key",
    "run_config",
    "run_folder",
    "run_id",
    "run_job",
    "semantic",
    "sweep_jobs",
]
