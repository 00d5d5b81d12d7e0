"""What a training needs before its first step: data that were read and checked, and the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bayrace.config import Config, ConfigError, LossConfig
from bayrace.config.build import label_keys, lambdas, model_spec, split_seed, train_settings
from bayrace.data.check import LabelNeeds, check_frames, check_labelled
from bayrace.data.dataset import Dataset
from bayrace.data.disk import DiskDataset
from bayrace.data.doubts import doubts, reference_doubts, voice
from bayrace.data.frame import DataError
from bayrace.data.read import Frame, elements_of, read_frames, split_isolated
from bayrace.data.reference import fit_references
from bayrace.data.split import split
from bayrace.data.statistics import target_references
from bayrace.data.unit_doubts import Doubt
from bayrace.models.race.network import Race
from bayrace.potential.potential import Potential
from bayrace.workflow.fit import Prepared, Splits
from bayrace.workflow.on_disk import check_disk, disk_parts, open_store, with_given


def prepare(config: Config, *, initial: Potential | None = None, strict: bool = False) -> Prepared:
    """Read and check the data, fit references on the training part, build graphs and network.

    References and network are those of `initial` where it is given. Data that look wrong are
    warned of; with `strict` they are refused.
    """
    splits = read_splits(config)
    references = _references(config, splits) if initial is None else dict(initial.references)
    if initial is None:
        voice(_doubts(config, splits, references), strict=strict)
    if splits.disk is not None and initial is None:
        references = with_given(references, config)
    elements = tuple(references) if splits.disk else elements_of(splits.train)
    elements = elements if initial is None else initial.elements
    for frames in splits.test.values():  # not after hours of training
        check_frames(frames, need_forces=False, elements=elements)
    for frames in (splits.valid, *splits.test.values()):
        check_labelled(frames)

    cutoff = config.model.cutoff if initial is None else initial.spec.cutoff

    def dataset(frames: Sequence[Frame]) -> Dataset:
        return Dataset(frames, elements=elements, cutoff=cutoff, references=references)

    return with_network(
        config, splits, dataset(splits.train), dataset(splits.valid), initial=initial
    )


def with_network(
    config: Config, splits: Splits, training: Dataset, valid: Dataset, *, initial: Potential | None
) -> Prepared:
    """What is ready with these data: the network that suits them, or that of `initial`."""
    if initial is None and not training.edges.any():
        raise DataError(
            f"{', '.join(config.data.train)}: no atom has another within the cutoff of "
            f"{training.cutoff:g} Å, so there is nothing to learn; give structures of several "
            "atoms, check the unit of lengths (Å), or raise model.cutoff"
        )
    spec = model_spec(config, training) if initial is None else initial.spec
    model: Any = spec.build() if initial is None else initial.model
    settings = train_settings(config)
    if settings.device == "cpu" and isinstance(model, Race):
        model.prepare(settings.torch_dtype)
    stream = None
    if splits.disk is not None:
        workers, disk = config.data.workers, splits.disk
        stream = DiskDataset(
            disk.store, disk.places, training, workers=workers, dtype=settings.dtype
        )
    weights = lambdas(config.loss, training)
    return Prepared(splits, training, valid, weights, spec, model, stream)


def label_needs(loss: LossConfig) -> LabelNeeds:
    """The labels that some training structure must have."""
    return LabelNeeds(
        need_energy=loss.energy > 0,
        need_forces=loss.forces > 0,
        need_stress=loss.stress_noise or loss.stress not in ("auto", 0),
    )


def read_splits(config: Config) -> Splits:
    """Read the files of a run and split off the validation set where no file is given."""
    data, keys = config.data, label_keys(config.data, config.target)

    def read(paths: Sequence[str]) -> tuple[list[Frame], dict[int, float]]:
        frames = read_frames(list(paths), keys=keys, config_weights=data.config_weights)
        return split_isolated(frames)

    store = open_store(config)
    if store is not None:
        check_disk(config)
    parts = None if store is None else disk_parts(config, store)
    frames, isolated = read(data.train) if parts is None else split_isolated(parts.sample)
    check_frames(
        frames,
        **label_needs(config.loss),
    )
    if isinstance(data.valid, tuple):
        training, valid = frames, read(data.valid)[0]
    elif parts is not None and parts.valid is not None:
        training, valid = frames, split_isolated(parts.valid)[0]
        check_frames(valid, need_forces=False)
    else:
        training, valid = drawn(frames, config, valid=data.valid)
    test = {name: read(paths)[0] for name, paths in data.test.items()}
    return Splits(training, valid, test, isolated, None if parts is None else parts.disk)


def drawn(
    frames: Sequence[Frame], config: Config, *, valid: int | float
) -> tuple[list[Frame], list[Frame]]:
    """Training and validation structures, as the configuration says to part them."""
    return split(frames, valid=valid, seed=split_seed(config), drawn=config.data.split)


def _references(config: Config, splits: Splits) -> dict[int, float]:
    given, target = config.data.references, config.target.build()
    if not target.is_energy:
        if not isinstance(given, str):
            raise ConfigError(
                f"data.references: are energies of atoms; those of {target.name} are fitted"
            )
        return target_references(splits.train, target)
    return fit_references(splits.train, given=splits.isolated if isinstance(given, str) else given)


def _doubts(config: Config, splits: Splits, references: Mapping[int, float]) -> list[Doubt]:
    """What looks wrong in the data of a run."""
    tests = {f"test {name}": frames for name, frames in splits.test.items()}
    if config.target.name != "energy":  # of which we know no usual size
        sets = {"train": splits.train, "valid": splits.valid, **tests}
        return doubts({name: [replace(f, energy=None) for f in sets[name]] for name in sets})
    given = not isinstance(config.data.references, str) or set(references) <= set(splits.isolated)
    return [
        *doubts({"train": splits.train, "valid": splits.valid, **tests}),
        *reference_doubts(splits.train, references, given=given),
    ]


def network_of(potential: Potential) -> Any:
    """The network of a potential, if it is one that can be trained here."""
    model = potential.model
    if getattr(potential.spec, "options", None) is None:
        raise ConfigError(
            f"model {potential.spec.name}: the weights of other packages' networks are not trained "
            "here; give it a posterior for new data with `bayrace adopt`"
        )
    return model
