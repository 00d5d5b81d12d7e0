"""Running a tape: kernels are loaded, arrays find their places in memory, and C does the rest.

A program has a few parts, and each is one call, or one for each of several members. What a later
part reads of an earlier one lives until it has run; all other arrays share memory as soon as their
last reader is done.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayrace.nn.compiler import build
from bayrace.nn.contraction import parse_product
from bayrace.nn.kernels import DTYPES, lanes_for
from bayrace.nn.plan import parse_plan
from bayrace.nn.products import written_out
from bayrace.nn.program import messages
from bayrace.nn.program.memory import Block, Pool
from bayrace.nn.program.tape import Source, Step, Value
from bayrace.nn.sources import source_text

Integers = NDArray[np.int64]

_SETTING = {"gate", "geometry", "geometry_back", "geometry_tangent", "send", "send_tangent", "turn"}
_ALIGN = 16  # numbers: a line of the cache in single precision


class UnsupportedError(ValueError):
    """A network whose channels do not fill vectors."""


@dataclass(frozen=True)
class Sizes:
    """Rows of the arrays of a run."""

    threads: int
    atoms: int
    pairs: int
    edges: int
    structures: int

    def numbers(self) -> list[int]:
        """As the C sources count them."""
        return [self.threads, self.atoms, self.pairs, self.edges, self.structures]


class _Room(NamedTuple):
    """The memory of a part, in bytes."""

    counts: tuple[int, int, int]  # of atoms, pairs and structures
    size: int
    starts: Integers  # of its arrays


class Program:
    """Steps in parts, ready to run.

    `given` are the arrays that a caller passes in, results included; every other one has a place in
    the memory of the part that first writes it.
    """

    def __init__(
        self, parts: Sequence[Sequence[Step]], given: Sequence[Value], dtype: torch.dtype
    ) -> None:
        self.dtype = dtype
        self.given = {value: place for place, value in enumerate(given)}
        self._kept: list[Any] = []  # what C holds addresses of
        self._places: dict[Value, int] = dict(self.given)
        self._constants: list[tuple[int, int]] = []
        kernels = _load(
            {step.source for part in parts for step in part}, _lanes(parts, dtype), dtype
        )
        self._perform = kernels[_STEPS].perform
        self._perform.restype = None
        self._perform.argtypes = [ctypes.c_long, *[ctypes.c_void_p] * 3]
        written: set[Value] = set()
        self._parts = [self._encoded(part, kernels, written) for part in parts]
        self._memory, self._pool = _memories(parts, set(given)), Pool()
        self._widths = [
            np.array([_row(slot) for slot in memory.slots], dtype=np.int64).reshape(-1, 4)
            for memory in self._memory
        ]
        self._rooms: dict[int, _Room] = {}
        self._where = [
            (
                np.array([self._places[value] for value in memory.slot_of], dtype=np.int64),
                np.array(list(memory.slot_of.values()), dtype=np.int64),
            )
            for memory in self._memory
        ]

    @property
    def places(self) -> int:
        """How many arrays a table has."""
        return len(self._places)

    def table(self, given: Mapping[Value, Tensor], *, start: Integers | None = None) -> Integers:
        """Addresses of all arrays, those of a caller filled in; others as in a table to start."""
        table = np.zeros(len(self._places), dtype=np.int64) if start is None else start.copy()
        for place, address in self._constants if start is None else ():
            table[place] = address
        for value, tensor in given.items():
            table[self.given[value]] = tensor.data_ptr()
        return table

    def run(
        self, part: int, table: Integers, sizes: Sizes, *, onward: Sequence[Integers] = ()
    ) -> Block:
        """Run a part; what it leaves for the next one lives in the returned memory.

        Then run it again for each of `onward`, by which the addresses move: members with arrays of
        their own work in the same memory, one after another.
        """
        room = self._room(part, sizes)
        memory = self._pool.take(room.size)
        table[self._where[part][0]] = memory.address + room.starts
        steps, code = self._parts[part]
        run = (ctypes.c_long * 5)(*sizes.numbers())
        self._perform(steps, code.ctypes.data, run, table.ctypes.data)
        for distances in onward:
            table += distances
            self._perform(steps, code.ctypes.data, run, table.ctypes.data)
        return memory

    def _room(self, part: int, sizes: Sizes) -> _Room:
        """Where the arrays of a part are; most runs have the sizes of the last one."""
        counts = sizes.atoms, sizes.pairs, sizes.structures
        last = self._rooms.get(part)
        if last is not None and last.counts == counts:
            return last
        numbers = -(-(self._widths[part] @ np.array([*counts, 1])) // _ALIGN) * _ALIGN
        ends = np.cumsum(numbers) * self.dtype.itemsize
        starts = (ends - numbers * self.dtype.itemsize)[self._where[part][1]]
        found = _Room(counts, int(ends[-1]) if len(ends) else 0, starts)
        self._rooms[part] = found
        return found

    def _encoded(
        self, part: Sequence[Step], kernels: dict[Source, Any], written: set[Value]
    ) -> tuple[int, Integers]:
        code: list[int] = []
        for step in part:
            adds = 0
            for k, value in enumerate(step.outputs):
                if value is not None and value in written:
                    adds |= 1 << k
            written.update(value for value in step.outputs if value is not None)
            if adds and step.name in _SETTING:
                raise AssertionError(f"{step.name} sets its results and cannot add to them")
            own = np.array([adds, *map(_bits, step.own)], dtype=np.int64)
            self._kept.append(own)
            function = ctypes.cast(getattr(kernels[step.source], step.name), ctypes.c_void_p).value
            arrays = [self._place(value) for value in (*step.inputs, *step.outputs)]
            assert function is not None
            code += [function, own.ctypes.data, len(arrays), *arrays]
        return len(part), np.array(code, dtype=np.int64)

    def _place(self, value: Value | None) -> int:
        if value is None:
            return -1
        if value not in self._places:
            self._places[value] = len(self._places)
            if value.constant is not None:
                real = DTYPES[self.dtype] if value.constant.dtype.kind == "f" else "int64"
                array = np.ascontiguousarray(value.constant, dtype=_NUMPY.get(real, np.int64))
                self._kept.append(array)
                self._constants.append((self._places[value], array.ctypes.data))
        return self._places[value]


_STEPS = Source("steps.c")
_NUMPY = {"float": np.float32, "double": np.float64}


def _bits(number: int | float) -> int:
    """A whole number as it is, another as the bits of a double."""
    if isinstance(number, int):
        return number
    return int(struct.unpack("q", struct.pack("d", number))[0])


def _lanes(parts: Sequence[Sequence[Step]], dtype: torch.dtype) -> int:
    """Numbers in a vector of steps.c: what all columns of its maps are multiples of."""
    together = 0
    for part in parts:
        for step in part:
            if step.source == _STEPS and step.name in ("mix", "outer", "mix_few"):
                for column in step.own[5 if step.name == "mix_few" else 6 :: 8]:
                    together |= int(column)
    return _vector(together, dtype)


def _vector(channels: int, dtype: torch.dtype) -> int:
    lanes = lanes_for(channels, dtype)
    if channels % lanes:
        raise UnsupportedError(f"{channels} channels are no multiple of {lanes}")
    return lanes


def _load(sources: set[Source], lanes: int, dtype: torch.dtype) -> dict[Source, Any]:
    """The compiled libraries, side by side.

    Raises:
        CompilerError: they cannot be built here.
    """
    every = sorted(sources, key=repr)
    with ThreadPoolExecutor() as pool:
        loaded = pool.map(lambda source: _library(source, lanes, dtype), every)
        return dict(zip(every, loaded, strict=True))


@cache
def _library(source: Source, lanes: int, dtype: torch.dtype) -> Any:
    text = source_text(source.file, package=__package__)
    defines = {"REAL": DTYPES[dtype], "LANES": str(lanes)}
    if source.channels:
        defines["LANES"] = str(_vector(source.channels, dtype))
    if source.file == "products.c":
        text = written_out(parse_product(source.key), text)
        defines["CHANNELS"] = str(source.channels)
    if source.file != "messages.c":
        return build(text, defines)
    plan = parse_plan(source.key)
    widest = lanes_for(2**10, dtype) * dtype.itemsize
    registers = 32 if widest >= 64 else 16  # of AVX-512 and AVX2
    text = messages.generate(plan, source.channels, fixed=source.fixed, registers=registers)
    with ThreadPoolExecutor() as pool:
        libraries = pool.map(
            lambda name: build(text, defines | {f"PASS_{name}": "1"}), messages.PASSES
        )
        functions = zip(messages.PASSES, libraries, strict=True)
        return _Passes({name: getattr(library, name) for name, library in functions})


class _Passes:
    """Functions of several libraries."""

    def __init__(self, functions: dict[str, Any]) -> None:
        vars(self).update(functions)


@dataclass
class _Memory:
    """Slots (rows, width) of a part, and which of them an array has."""

    slots: list[Value]
    slot_of: dict[Value, int]


def _row(slot: Value) -> list[int]:
    """Numbers of a slot per atom, pair and structure, and always."""
    if isinstance(slot.rows, int):
        return [0, 0, 0, slot.rows * slot.width]
    return [slot.width * (slot.rows == name) for name in ("atoms", "pairs", "structures")] + [0]


def _memories(parts: Sequence[Sequence[Step]], given: set[Value]) -> list[_Memory]:
    """Where the arrays of every part live; those that a later part reads keep their slot."""
    memories = []
    elsewhere = set(given)
    for index, part in enumerate(parts):
        later = {
            value
            for other in parts[index + 1 :]
            for step in other
            for value in step.inputs
            if value
        }
        last: dict[Value, int] = {}
        for place, step in enumerate(part):
            for value in (*step.inputs, *step.outputs):
                if value is not None:
                    last[value] = place
        memory, free = _Memory([], {}), list[int]()
        for place, step in enumerate(part):
            for value in step.outputs:
                if value is not None and value not in elsewhere and value not in memory.slot_of:
                    memory.slot_of[value] = _take(memory.slots, free, value)
            done = {v for v in (*step.inputs, *step.outputs) if v in memory.slot_of}
            for value in sorted(done, key=lambda v: memory.slot_of[v]):
                if last[value] == place and value not in later:
                    free.append(memory.slot_of[value])
        elsewhere.update(memory.slot_of)
        memories.append(memory)
    return memories


def _take(slots: list[Value], free: list[int], value: Value) -> int:
    """A free slot with as many rows: the narrowest that suffices, else the widest, widened."""
    alike = [slot for slot in free if slots[slot].rows == value.rows]
    enough = [slot for slot in alike if slots[slot].width >= value.width]
    if enough:
        chosen = min(enough, key=lambda slot: slots[slot].width)
    elif alike:
        chosen = max(alike, key=lambda slot: slots[slot].width)
        slots[chosen] = Value(value.rows, value.width)
    else:
        slots.append(Value(value.rows, value.width))
        return len(slots) - 1
    free.remove(chosen)
    return chosen
