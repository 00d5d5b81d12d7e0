"""A trained potential as the weights that trainings start from: half precision, no noise heads.

python scripts/pretrain/pack.py runs/pretrain/small/model.bayrace
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import safetensors.torch
import torch

from bayrace import Potential
from bayrace.models.race import pretrained
from bayrace.models.race.start import SCALARS
from bayrace.models.race.stored_spec import ORGANIC

METHOD = "GFN1-xTB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("potential", type=Path)
    parser.add_argument("--molecules", type=int, required=True, help="how many it was trained on")
    options = parser.parse_args()
    potential = Potential.load(options.potential)
    params = {name: value[0] for name, value in potential.members.items()}
    noise = potential.model.noise_weights(params)
    kept = {}
    for name, value in params.items():
        if name.endswith(SCALARS):
            kept[name] = value[:, :1]
        elif name not in noise:
            kept[name] = value
    halves = {name: value.to(torch.float16).contiguous() for name, value in kept.items()}
    about = {"spec": potential.spec.to_json(), "molecules": options.molecules, "method": METHOD}
    path = Path(pretrained.__file__).with_name(f"{ORGANIC}.safetensors")
    safetensors.torch.save_file(halves, path, metadata={"about": json.dumps(about)})
    print(path, path.stat().st_size, "bytes")
    print("DIGEST in pretrained.py:", hashlib.sha256(path.read_bytes()).hexdigest())


if __name__ == "__main__":
    main()
