"""Build the kernels of the presets for a wheel, into src/bayrace/nn/prebuilt (`make wheel`).

    python scripts/build_kernels.py

Programs and operators of tiny, small and medium in single precision and the steps of Muon, for
x86-64 processors with AVX-512 and with AVX2. Other processors, presets and precisions compile
theirs when they need them.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from unittest import mock

import torch

from bayrace.deploy import lammps_memory
from bayrace.models.noise import NoiseSpec
from bayrace.models.race.network import Race
from bayrace.models.race.presets import PRESETS
from bayrace.models.race.spec import RaceSpec
from bayrace.nn import (
    compiler,
    exponentials,
    kernels,
    lengths,
    mixing,
    newton_schulz,
    pairs,
    passes,
    prebuilt,
    products,
    splines,
)
from bayrace.nn.kernels import DTYPES, ready
from bayrace.nn.program import engine
from bayrace.predict import single

SIZES = ("tiny", "small", "medium")
NOT_SPEC = ("normalise", "dtype", "short_range", "preset")  # of a preset
USERS = (
    *(engine, exponentials, lammps_memory, lengths, mixing),
    *(newton_schulz, pairs, passes, products, single, splines),
)  # of `build`


def spec_of(preset: str) -> RaceSpec:
    """The network of a preset; elements do not matter to kernels."""
    values = {k: v for k, v in PRESETS[preset]["model"].items() if k not in NOT_SPEC}
    values |= {"elements": (1, 6), "mean_neighbours": 10.0, "scale": 1.0, "shift": (0.0, 0.0)}
    noise = NoiseSpec("joint", "extensive", "equivariant", stress=False)
    return RaceSpec(**values, noise=noise)


def build_all(level: str, folder: Path) -> None:
    """Everything that a network of each preset loads."""
    width = {"x86-64-v4": 64, "x86-64-v3": 32}[level]

    def build(source: str, defines: dict[str, str]) -> object:
        return compiler.build_for(level, source, defines, folder)

    patches = [mock.patch.object(module, "build", build) for module in USERS]
    patches.append(mock.patch.object(kernels, "vector_bytes", return_value=width))
    for patch in patches:
        patch.start()
    for cached in (engine._library, kernels.ready, kernels._problem):
        cached.cache_clear()
    for module in USERS[1:]:
        module.load.cache_clear()
    for preset in SIZES:
        race = Race(spec_of(preset), kernel="fused")
        for learning in (True, False):
            assert race.compiled.program(torch.float32, folded=not learning, learning=learning)
        with mock.patch.object(race.compiled, "program", return_value=None):
            race.prepare(torch.float32)  # the operators
    for dtype in (torch.float32, torch.float64):  # the latter for eigenvalues
        exponentials.load("", dtype, 0)
        pairs.load(DTYPES[dtype], dtype, 0)
        single.load(DTYPES[dtype], torch.float64, 0)
        ready(lengths.load, DTYPES[dtype], torch.float64, lengths.CHANNELS)
    assert newton_schulz.available(torch.empty(0))
    assert lammps_memory.compiled()
    for patch in patches:
        patch.stop()


def main() -> None:
    if len(sys.argv) > 1:
        print(__doc__)
        return
    folder = prebuilt.FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    prebuilt.processor.cache_clear()
    folder.mkdir()
    for level in prebuilt.LEVELS:
        build_all(level, folder)
    libraries = sorted(folder.glob("*.so"))
    size = sum(library.stat().st_size for library in libraries) / 2**20
    print(f"{len(libraries)} libraries, {size:.1f} MiB, in {folder}")


if __name__ == "__main__":
    main()
