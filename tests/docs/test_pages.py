"""What README, docs and CONTRIBUTING show is true: Python runs, commands and keys exist.

Python blocks of a page run one after another, in a folder with a few structures and a potential of
one epoch; what would take minutes is made shorter first. Commands are parsed as `bayrace` does.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ase.io
import pytest
import torch
import typer
import yaml
from ase import Atoms, units
from ase.md.langevin import Langevin
from typer.testing import CliRunner

import bayrace
from bayrace.cli.main import app
from bayrace.config import make_config
from bayrace.config.active import ReplayConfig
from bayrace.config.load import make_section
from bayrace.config.loop import LoopConfig
from bayrace.config.oracle import OracleConfig
from bayrace.config.search import load_search
from bayrace.data.embedded import embedded, embedded_frames
from bayrace.models.noise import NO_NOISE
from bayrace.models.race.network import Race
from bayrace.potential.potential import Potential
from bayrace.testing import EXAMPLES, random_frame
from bayrace.testing.structures import small_spec

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS: Any = typer.main.get_command(app)
FREE = ("template", "schema", "info", "validate")  # commands that take no time
ELSEWHERE = {  # pages whose Python needs what a test of its own has; here its imports are seen to
    "engines.md": "tests/deploy",
    "foreign.md": "tests/models/test_foreign_page.py",
    "states.md": "tests/potential/test_states.py",
}
SHORTER = {  # page: what is replaced so that it takes seconds
    "README.md": {
        "fmax=0.02": "fmax=0.02, steps=2",
        "range(20)": "range(1)",
        "run(50)": "run(2)",
    },
    "ase.md": {"fmax=0.01": "fmax=0.01, steps=2"},
    "api.md": {
        '["train.max_time=30m"]': '["train.max_epochs=1", "model.preset=tiny"]',
        '{"max_time": "10m"}': '{"max_epochs": 1}, "model": {"preset": "tiny"}',
        "members=8)\nresult": "members=2, overwrite=True)\nresult",
    },
    "active.md": {
        "budget=20": "budget=2",
        "steps=4000": "steps=4, uncertainty_every=2",
        "[300, 600, 1000]": "[300]",
        "every=20": "every=2",
    },
}


@dataclass(frozen=True)
class Block:
    """Code of a page."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield Block(page, text.count("\n", 0, found.start()) + 2, found[1], found[2])


BLOCKS = [block for page in PAGES for block in blocks(page)]
PYTHON = {page.name: [b for b in blocks(page) if b.language == "python"] for page in PAGES}


def command_lines() -> Iterator[tuple[str, str]]:
    """Lines of shells with where they are; also those of `bayrace COMMAND --help`."""
    for block in BLOCKS:
        if block.language in ("sh", "bash"):
            joined = block.text.replace("\\\n", " ")
            yield from ((block.name, line.strip()) for line in joined.splitlines())
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").splitlines()
        yield from ((page.name, x.strip()) for x in lines if x.startswith("    bayrace "))
    for name, command in COMMANDS.commands.items():
        lines = [re.split(r"\b {2,}", x)[0] for x in (command.help or "").splitlines()]
        yield from ((f"{name} --help", x.strip()) for x in lines if x.startswith("  bayrace "))


def words_of(line: str) -> list[str]:
    """A command without comment, variables, pipes and what comes after it."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        del words[0]
    ends = [place for place, word in enumerate(words) if word in ("|", "&", "&&", ">", ";")]
    return words[: ends[0]] if ends else words


LINES = [(where, words) for where, line in command_lines() if (words := words_of(line))]
OURS = [(where, words[1:]) for where, words in LINES if Path(words[0]).name == "bayrace"]


def test_there_is_something_to_test() -> None:
    assert len(OURS) > 80
    assert sum(map(len, PYTHON.values())) > 20
    assert {where.partition(":")[0] for where, _ in OURS} >= {"README.md", "cli.md", "active.md"}


@pytest.mark.parametrize(
    ("where", "words"), OURS, ids=[f"{w}-{i}" for i, (w, _) in enumerate(OURS)]
)
def test_commands_are_understood(where: str, words: list[str]) -> None:
    """Every command and option exists and has a value that it takes."""
    arguments = [word for word in words if word != "..."]
    if arguments[0].startswith("-"):
        COMMANDS.make_context("bayrace", arguments, resilient_parsing=True)
        return
    command = COMMANDS.commands[arguments[0]]
    with command.make_context(arguments[0], arguments[1:]):
        pass


def test_scripts_and_targets_exist() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for where, words in LINES:
        if words[0] == "make":
            assert words[1] in targets, where
        scripts = [word for word in words[1:] if word.startswith("benchmarks/")]
        if Path(words[0]).name == "python" and scripts and scripts[0].endswith(".py"):
            source = (ROOT / scripts[0]).read_text(encoding="utf-8")
            folder = "".join(x.read_text("utf-8") for x in (ROOT / scripts[0]).parent.glob("*.py"))
            options = [word.partition("=")[0] for word in words if word.startswith("--")]
            missing = [option for option in options if f'"{option}"' not in source + folder]
            assert not missing, f"{where}: {scripts[0]} has no {missing}"


YAML = [block for block in BLOCKS if block.language == "yaml"]


@pytest.mark.parametrize("block", YAML, ids=lambda block: block.name)
def test_configurations_are_valid(block: Block, tmp_path: Path) -> None:
    raw = yaml.safe_load(block.text)
    if "pools" in raw:
        make_section(ReplayConfig, raw, source=block.name)
    elif "search" in raw:
        (tmp_path / "search.yaml").write_text(block.text, "utf-8")
        load_search(tmp_path / "search.yaml")
    elif set(raw) == {"oracle"}:
        make_section(OracleConfig, raw["oracle"], source=block.name)
    elif {"explore", "oracle"} & set(raw):
        make_section(LoopConfig, raw, source=block.name)
    else:
        data = {"train": "train.xyz"} | raw.pop("data", {})
        make_config(raw | {"data": data}, source=block.name)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that pages name."""
    folder = tmp_path_factory.mktemp("shown")
    files = {
        "train": (("train", 12), ("data", 12), ("pool", 12)),
        "valid": (("valid", 12),),
        "test": (("test", 8), ("more", 24), ("structure", 1), ("start", 1)),
        "hot": (("hot", 8),),
    }
    for part, named in files.items():
        for name, count in named:
            images = ase.io.read(embedded(f"ethanol-{part}"), f":{count}")
            ase.io.write(folder / f"{name}.xyz", images)
    raw = {
        "data": {"train": str(folder / "train.xyz"), "valid": str(folder / "valid.xyz")},
        "model": {"preset": "tiny"},
        "train": {"max_epochs": 1},
        "output": str(folder / "made"),
    }
    made = bayrace.train(raw)
    made.save(folder / "model.bayrace")
    (folder / "demo-output").mkdir()
    made.save(folder / "demo-output" / "model.bayrace")
    shutil.rmtree(folder / "made")
    return folder


