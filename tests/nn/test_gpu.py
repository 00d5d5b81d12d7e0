"""The Triton kernels equal the plain convolution, in Triton's interpreter, and compile for GPUs.

The operators of `bayrace.nn.fused` have a kernel for each device; here those of GPUs take the place
of those of CPUs, so that the very operators, derivatives and transforms are tested. Each test has a
process of its own: how kernels are run is chosen when they are first written.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton comes with PyTorch for CUDA and with the extra dev")

EQUAL = """
import sys
import torch
from torch.func import grad, vmap
sys.path.insert(0, sys.argv[1])
import test_fused as fused
from bayrace.nn import gpu
from bayrace.nn.convolution import convolve_plain
from bayrace.nn.fused import convolve_fused

library = torch.library.Library("bayrace", "IMPL")
for name in ("convolve", "backward", "double"):
    operator = name if name == "convolve" else f"convolve_{name}"
    library.impl(operator, getattr(gpu, f"{name}_gpu"), "CPU", allow_override=True)

cases = [(plan, 3, 3, 3, torch.float64, 2) for plan in fused.PLANS]
cases += [(fused.SMALL, *sizes) for sizes in (
    (70, 2, 2, torch.float64, 2), (8, 3, 0, torch.float64, 2),
    (64, 2, 2, torch.float32, 2), (3, 3, 4, torch.float64, 3),
)]
for plan, channels, atoms, pairs, dtype, order in cases:
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    batch = fused.random_graph(atoms, pairs, seed=channels)
    values = fused.random_inputs(plan, batch, channels, dtype, seed=atoms)
    ours = fused.derivatives(convolve_fused, plan, batch, values, order=order)
    plain = fused.derivatives(convolve_plain, plan, batch, values, order=order)
    fused.assert_same(ours, plain, tolerance)

batch = fused.random_graph(4, 6, seed=1)
x, y, r, g = fused.random_inputs(fused.SMALL, batch, 3, torch.float64, seed=2)
def slopes(function):
    energy = lambda x: (function(fused.SMALL, x, y, r, batch) * g).sum() ** 2
    return vmap(grad(energy))(torch.stack((x, 2 * x)))
fused.assert_same([slopes(convolve_fused)], [slopes(convolve_plain)], 1e-12)
print("equal", len(cases))
"""

COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
sys.path.insert(0, sys.argv[1])
import test_fused as fused
from bayrace.nn import gpu

whole = {"first", "sender", "receiver", "pair", "pair_edges"}
sizes = {"channels": "i32", "pairs": "i32", "BLOCK": "constexpr"}
for kernel in vars(gpu.kernels(fused.PLAN.key)).values():
    for real in ("fp32", "fp64"):
        kinds = {each: f"*{'i64' if each in whole else real}" for each in kernel.arg_names}
        kinds |= {each: kind for each, kind in sizes.items() if each in kinds}
        source = ASTSource(kernel, kinds, constexprs={"BLOCK": 32})
        made = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"num_warps": 1})
        print("compiled", len(made.asm["cubin"]) > 1000)
"""


def run(script: str, tmp_path: Path, **environment: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", script, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(tmp_path)} | environment,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_values_derivatives_and_members(tmp_path: Path) -> None:
    assert run(EQUAL, tmp_path, TRITON_INTERPRET="1") == "equal 9\n"


def test_they_compile_for_a_gpu(tmp_path: Path) -> None:
    """By Triton and the assembler that it brings along; no GPU is needed for that."""
    assert run(COMPILE, tmp_path, TRITON_INTERPRET="0") == "compiled True\n" * 6
