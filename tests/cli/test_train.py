from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time

import ase.io
import pytest
import torch
import yaml

from bayrace.config import load_config
from bayrace.potential.potential import Potential
from bayrace.train import checkpoint

QUICK = ("-o", "model.preset=tiny", "-o", "train.max_epochs=2", "-o", "train.batch_size=4")


def test_the_folder_of_a_run_is_complete(trained):
    names = {path.name for path in trained.iterdir()}
    assert names >= {"config.yaml", "history.jsonl", "last.ckpt", "best.ckpt", "model.bayrace"}
    lines = (trained / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]
    tests = json.loads((trained / "test.json").read_text())
    assert set(tests) == {"cold", "hot"}
    assert tests["cold"]["forces"]["count"] == 4 * 9 * 3


def test_what_is_printed(trained):
    printed = (trained / "printed.txt").read_text()
    assert "9 training and 3 validation structures" in printed
    assert "epoch 2/2  step 6" in printed
    assert "meV/Å" in printed
    assert "cold: 4 frames" in printed
    assert "forces on O" in printed
    assert f"potential: {trained / 'model.bayrace'}" in printed


def test_the_potential_knows_its_run(trained, model):
    potential = Potential.load(model)
    resolved = load_config(trained / "config.yaml")
    assert potential.config == resolved.model_dump(mode="json")
    assert potential.statistics["train_frames"] == 9
    assert set(potential.references) == {1, 6, 8}


def test_a_data_file_is_enough(bayrace, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = bayrace("train", data / "train.xyz", *QUICK)
    assert result.exit_code == 0, result.output
    assert Potential.load(tmp_path / "runs" / "train" / "model.bayrace").elements == (1, 6, 8)


def test_isolated_atoms_become_references(bayrace, data, tmp_path):
    from bayrace.data.embedded import embedded, embedded_frames

    atoms = embedded("ethanol-atoms")
    files = f"data.train=[{data}/train.xyz, {atoms}]"
    result = bayrace("train", data / "train.xyz", *QUICK, "-o", files, "-o", f"output={tmp_path}/r")
    assert result.exit_code == 0, result.output
    assert "reference energies of isolated atoms" in result.stdout
    references = Potential.load(tmp_path / "r" / "model.bayrace").references
    assert references == {int(f.numbers[0]): f.energy for f in embedded_frames("ethanol-atoms")}


def test_a_run_is_not_written_over_by_accident(bayrace, data, tmp_path):
    folder = tmp_path / "run"
    arguments = ("train", data / "train.xyz", *QUICK, "-o", f"output={folder}")
    assert bayrace(*arguments).exit_code == 0
    before = (folder / "model.bayrace").read_bytes()
    refused = bayrace(*arguments, "-o", "seed=1")
    assert refused.exit_code == 2
    assert "exists and is not empty; continue that run with --resume" in refused.stderr
    assert (folder / "model.bayrace").read_bytes() == before
    assert bayrace(*arguments, "-o", "seed=1", "--overwrite").exit_code == 0
    assert (folder / "model.bayrace").read_bytes() != before


def test_resume_continues_to_the_same_end(bayrace, data, tmp_path):
    def train(name, epochs, *more):
        source = tmp_path / name if more else data / "train.xyz"
        # the cosine's horizon would depend on the number of epochs
        steady = (*QUICK, "-o", "train.schedule=constant")
        options = () if more else (*steady, "-o", f"output={tmp_path / name}")
        return bayrace("train", source, *options, "-o", f"train.max_epochs={epochs}", *more)

    assert train("whole", 4).exit_code == 0
    assert train("parts", 2).exit_code == 0
    result = train("parts", 4, "--resume")
    assert result.exit_code == 0, result.output
    assert "epoch 3/4" in result.stdout
    assert "epoch 2/4" not in result.stdout
    whole, parts = (Potential.load(tmp_path / n / "model.bayrace") for n in ("whole", "parts"))
    assert all((whole.members[k] == parts.members[k]).all() for k in whole.members)


def test_kill_nine_and_resume_end_with_the_same_bits(bayrace, data, tmp_path):
    """The whole network in float64, killed in the middle of an epoch."""

    def command(folder, *more):
        options = {
            "output": folder,
            "model.preset": "tiny",
            "model.dtype": "float64",
            "train.batch_size": 2,
            "train.max_epochs": 4,
            "train.checkpoint_every": 0.001,
            "train.threads": 1,
        }
        overrides = [text for key, value in options.items() for text in ("-o", f"{key}={value}")]
        return [
            sys.executable,
            "-m",
            "bayrace.cli.main",
            "train",
            data / "train.xyz",
            *overrides,
            *more,
        ]

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(whole), check=True, capture_output=True)
    while True:
        with subprocess.Popen(command(killed, "--overwrite"), stdout=subprocess.DEVNULL) as process:
            while not _in_the_middle(killed) and process.poll() is None:
                time.sleep(0.002)
            process.kill()
        if process.returncode == -signal.SIGKILL:
            break  # else it ended before we, on a busy machine, had looked
        assert process.returncode == 0
    subprocess.run(command(killed, "--resume"), check=True, capture_output=True)
    for name in (checkpoint.LAST, checkpoint.BEST):
        once, again = (checkpoint.load(folder / name)[0] for folder in (whole, killed))
        assert once.keys() == again.keys()
        assert all(torch.equal(once[key], again[key]) for key in once)


