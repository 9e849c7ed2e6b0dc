"""The text of `python run.py --help`."""

from __future__ import annotations

from specbench.config.errors import CONF_DIR, GROUPS

_EXAMPLES = """\
  python run.py                                          # prompt lookup on a few documents, beside AR
  python run.py method=ar,pld task=gsm8k,cnn_dm -m       # a sweep: every method on every task
  python run.py model=tiny method=sps method/controller=heuristic
  python run.py task=gsm8k data=local data.dir=FOLDER num_samples=null hardware.dtype=float32
  python run.py experiment=demo logger=console           # a prepared sweep"""

_TEXT = """\
specbench: one decode loop over model x method x task x hardware, measured beside AR.

usage: python run.py [group=choice ...] [key=value ...]

Groups (choose with group=choice):
{groups}

Keys (set with key=value; `python run.py --cfg job` prints them all with their values):
  num_samples seed size objective dry_run artefact.if_missing data.dir
  sampling.temperature sampling.top_k sampling.top_p sampling.max_new_tokens
  hardware.device hardware.dtype hardware.num_threads
  task.truncate task.execute_code task.context_tokens task.history task.style
  method.scope method.verification method.controller.*
  measure.baseline measure.warmup measure.repeats measure.exclusive measure.tie_gap
  logger.mode logger.project paths.results_dir paths.cache_dir

Examples:
{examples}

Sweep with -m and commas; `method=glob(*,exclude=[*_official,hf_*])` takes every method of this project.
Parallel jobs: hydra/launcher=joblib. Tab completion: eval "$(python run.py -sc install=bash)".
Other flags: --cfg job|all, --info, --hydra-help. HYDRA_FULL_ERROR=1 keeps tracebacks.
"""


def choices(group: str) -> list[str]:
    """The file names of a group: what the user types after `group=`."""
    return sorted(path.stem for path in (CONF_DIR / group).glob("*.yaml"))


def help_text() -> str:
    """Groups with their choices, keys, and example commands."""
    width = max(len(group) for group in GROUPS)
    groups = "\n".join(f"  {group:<{width}}  {' '.join(choices(group))}" for group in GROUPS)
    return _TEXT.format(groups=groups, examples=_EXAMPLES)
