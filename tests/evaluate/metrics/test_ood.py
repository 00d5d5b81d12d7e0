"""AUROC and AUPR by hand and against scikit-learn; scores of structures by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from bayrace.evaluate.metrics.ood import Detection, aupr, auroc, detections, structure_scores


def test_by_hand() -> None:
    known, unknown = np.array([1.0, 2.0, 3.0]), np.array([2.5, 4.0])
    assert auroc(known, unknown) == pytest.approx(5 / 6)
    assert auroc(unknown, known) == pytest.approx(1 / 6)
    assert aupr(known, unknown) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert auroc(known, known + 5) == 1.0
    assert aupr(known, known + 5) == 1.0


def test_no_skill() -> None:
    assert auroc(np.ones(4), np.ones(2)) == 0.5
    assert aupr(np.ones(4), np.ones(2)) == pytest.approx(1 / 3)


def test_ties_as_in_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    known = np.round(generator.normal(size=200), 1)
    unknown = np.round(generator.normal(0.5, size=120), 1)
    truth = np.repeat([0, 1], [200, 120])
    scores = np.concatenate([known, unknown])
    assert auroc(known, unknown) == pytest.approx(roc_auc_score(truth, scores))
    assert aupr(known, unknown) == pytest.approx(average_precision_score(truth, scores))


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="no unknown structures"):
        auroc(np.ones(1), np.zeros(0))
    with pytest.raises(ValueError, match="1 scores of known structures are nan"):
        aupr(np.array([np.nan]), np.ones(1))


def test_scores_of_structures_by_hand() -> None:
    atoms = np.array([4, 1])
    std = np.zeros((5, 3))
    std[1] = [3.0, 0.0, 0.0]
    std[4] = [2.0, 2.0, 2.0]
    found = structure_scores(atoms, {"total": np.array([6.0, 5.0])}, {"epistemic": std})
    assert list(found) == ["energy_total", "forces_mean_epistemic", "forces_max_epistemic"]
    assert found["energy_total"] == pytest.approx([3.0, 5.0])
    assert found["forces_max_epistemic"] == pytest.approx([math.sqrt(3), 2.0])
    assert found["forces_mean_epistemic"] == pytest.approx([math.sqrt(3) / 4, 2.0])


def test_scores_that_say_nothing_are_none() -> None:
    known = {"a": np.array([1.0, 2.0]), "b": np.zeros(2), "c": np.array([1.0, np.nan])}
    unknown = {"a": np.array([3.0]), "b": np.zeros(1), "c": np.ones(1)}
    assert detections(known, unknown) == {"a": Detection(2, 1, 1.0, 1.0), "b": None, "c": None}
