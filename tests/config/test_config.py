from __future__ import annotations

import pytest
import yaml
from pydantic import ValidationError

from bayrace.config import (
    ConfigError,
    dump_config,
    format_duration,
    json_schema,
    load_config,
    make_config,
    parse_duration,
    template,
)
from bayrace.config.messages import known_keys
from bayrace.config.presets import PRESET_NAMES
from bayrace.models.race.presets import PRESETS

RAW = {"data": {"train": "train.xyz"}}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(90, 90), ("90", 90), (0.5, 0.5), ("45s", 45), ("30m", 1800), ("1h30m", 5400), ("2.5h", 9000),
     ("1d 2h", 93600), (" 10M ", 600)],
)  # fmt: skip
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "abc", "30 parsecs", "-5m", 0, -1, "nan", True, None, [3]])
def test_bad_durations_are_named(text):
    with pytest.raises(ValueError, match="is not a duration; use"):
        parse_duration(text)


def test_durations_are_shown_short():
    shown = [format_duration(seconds) for seconds in (0.2, 59, 187, 7500, 4 * 86400 + 3 * 3600)]
    assert shown == ["0s", "59s", "3m07s", "2h05m", "4d03h"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.learning_rate=1", "train.learning_rate: unknown key; did you mean train.lr?"),
        ("train.bach_size=1", "train.bach_size: unknown key; did you mean train.batch_size?"),
        ("model.r_max=5", "model.r_max: unknown key; did you mean model.cutoff?"),
        ("cutoff=5", "cutoff: unknown key; did you mean model.cutoff?"),
        ("model.lr=5", "model.lr: unknown key; did you mean train.lr?"),
        (
            "xyzzy.a=5",
            "xyzzy: unknown key; known here: seed, output, data, target, model, loss, train",
        ),
        ("train.lr=-1", "train.lr: -1 is not valid; must be 'auto', or must be greater than 0"),
        ("loss.kind=mae", "loss.kind: 'mae' is not valid; must be 'mse', 'nll_e', 'nll_jef'"),
        ("model.preset=huge", "model.preset: 'huge' is not valid; must be 'tiny', 'small'"),
        ("model.hidden=abc", "model.hidden: 'abc' is not valid; expected: Irreps"),
        ("model.mean_neighbours=x", "model.mean_neighbours: 'x' is not valid; must be 'auto', or"),
        ("data.valid=1.5", "data.valid: 1.5 is not valid; as a fraction"),
        ("data.valid=0", "data.valid: 0 is not valid; as a whole number"),
        ("data.valid=null", "data.valid: None is not valid; must be a fraction"),
        ("data.train=[]", "data.train: [] is not valid; must be a path"),
        ("data.references=iso", "data.references: 'iso' is not valid; must be \"auto\" or"),
        ("train.max_time=soon", "train.max_time: 'soon' is not valid; 'soon' is not a duration"),
        ("train.device=gpu", "train.device: 'gpu' is not valid; expected: auto, cpu"),
        ("train.lr=.nan", "train.lr: nan is not valid; must be"),
        ("train=fast", "train: 'fast' is not valid; must be a section with keys of its own"),
        ("loss.forces=0", "loss: forces has weight 0, but nll_jef learns its noise"),
        ("loss={stress: 0, stress_noise: true}", "loss: stress has weight 0"),
        ("loss.robust=huber", "loss: per_atom_energy and robust belong to kind mse"),
        ("train.lr", "override 'train.lr': write key.sub=value"),
        ("train..lr=1", "override 'train..lr=1': write key.sub=value"),
        ("train.lr=[1", "override 'train.lr=[1': '[1' is not a YAML value"),
    ],
)
def test_what_is_wrong_is_named(override, message):
    with pytest.raises(ConfigError) as caught:
        make_config(RAW, [override])
    assert message in str(caught.value)


def test_every_problem_is_listed_at_once():
    with pytest.raises(ConfigError) as caught:
        make_config({"seed": -1, "train": {"lr": 0, "epochs": 3}}, source="my.yaml")
    lines = str(caught.value).splitlines()
    assert lines[0] == "my.yaml:"
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "seed",
        "data",
        "train.lr",
        "train.epochs",
    ]
    assert "data: required and missing; add it to the file or give -s data=..." in lines[2]


