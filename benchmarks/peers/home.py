"""The folder of the peers' environments, the data and the results. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path

BENCH = Path(os.environ.get("BENCH", ".bench"))
"""From the root of the repository; `make bench BENCH=folder` sets it."""
