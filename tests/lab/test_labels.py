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


def test_code_of_ones_own_is_told_apart_only_where_its_content_differs(tmp_path):
    head = "import rewire\n\ndef mine(*, density, every, until):\n"
    text = head + "    return rewire.set_(density=density, every=every, until=until)\n"
    (tmp_path / "mine.py").write_text(text)
    method = f"{tmp_path}/mine.py:mine"
    runs = [Run(), Run(method=method)]
    assert distinct_labels(runs) == ["ggr seed 0", "mine seed 0"]
    assert common_label(runs[1:]) == "vgg-small digits mine 97% erk"
    (tmp_path / "mine.py").write_text(text + "# changed\n")
    runs.append(Run(method=method))
    labels = [f"mine code {run.code[0].digest[:6]} seed 0" for run in runs[1:]]
    assert distinct_labels(runs) == ["ggr seed 0", *labels]
    assert len(set(labels)) == 2
