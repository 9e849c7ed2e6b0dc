"""Convert a model's draft (or the model itself) to multi-head latent attention and tune it, for method=mla.

    python scripts/convert_mla.py model=smollm2 method.converter=mha2mla method.budget=0.5 --out FOLDER
    python run.py model=smollm2 method=mla method.folder=FOLDER

Takes the words of run.py; keys are in conf/method/mla.yaml. Without --out it goes where method=mla itself looks with
the same words. Started again after a kill, it goes on with the layer that it was at. The transformers library loads the
folder too (AutoModelForCausalLM.from_pretrained with trust_remote_code=True).
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from specbench.config import compose
from specbench.config.script import exit_code
from specbench.runner.converted import converted_draft
from specbench.runner.session import on_device
from specbench.types import ConfigError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="as for run.py: group=choice and key=value")
    parser.add_argument("--out", type=Path, help="folder of the converted model (must not be there yet)")
    options = parser.parse_intermixed_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    return exit_code(
        lambda: convert(options.overrides, options.out),
        interrupted="finished layers are kept; the same command continues",
    )


def convert(overrides: list[str], out: Path | None) -> int:
    """Convert what is not converted yet, and say how close it comes and where it is."""
    made = converted_draft(on_device(compose(["method=mla", "logger=none", *overrides])), out)
    if not made.card:
        raise ConfigError("method.converter=none: nothing to convert")
    layers = made.card["layers"]
    before, after = (sum(layer[key] for layer in layers) / len(layers) for key in ("error_before", "error_after"))
    print(f"mean relative error of {len(layers)} layers: {before:.3g} converted, {after:.3g} as stored")
    print(f"converted draft ready: method.folder={made.source}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
