from dataclasses import replace

from rewire.lab.labels import common_label, distinct_labels, unique_labels
from rewire.lab.run import Run


def test_labels_show_what_differs_and_nothing_else():
    runs = [Run(model="mlp", epochs=5, lr=lr, seed=seed) for lr in (0.1, 0.2) for seed in (0, 1)]
    assert distinct_labels(runs) == ["lr 0.1 seed 0", "lr 0.1 seed 1", "lr 0.2 seed 0", "lr 0.2 seed 1"]
    assert common_label(runs) == "mlp digits ggr 97% erk epochs 5"


def test_a_dense_run_has_no_sparsity():
    runs = [Run(), Run(sparsity=0.9), Run(method="dense", sparsity=0.0)]
    assert distinct_labels(runs) == ["ggr 97% seed 0", "ggr 90% seed 0", "dense seed 0"]


def test_no_two_labels_are_alike():
    run = Run()
    changes = [{"width": 0.5}, {"growth": "random"}, {"init": "fan_in"}, {"limit": 9}, {"precision": "float64"}]
    runs = [run, *(replace(run, **change) for change in changes)]
    assert len(set(distinct_labels(runs))) == len(runs)
    assert unique_labels([run, run], ["a", "b"]) == ["seed 0 in a", "seed 0 in b"]
