"""One thread and deterministic kernels: the tests run side by side and compare bits."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
