"""Sets whose errors are known: labels drawn from the predicted distributions, or not quite."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayrace.data.frame import Frame
from bayrace.evaluate.judged import ENERGY_SCORE, FORCES_SCORE, Judged, Quantity

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SOFTWARE_GL = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader"]


def make_quantity(
    random: np.random.Generator, std: Any, frame: Any, atom: Any, number: Any, *, wrong: float
) -> Quantity:
    """Errors `wrong` times as large as σ says; without σ where `wrong` is 0."""
    from scipy.special import ndtr

    label = random.normal(size=std.shape)
    error = std * random.normal(size=std.shape) * (wrong or 1.0)
    sigma = std if wrong else 0 * std
    with np.errstate(divide="ignore"):
        pit = ndtr(-error / sigma)
    end = 1.6448536269514722 * sigma
    mean = label + error
    part = sigma / np.sqrt(2)
    return Quantity(
        label, mean, sigma, part, part, pit, mean - end, mean + end, frame, atom, number
    )


@pytest.fixture(scope="session")
def make_judged() -> Callable[..., Judged]:
    """A factory of sets of formaldehyde-like structures."""

    def make(
        name: str = "cold",
        role: Any = "test",
        *,
        count: int = 60,
        wrong: float = 1.0,
        scale: float = 1.0,
        raw: float | None = None,
        types: tuple[str, ...] = ("Default",),
        repeat: int = 1,
        periodic: bool = False,
        seed: int = 0,
    ) -> Judged:
        random = np.random.default_rng(seed)
        numbers = np.tile([6, 8, 1, 1], repeat)
        base = np.array([[0.0, 0, 0], [1.2, 0, 0], [-0.6, 0.9, 0], [-0.6, -0.9, 0.1]])
        base = np.concatenate([base + np.array([0, 0, 4.0 * place]) for place in range(repeat)])
        frames = [
            Frame(
                numbers=numbers,
                positions=base + 0.05 * random.normal(size=base.shape),
                cell=6 * np.eye(3) if periodic else np.zeros((3, 3)),
                pbc=np.full(3, periodic),
                energy=0.0,
                forces=np.zeros((len(numbers), 3)),
                stress=None,
                config_type=types[index % len(types)],
                weight=1.0,
                source="made.xyz",
                index=index,
            )
            for index in range(count)
        ]
        atoms = len(numbers)
        frame = np.arange(count)
        rows = np.repeat(frame, 3 * atoms)
        energy_std = scale * 0.01 * random.uniform(0.5, 2.0, count)
        force_std = scale * 0.03 * random.uniform(0.3, 3.0, rows.size)

        def quantities(wrong: float) -> tuple[Quantity, Quantity]:
            own = np.random.default_rng(seed + 1)
            place = np.tile(np.repeat(np.arange(atoms), 3), count)
            return (
                make_quantity(own, energy_std, frame, frame * 0 - 1, frame * 0, wrong=wrong),
                make_quantity(own, force_std, rows, place, numbers[place], wrong=wrong),
            )

        energy, forces = quantities(wrong)
        raws = (None, None) if raw is None else quantities(raw)
        nothing = np.zeros(0)
        std = np.sqrt(np.mean(forces.std.reshape(-1, 3) ** 2, axis=1))
        scores = {
            ENERGY_SCORE: energy.std / np.sqrt(atoms),
            FORCES_SCORE: std.reshape(count, atoms).mean(axis=1),
        }
        return Judged(
            name=name,
            role=role,
            frames=frames,
            energy=energy,
            forces=forces,
            stress=Quantity(*[nothing] * 8, *[np.zeros(0, dtype=np.int64)] * 3),
            raw_energy=raws[0],
            raw_forces=raws[1],
            force_error=forces.error.reshape(-1, 3),
            force_std=std,
            atomic_std=0.002 * random.uniform(0.5, 2.0, std.size),
            seen={},
            scores={key: values for key, values in scores.items() if values.any()},
        )

    return make


@pytest.fixture(scope="session")
def history() -> list[dict[str, Any]]:
    """Lines of a run of 40 epochs whose likelihood becomes negative."""
    return [
        {
            "epoch": epoch,
            "learning_rate": 0.01 / epoch,
            "train": {"loss": 50 / epoch - 5},
            "valid": {"loss": 40 / epoch - 4, "energy_mae": 9 / epoch, "forces_mae": 90 / epoch},
        }
        for epoch in range(1, 41)
    ]


@pytest.fixture(scope="session")
def launch() -> Iterator[Callable[..., Any]]:
    """Start Chromium with more flags; each kind is started once."""
    program = next((path for path in map(shutil.which, CHROMIUM) if path), None)
    if program is None:
        pytest.skip("no chromium: apt-get install chromium, or any package that provides it")
    sync = pytest.importorskip("playwright.sync_api", reason="pip install -e '.[dev]'")
    with sync.sync_playwright() as playwright:
        started: dict[tuple[str, ...], Any] = {}

        def start(*flags: str) -> Any:
            if flags not in started:
                started[flags] = playwright.chromium.launch(
                    executable_path=program, args=[*FLAGS, *flags], timeout=0
                )
            return started[flags]

        yield start
        for browser in started.values():
            browser.close()


class Visit:
    """A page in a browser, with everything it complained of or asked the network for."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.route("**/*", self._route)
        page.goto(path.as_uri())
        page.wait_for_function("typeof bayraceReport === 'object'")

    def _console(self, message: Any) -> None:
        driver = "GL Driver Message" in message.text  # software rendering is slow and says so
        if message.type in ("error", "warning") and not driver:
            self.complaints.append(message.text)

    def _route(self, route: Any) -> None:
        url = route.request.url
        if url.startswith(("file:", "data:", "blob:")):
            route.continue_()
        else:
            self.requests.append(url)
            route.abort()

    def download(self, selector: str) -> str:
        """What a click on a button saves."""
        with self.page.expect_download() as caught:
            self.page.click(selector)
        return Path(caught.value.path()).read_text(encoding="utf-8")


@pytest.fixture
def visit(launch: Callable[..., Any]) -> Iterator[Callable[..., Visit]]:
    """Open a page in a fresh context."""
    contexts = []

    def go(path: Path, *, width: int = 1200, scheme: str = "light", webgl: bool = False) -> Visit:
        browser = launch(*SOFTWARE_GL) if webgl else launch("--disable-3d-apis")
        viewport = {"width": width, "height": 900}
        context = browser.new_context(viewport=viewport, color_scheme=scheme)
        context.set_default_timeout(0)  # a busy machine takes its time; pytest ends what hangs
        contexts.append(context)
        return Visit(context.new_page(), path)

    yield go
    for context in contexts:
        context.close()
