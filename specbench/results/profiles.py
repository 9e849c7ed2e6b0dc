"""The passes that a run's latency model was fitted to, as rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from specbench.results.files import read_json

FILE_NAME = "latency.json"

_KEY = ("model", "dtype", "device", "threads", "cpu")
_PASS = ("context", "attention", "mlp", "head", "seconds", "fitted_s", "attention_s", "mlp_s")
_FIT = ("attention_slope", "attention_base", "mlp", "head", "fixed")

# A row a timed pass. `context`: cached tokens before it; `attention`, `mlp`: how many such sublayers took part; `head`:
# whether the output head did; `seconds`: measured (median); `fitted_s`, `attention_s` and `mlp_s` (of one layer): what
# the fit says, whose own numbers (`fit.*`) stand on every row of its profile.
PROFILE_SCHEMA = pa.schema(
    [
        ("run_id", pa.string()),
        ("profile", pa.string()),
        ("model", pa.string()),
        ("dtype", pa.string()),
        ("device", pa.string()),
        ("threads", pa.int64()),
        ("cpu", pa.string()),
        ("context", pa.int64()),
        ("attention", pa.int64()),
        ("mlp", pa.int64()),
        ("head", pa.bool_()),
        ("seconds", pa.float64()),
        ("fitted_s", pa.float64()),
        ("attention_s", pa.float64()),
        ("mlp_s", pa.float64()),
        ("noisy", pa.bool_()),
        *((f"fit.{name}", pa.float64()) for name in _FIT),
    ]
)


def profile_rows(run_dir: Path) -> list[dict[str, Any]]:
    """The passes of the profile that a run planned with; none where it needed none. DataError on a damaged file."""
    path = run_dir / FILE_NAME
    if not path.exists():
        return []
    record = read_json(path)
    key, model = record["key"], record["model"]
    common = {
        "run_id": run_dir.name,
        "profile": record["profile"],
        **{name: key.get(name) for name in _KEY},
        "noisy": model.get("noisy"),
        **{f"fit.{name}": model.get(name) for name in _FIT},
    }
    return [{**common, **{name: timed[name] for name in _PASS}} for timed in record["passes"]]
