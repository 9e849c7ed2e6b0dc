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
from specbench.runner.converted import converted_draft
from specbench.runner.session import on_device
from specbench.types import SpecbenchError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="as for run.py: group=choice and key=value")
    parser.add_argument("--out", type=Path, help="folder of the converted model (must not be there yet)")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        config = on_device(compose(["method=mla", "logger=none", *options.overrides]))
        made = converted_draft(config, options.out)
    except KeyboardInterrupt:
        print("interrupted: finished layers are kept; the same command continues", file=sys.stderr)
        return 130
    except SpecbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not made.card:
        print("error: method.converter=none: nothing to convert", file=sys.stderr)
        return 2
    layers = made.card["layers"]
    before, after = (sum(layer[key] for layer in layers) / len(layers) for key in ("error_before", "error_after"))
    print(f"mean relative error of {len(layers)} layers: {before:.3g} converted, {after:.3g} as stored")
    print(f"converted draft ready: method.folder={made.source}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