def names_for(folder: Path) -> dict[str, Any]:
    """What the text around the blocks speaks of."""
    potential = Potential.load(folder / "model.bayrace")
    atoms: Atoms = ase.io.read(folder / "structure.xyz")
    atoms.calc = bayrace.Calculator(folder / "model.bayrace")
    return {
        "Potential": Potential,
        "potential": potential,
        "atoms": atoms,
        "list_of_atoms": [atoms],
        "frames": embedded_frames("ethanol-test")[:3],
        "hot": embedded_frames("ethanol-hot")[:3],
        "starts": embedded_frames("ethanol-test")[:1],
        "training_frames": embedded_frames("ethanol-train")[:12],
        "dynamics": Langevin(atoms, units.fs, temperature_K=300, friction=0.01, fixcm=False),
    }


@pytest.fixture(scope="module")
def own() -> dict[str, Any]:
    """A model and a posterior that a reader may have written."""
    model = Race(small_spec((1, 8), noise=NO_NOISE))
    params = model.init(0, dtype=torch.float64)
    return {
        "model": model,
        "params": params,
        "posterior": EXAMPLES["llpr"](model, params),
        "frame": random_frame((1, 8), 6, seed=0),
    }


RUNNABLE = [name for name, found in PYTHON.items() if found and name not in ELSEWHERE]


@pytest.mark.filterwarnings("ignore:.*calibration of.*")
@pytest.mark.parametrize("page", RUNNABLE)
def test_python_runs(
    page: str, shown: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(shown)
    names = names_for(shown)
    if page in ("api.md", "CONTRIBUTING.md"):
        names |= request.getfixturevalue("own")
    whole = "".join(block.text for block in PYTHON[page])
    for long in SHORTER.get(page, {}):
        assert long in whole, f"{page} has no {long} any more"
    if page == "active.md" and importlib.util.find_spec("tblite") is None:
        pytest.skip("labels need tblite")
    for block in PYTHON[page]:
        text = block.text
        for long, short in SHORTER.get(page, {}).items():
            text = text.replace(long, short)
        code = compile("\n" * (block.line - 1) + text, str(block.page), "exec", dont_inherit=True)
        exec(code, names)


@pytest.mark.parametrize("page", ELSEWHERE)
def test_names_exist(page: str) -> None:
    """Of ours, where other packages may be missing."""
    assert (ROOT / ELSEWHERE[page]).exists()
    for block in PYTHON[page]:
        for node in ast.walk(ast.parse(block.text)):
            ours = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bayrace")
            if ours and importlib.util.find_spec(str(node.module)):
                source = Path(str(importlib.util.find_spec(str(node.module)).origin)).read_text()
                for name in node.names:
                    assert re.search(rf"^(def|class) {name.name}\b", source, re.MULTILINE), (
                        name.name
                    )


@pytest.mark.parametrize("name", FREE)
def test_commands_that_cost_nothing_run(
    name: str, shown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shown)
    known = {path.name for path in shown.iterdir()}
    tried = 0
    for where, words in OURS:
        files = [word for word in words[1:] if re.search(r"\.(xyz|bayrace|yaml)$", word)]
        if words[0] == name and set(files) <= known and ".." not in " ".join(words):
            result = CliRunner().invoke(app, words)
            assert result.exit_code == 0, f"{where}: bayrace {' '.join(words)}: {result.output}"
            tried += 1
    assert tried or name in ("info", "validate")