def test_overrides_are_yaml_and_the_last_wins():
    overrides = [
        "train.lr=1e-3",
        "train.lr=2e-3",
        "model.radial_hidden=[8, 8]",
        "train.max_gradient_norm=null",
    ]
    overrides += ["data.references={H: -13.6}", "train.max_time=30m", "data.valid=20"]
    config = make_config(RAW, overrides)
    assert config.train.lr == 2e-3
    assert config.model.radial_hidden == (8, 8)
    assert config.train.max_gradient_norm is None
    assert config.data.references == {"H": -13.6}
    assert config.train.max_time == 1800
    assert config.data.valid == 20
    assert isinstance(config.data.valid, int)


def test_overrides_do_not_change_what_was_given():
    raw = {"data": {"train": "a.xyz"}, "train": {"lr": 0.5}}
    make_config(raw, ["train.lr=0.1"])
    assert raw["train"]["lr"] == 0.5


def test_a_preset_fills_what_is_left_out_and_nothing_else():
    config = make_config(RAW | {"model": {"preset": "3bpa", "cutoff": 4.5}, "train": {"lr": 0.02}})
    values = PRESETS["3bpa"]
    assert config.model.cutoff == 4.5
    assert config.model.hidden == values["model"]["hidden"]
    assert config.train.lr == 0.02
    assert config.train.max_epochs == values["train"]["max_epochs"]
    assert config.loss.forces == values["loss"]["forces"]


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_the_template_is_the_preset_written_out(preset):
    written = make_config(yaml.safe_load(template(preset)))
    assert written == make_config({"data": {"train": "train.xyz"}, "model": {"preset": preset}})
    assert None not in [getattr(written.model, name) for name in vars(written.model)]


def test_the_template_explains_every_key():
    lines = [line.strip() for line in template().splitlines()]
    for key in known_keys():
        name = key.rpartition(".")[2]
        places = [i for i, line in enumerate(lines) if line.lstrip("# ").startswith(f"{name}:")]
        assert any("#" in lines[i] or lines[i - 1].startswith("#") for i in places), key


def test_an_unknown_preset_is_the_only_complaint():
    with pytest.raises(ConfigError) as error:
        make_config(RAW, ["model.preset=smal"])
    assert str(error.value).count("model.") == 1


def test_an_unknown_preset_has_no_template():
    with pytest.raises(ValueError, match="preset 'big' is unknown; use one of tiny, small"):
        template("big")


def test_the_schema_describes_every_key():
    schema = json_schema()
    sections = [schema, *schema["$defs"].values()]
    for section in sections:
        assert section["additionalProperties"] is False
        for name, field in section["properties"].items():
            referred = schema["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})
            assert field.get("description", referred.get("description")), name
    assert schema["required"] == ["data"]


def test_a_dumped_configuration_reads_back_equal(tmp_path):
    config = make_config(
        RAW
        | {
            "data": {"train": ["a.xyz", "b.xyz"], "test": ["x/hot.xyz.gz", "y/cold.xyz@:10"]},
            "train": {"max_time": "2h"},
        }
    )
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(path) == config
    assert config.data.test == {"hot": ("x/hot.xyz.gz",), "cold": ("y/cold.xyz@:10",)}


def test_the_folder_of_a_run_is_named_after_its_file(tmp_path):
    path = tmp_path / "ethanol.yaml"
    path.write_text("data:\n  train: a.xyz\nloss:\n", encoding="utf-8")
    assert load_config(path).output == "runs/ethanol"
    assert load_config(path, ["output=here"]).output == "here"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"data: [", "not valid YAML"),
        (b"- a\n- b\n", "holds a list; a configuration has sections"),
        (b"\xff\xfe\x00", "not a text file"),
        (b"", "data: required and missing"),
    ],
)
def test_files_that_are_no_configuration(tmp_path, content, message):
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_config(path)


def test_missing_files_say_how_to_get_one(tmp_path):
    with pytest.raises(ConfigError, match=r"no such file; `bayrace template > .*none\.yaml`"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        load_config(tmp_path)


def test_a_configuration_cannot_change():
    config = make_config(RAW)
    with pytest.raises(ValidationError, match="frozen"):
        config.train.lr = 1.0
