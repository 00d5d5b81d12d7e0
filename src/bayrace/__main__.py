"""`python -m bayrace` is `bayrace`, for launchers such as torchrun."""

from __future__ import annotations

from bayrace.cli.main import app

if __name__ == "__main__":
    app(prog_name="bayrace")
