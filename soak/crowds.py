"""A full disk, two processes on one folder, sixteen threads, and a long simulation."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from common import Amount, ethanol, finish, need, start

from bayrace import Calculator
from bayrace.data.embedded import embedded_frames
from bayrace.data.frame import frame_to_atoms
from bayrace.potential.potential import Potential
from bayrace.simulate.dynamics import DynamicsSettings, simulate


class NotPossibleError(Exception):
    """This machine does not allow the case."""


def full_disk(folder: Path, amount: Amount, random: np.random.Generator) -> str:
    """On a disk that is full, commands end with one line, and old files stay whole."""
    del amount, random
    model, test = small_model(folder), ethanol(folder, "test", 20)
    with tmpfs(folder / "disk", kilobytes=64) as disk:
        page = disk / "report.html"
        page.write_text("old")
        for arguments in (
            ("report", model, "--test", test, "-o", page),
            ("predict", model, test, "-o", disk / "predicted.xyz"),
            ("train", test, "-s", "model.preset=tiny", "-s", f"output={disk / 'run'}"),
        ):
            printed = finish(*arguments, code=2)
            need("No space left" in printed, f"{arguments[0]}: {printed}")
            need("Traceback" not in printed, f"{arguments[0]}: {printed}")
        need(page.read_text() == "old", "the old page is torn")
        left = [path for path in disk.rglob("*") if path.suffix in (".part", ".tmp", ".xyz")]
        need(not left, f"left behind: {left}")
    return "report, predict and train end with one line, old files stay"


def two_processes(folder: Path, amount: Amount, random: np.random.Generator) -> str:
    """The second of two on one folder is refused."""
    del amount, random
    data = ethanol(folder, "train", 24)
    keys = ("model.preset=tiny", "train.max_epochs=100000", "train.batch_size=4")
    keys += (f"output={folder / 'run'}",)
    command = ("train", data, *(text for key in keys for text in ("-s", key)))
    first = start(*command)
    try:
        while not (folder / "run" / "history.jsonl").is_file():
            need(first.process.is_running(), "the first training ended")
            time.sleep(0.1)
        need("another process" in finish(*command, "--resume", code=2), "of no other process")
    finally:
        first.process.terminate()
        first.wait()
    return "the second training is refused"


def threads(folder: Path, amount: Amount, random: np.random.Generator) -> str:
    """One Calculator in sixteen threads gives what one thread gets."""
    del amount
    calculator = Calculator(small_model(folder))
    frames = embedded_frames("ethanol-test")[:20]
    right = [calculator.get_potential_energy(frame_to_atoms(frame)) for frame in frames]
    places = random.integers(0, len(frames), size=480)

    def energy(place: int) -> float:
        return float(calculator.get_potential_energy(frame_to_atoms(frames[place])))

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(energy, places.tolist()))
    wrong = sum(found[k] != right[place] for k, place in enumerate(places))
    need(wrong == 0, f"{wrong} of {len(places)} energies are wrong")
    return f"{len(places)} calls of 16 threads, all right"


def long_dynamics(folder: Path, amount: Amount, random: np.random.Generator) -> str:
    """Many steps take no more memory than few."""
    del random
    potential = Potential.load(small_model(folder))
    settings = DynamicsSettings("nvt", 300.0, amount.steps, uncertainty_every=10)
    looks = simulate(potential, embedded_frames("ethanol-test")[0], settings)
    sizes = [resident() for look in looks if look.step % (amount.steps // 10) == 0]
    growth = (sizes[-1] - sizes[2]) / 2**20
    need(growth < 20.0, f"resident memory grew by {growth:.1f} MB")
    return f"{amount.steps} steps, resident {sizes[-1] / 2**20:.0f} MB, growth {growth:.1f} MB"


def resident() -> int:
    """Bytes of memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def small_model(folder: Path) -> Path:
    """A potential that was trained for seconds."""
    target = folder / "model"
    if not (target / "model.bayrace").is_file():
        data = ethanol(folder, "train", 40)
        keys = ("model.preset=tiny", "train.max_epochs=15", "train.threads=1", f"output={target}")
        finish("train", data, *(text for key in keys for text in ("-s", key)))
    return target / "model.bayrace"


@contextmanager
def tmpfs(folder: Path, *, kilobytes: int) -> Iterator[Path]:
    """A file system of a few kilobytes, which takes the right to mount."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        raise NotPossibleError(done.stderr.strip())
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
