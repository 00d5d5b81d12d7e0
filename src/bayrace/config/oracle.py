"""Configuration of oracles and of labelling: the sections `oracle` and `label`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from bayrace.config.fields import Seconds
from bayrace.config.load import ConfigError, make_section, read_yaml
from bayrace.config.section import Section
from bayrace.label.label import LabelSettings
from bayrace.label.oracle import Oracle
from bayrace.label.oracles.ase import AseOracle
from bayrace.label.oracles.command import CommandOracle, check_inside, split_command
from bayrace.label.oracles.pyscf import PyscfOracle
from bayrace.label.oracles.teacher import TeacherOracle
from bayrace.label.oracles.xtb import XtbOracle

KINDS = ("gfn1", "gfn2", "dft", "ase", "command", "teacher")


class XtbConfig(Section):
    """GFN1-xTB and GFN2-xTB by tblite."""

    charge: int = Field(default=0, description="Of every structure, e.")
    multiplicity: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="2S + 1; null: 1 or 2, by the number of electrons."
    )
    accuracy: float = Field(
        default=0.01, gt=0, description="Of the self-consistency; smaller is tighter."
    )
    max_iterations: int = Field(default=250, ge=1, description="Of the self-consistency.")
    electronic_temperature: float = Field(default=300.0, ge=0, description="K.")


class DftConfig(Section):
    """Density functional theory of molecules by PySCF."""

    functional: str = Field(default="pbe", min_length=1, description="As PySCF calls it; hf too.")
    basis: str = Field(default="def2-svp", min_length=1, description="As PySCF calls it.")
    charge: int = Field(default=0, description="Of every structure, e.")
    multiplicity: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="2S + 1; null: 1 or 2, by the number of electrons."
    )
    density_fit: bool = Field(default=False, description="Faster for larger molecules.")
    grid: int = Field(default=3, ge=0, le=9, description="Fineness of the integration grid.")
    tolerance: float = Field(
        default=1e-9, gt=0, description="Of the self-consistent energy, Hartree."
    )
    max_cycles: int = Field(default=100, ge=1, description="Of the self-consistency.")
    memory: int = Field(default=4000, ge=100, description="MB.")


class AseConfig(Section):
    """Any ASE calculator."""

    calculator: str = Field(
        default="", description="Import path: tblite.ase:TBLite, or path/to/file.py:Name."
    )
    arguments: dict[str, Any] = Field(default={}, description="Arguments of the calculator.")
    reuse: bool = Field(
        default=False, description="Make the calculator once per process, not once per structure."
    )


class CommandConfig(Section):
    """A program that reads a file and writes another."""

    command: str = Field(
        default="", description="Run in the folder of the files; {input}, {output}, {folder}."
    )
    input: str = Field(default="", description="Name of the file that is written: POSCAR.")
    output: str = Field(default="", description="Name of the file that is read: vasprun.xml.")
    input_format: str | None = Field(
        default=None, description="ASE's name of its format; null: by the name of the file."
    )
    output_format: str | None = Field(default=None, description="The same of the output.")
    write: dict[str, Any] = Field(default={}, description="More arguments of ase.io.write.")
    files: tuple[str, ...] = Field(
        default=(), description="Copied to the folder: INCAR, KPOINTS, POTCAR."
    )
    keep: str | None = Field(
        default=None, description="Folder that keeps all calculations; null: none is kept."
    )


class TeacherConfig(Section):
    """A bayrace potential."""

    model: str = Field(default="", description="Its file.")
    device: str = Field(default="cpu", description="auto, cpu or cuda.")


class OracleConfig(Section):
    """What labels structures; `oracle: gfn2` is short for its kind."""

    kind: Literal["gfn1", "gfn2", "dft", "ase", "command", "teacher"] = Field(
        default="gfn2",
        description="gfn1, gfn2: tight binding. dft: PySCF. ase: any calculator. command: any "
        "program. teacher: a potential.",
    )
    xtb: XtbConfig = Field(default=XtbConfig(), description="kinds gfn1 and gfn2.")
    dft: DftConfig = Field(default=DftConfig(), description="kind dft.")
    ase: AseConfig = Field(default=AseConfig(), description="kind ase.")
    command: CommandConfig = Field(default=CommandConfig(), description="kind command.")
    teacher: TeacherConfig = Field(default=TeacherConfig(), description="kind teacher.")

    @model_validator(mode="before")
    @classmethod
    def _named(cls, raw: Any) -> Any:
        return {"kind": raw} if isinstance(raw, str) else raw

    @model_validator(mode="after")
    def _complete(self) -> OracleConfig:
        needed = {
            "ase": ("calculator",),
            "command": ("command", "input", "output"),
            "teacher": ("model",),
        }
        for name in needed.get(self.kind, ()):
            if not getattr(getattr(self, self.kind), name).strip():
                raise ValueError(f"kind {self.kind} needs {self.kind}.{name}; give it")
        if self.kind == "command":
            split_command(self.command.command)
            for name in (self.command.input, self.command.output):
                check_inside(name)
        return self


class LabelConfig(Section):
    """How labels are computed."""

    workers: int = Field(default=1, ge=1, description="Calculations at a time, on this machine.")
    scheduler: str | None = Field(
        default=None, description="Address of a dask scheduler; null: on this machine."
    )
    threads: int = Field(default=1, ge=1, description="Of each calculation.")
    retries: int = Field(default=2, ge=0, description="Calls after a failed one.")
    timeout: Seconds | None = Field(
        default=None, description="Of one calculation: 30m, 2h, seconds; null: none."
    )
    max_force: float = Field(
        default=100.0, gt=0, description="A larger force is taken for a failure, eV/Å."
    )


def make_oracle(config: OracleConfig, *, timeout: float | None = None) -> Oracle:
    """The oracle of a configuration; `timeout` (s) ends the program of a command."""
    if config.kind in ("gfn1", "gfn2"):
        name: Any = {"gfn1": "GFN1-xTB", "gfn2": "GFN2-xTB"}[config.kind]
        return XtbOracle(name, **config.xtb.model_dump())
    if config.kind == "dft":
        return PyscfOracle(**config.dft.model_dump())
    if config.kind == "ase":
        return AseOracle(**config.ase.model_dump())
    if config.kind == "command":
        return CommandOracle(**config.command.model_dump(), timeout=timeout)
    return TeacherOracle(**config.teacher.model_dump())


def label_settings(config: LabelConfig) -> LabelSettings:
    """What labelling is told."""
    return LabelSettings(**config.model_dump())


def parse_oracle(text: str, arguments: Mapping[str, Any]) -> OracleConfig:
    """The oracle that a command line names.

    A kind (gfn2, dft), a YAML file with the section `oracle`, an import path (tblite.ase:TBLite),
    or a potential (model.bayrace). `arguments` are keys of the kind's section, or of the
    calculator.
    """
    if text.endswith((".yaml", ".yml")):
        raw = read_yaml(Path(text))
        section = raw.get("oracle", raw)
        if arguments:
            raise ConfigError(f"{text}: takes no arguments here; write {dict(arguments)} into it")
        return make_section(OracleConfig, section, source=text)
    source = f"oracle {text}"
    if text.endswith(".bayrace"):
        return _section("teacher", {"model": text} | dict(arguments), source)
    if ":" in text:
        return _section("ase", {"calculator": text, "arguments": dict(arguments)}, source)
    if text not in KINDS:
        raise ConfigError(
            f"{source}: unknown; use one of {', '.join(KINDS)}, an import path such as "
            "tblite.ase:TBLite, a potential (.bayrace), or a YAML file"
        )
    return _section(text, dict(arguments), source)


def _section(kind: str, values: Mapping[str, Any], source: str) -> OracleConfig:
    name = "xtb" if kind in ("gfn1", "gfn2") else kind
    return make_section(OracleConfig, {"kind": kind, name: values}, source=source)