def _in_the_middle(folder):
    """Whether the last checkpoint lies within an epoch after the first."""
    if not (folder / checkpoint.LAST).is_file():
        return False
    try:
        counters = checkpoint.load(folder / checkpoint.LAST)[1]["counters"]
    except checkpoint.CheckpointError:  # replaced between the header and the tensors
        return False
    return counters["epoch"] >= 1 and counters["batch"] >= 2


def test_nothing_to_resume(bayrace, data, tmp_path):
    result = bayrace("train", data / "train.xyz", "--resume", "-o", f"output={tmp_path}/none")
    assert result.exit_code == 2
    assert "has no last.ckpt to resume from" in result.stderr


def test_time_ends_a_run(bayrace, data, tmp_path):
    arguments = ("-o", "train.max_epochs=100000", "--max-time", "2s", "-o", f"output={tmp_path}/r")
    result = bayrace("train", data / "train.xyz", *QUICK, *arguments)
    assert result.exit_code == 0, result.output
    assert "time is up" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-o", "train.learning_rate=1"), "did you mean train.lr?"),
        (("--max-time", "soon"), "train.max_time: 'soon' is not valid"),
        (("-o", "data.energy_key=REF_energy"), "no frame has the label 'REF_energy'"),
        (("-o", "data.valid=12"), "valid=12 of 12 frames"),
        (("-o", "model.hidden=8x0e+8x1o"), "an equivariant force covariance is read from 2e"),
        (("-o", "loss.stress=1"), "stress"),
        (("-o", "data.references={Xx: 1.0}"), "'Xx'"),
    ],
)
def test_mistakes_are_explained_and_leave_nothing_behind(bayrace, data, tmp_path, options, message):
    folder = tmp_path / "run"
    result = bayrace("train", data / "train.xyz", *QUICK, "-o", f"output={folder}", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not folder.exists()


def test_a_missing_file(bayrace, tmp_path):
    result = bayrace("train", tmp_path / "none.xyz")
    assert result.exit_code == 2
    assert "no such file" in result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_resume(bayrace, data, tmp_path, number):
    folder = tmp_path / "run"
    code = "from bayrace.cli.main import app; app()"
    arguments = (*QUICK, "-o", f"output={folder}", "-o", "train.max_epochs=100000")
    process = subprocess.Popen(
        [sys.executable, "-c", code, "train", str(data / "train.xyz"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    history = folder / "history.jsonl"
    while not (history.exists() and history.stat().st_size):
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(number)
    out, errors = process.communicate()
    assert process.returncode == 130, errors
    assert f"continue with: bayrace train {folder} --resume" in out
    assert Potential.load(folder / "model.bayrace").statistics["reason"] == "interrupted"
    epochs = len(history.read_text().splitlines())
    again = bayrace("train", folder, "--resume", "-o", f"train.max_epochs={epochs + 2}")
    assert again.exit_code == 0, again.output
    assert yaml.safe_load((folder / "config.yaml").read_text())["model"]["preset"] == "tiny"


def test_a_diverging_run_names_frames_and_exits_cleanly(bayrace, data, tmp_path):
    options = (
        "-o",
        "train.lr=1e20",
        "-o",
        "train.max_gradient_norm=null",
        "-o",
        f"output={tmp_path}/run",
    )
    result = bayrace("train", data / "train.xyz", *QUICK, *options)
    assert result.exit_code == 2
    assert "training diverged" in result.stderr
    assert "train.xyz, frame" in result.stderr


def test_data_that_look_wrong_are_warned_of_and_refused_by_strict(bayrace, data, tmp_path):
    atoms = ase.io.read(data / "train.xyz", index=":")
    atoms[4].calc.results["energy"] += 700.0
    for each in atoms:
        each.calc.results["forces"] *= -1
    ase.io.write(tmp_path / "odd.xyz", atoms, format="extxyz")
    arguments = ("train", tmp_path / "odd.xyz", *QUICK, "-o", f"output={tmp_path / 'run'}")
    strict = bayrace(*arguments, "--strict")
    assert strict.exit_code == 2
    assert "look wrong in 2 ways" in strict.stderr
    assert "change their sign" in strict.stderr
    assert "frame 4: energy per atom" in strict.stderr
    assert not (tmp_path / "run").exists()


def test_set_is_the_name_of_overrides(bayrace, tmp_path):
    for option, note in (("-s", False), ("--set", False), ("-o", True), ("--override", True)):
        result = bayrace("train", tmp_path / "no.xyz", option, "train.lr=-1")
        assert result.exit_code == 2
        assert "train.lr" in result.stderr
        assert ("are called -s and --set now" in result.stderr) is note
    text = bayrace("train", "--help").stdout
    assert "--set" in text
    assert "--override" not in text


def test_brackets_in_names_are_printed_as_they_are(bayrace, data, tmp_path, monkeypatch):
    """They were taken for colours, so that the potential seemed to be in another folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(data / "train.xyz", "[bold]x[red].xyz")
    result = bayrace("train", "[bold]x[red].xyz", *QUICK)
    assert result.exit_code == 0, result.output
    assert "potential: runs/[bold]x[red]/model.bayrace" in result.stdout
    told = bayrace("evaluate", "runs/[bold]x[red]/model.bayrace", "[bold]x[red].xyz")
    assert "[bold]x[red].xyz: 12 frames" in told.stdout
    assert "warning: [bold]x[red]" in told.stderr


@pytest.mark.parametrize(
    ("output", "remedy"),
    [("/dev/null", "name a folder"), ("x" * 300, "give a shorter name")],
)
def test_folders_that_cannot_be_say_what_to_do(bayrace, data, output, remedy):
    result = bayrace("train", data / "train.xyz", *QUICK, "-s", f"output={output}")
    assert result.exit_code == 2
    assert remedy in result.stderr


def test_what_a_training_begins_with_and_how_well_sigma_is_known(bayrace, data, trained, tmp_path):
    assert "start  random weights" in (trained / "printed.txt").read_text()
    changes = ("model.cutoff=4.5", "train.max_epochs=1", "data.valid=1", f"output={tmp_path}/run")
    options = [part for change in changes for part in ("-s", change)]
    result = bayrace("train", data / "train.xyz", *options)
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())
    assert "start random weights; the pretrained ones are for preset small and molecules" in shown
    assert "calibrated on 1 validation structure; so few tell its size roughly" in shown


def test_a_folder_that_is_no_run_is_named(bayrace, tmp_path):
    result = bayrace("train", tmp_path)
    assert result.exit_code == 2
    assert f"{tmp_path}: a folder without config.yaml" in result.stderr
