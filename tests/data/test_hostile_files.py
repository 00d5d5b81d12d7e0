"""Data files that are wrong in ways that cost minutes or gigabytes, or end in a traceback."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bayrace.data.frame import DataError, LabelKeys
from bayrace.data.read import read_frames
from bayrace.data.split import split

KEYS = LabelKeys(energy=None, forces=None, stress=None, virial=None, config_type=None)
ATOM = "H 0.0 0.0 0.0\n"


def read(path: Path, text: str):
    path.write_text(text)
    return read_frames(path, keys=KEYS, config_weights={})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'1\nnote="\xe9t\xe9"\nH 0.0 0.0 0.0\n', r"frame 0: b'\\xe9' is not UTF-8; .*iconv"),
        (b"\xef\xbb\xbf1\nx\nH 0.0 0.0 0.0\n", "byte order mark"),
    ],
    ids=["Latin-1", "byte order mark"],
)
def test_other_encodings_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.xyz").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_frames(tmp_path / "x.xyz", keys=KEYS, config_weights={})


def test_lines_of_windows_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.xyz").write_bytes(b"1\r\nx\r\nH 0.5 0.0 0.0\r\n" * 2)
    (first, _) = read_frames(tmp_path / "x.xyz", keys=KEYS, config_weights={})
    assert first.positions.tolist() == [[0.5, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"1\nx\n{ATOM}" + "VEC1 1 0 0\n" * 5000 + "what\n", "expected the number of atoms"),
        (f"-5\nx\n{ATOM}", "announces -5 atoms"),
        (f"-1\nx\n{ATOM}", "announces -1 atoms"),
        (f"{10**30}\nx\n{ATOM}", "truncated"),
        (f"1\n{'a' * 2_000_000}\n{ATOM}", "characters"),
        (f"1\nProperties=species:S:1:pos:R:3:x:R:99999999\n{ATOM}", "announces 100000003 columns"),
        (f'1\nProperties="species:S:1:pos:R:3:x:R:99999999"\n{ATOM}', "columns"),
    ],
    ids=["VEC", "negative", "minus one", "huge", "comment", "columns", "quoted columns"],
)
def test_hostile_xyz(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / "a.xyz", text)


def test_vectors_after_a_frame_are_read(tmp_path: Path) -> None:
    text = "1\nx\nH 0 0 0\nVEC1 5 0 0\nVEC2 0 5 0\nVEC3 0 0 5\n" * 2
    assert len(read(tmp_path / "a.xyz", text)) == 2


@pytest.mark.parametrize(
    "charges",
    [["C", "H", "H"], [6.0, 1.0, 1.0], [6, 1, -1], [6, 1, 119], [[6, 1, 1]], []],
    ids=["symbols", "floats", "negative", "unknown", "nested", "none"],
)
def test_hostile_charges(tmp_path: Path, charges: list[object]) -> None:
    path = tmp_path / "a.npz"
    coords = np.zeros((2, len(charges), 3))
    arrays = {"coords": coords, "forces": coords, "energies": np.zeros(2)}
    np.savez(path, nuclear_charges=np.array(charges), **arrays)
    with pytest.raises(DataError, match="nuclear_charges"):
        read_frames(path, keys=KEYS, config_weights={})


def test_an_npz_that_announces_what_it_has_not(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, nuclear_charges=np.zeros((111, 222, 333), dtype=np.uint8))
    path.write_bytes(path.read_bytes().replace(b"(111, 222, 333)", b"(9999999999999)"[:15]))
    with pytest.raises(DataError, match=r"a\.npz"):
        read_frames(path, keys=KEYS, config_weights={})


def test_one_frame_gets_advice_that_can_be_followed(tmp_path: Path) -> None:
    frames = read(tmp_path / "a.xyz", f"1\nx\n{ATOM}")
    with pytest.raises(
        DataError, match=r"valid=0\.1 of 1 frame: .*more frames.*data\.valid="
    ) as got:
        split(frames, valid=0.1, seed=0)
    assert "below 1" not in str(got.value)
