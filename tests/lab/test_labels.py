from dataclasses import replace

from rewire.lab.labels import blocks, distinct_labels, in_folders, titles
from rewire.lab.run import Run


def test_labels_show_what_differs_and_nothing_else():
    runs = [Run(model="mlp", epochs=5, lr=lr, seed=seed) for lr in (0.1, 0.2) for seed in (0, 1)]
    assert distinct_labels(runs) == ["lr 0.1 seed 0", "lr 0.1 seed 1", "lr 0.2 seed 0", "lr 0.2 seed 1"]
    assert titles(runs) == ["all: mlp digits ggr 97% erk epochs 5"]


def test_a_dense_run_has_no_sparsity():
    runs = [Run(), Run(sparsity=0.9), Run(method="dense", sparsity=0.0)]
    assert distinct_labels(runs) == ["ggr 97% seed 0", "ggr 90% seed 0", "dense seed 0"]


def test_no_two_labels_are_alike():
    run = Run()
    changes = [{"width": 0.5}, {"growth": "random"}, {"init": "fan_in"}, {"limit": 9}, {"precision": "float64"}]
    runs = [run, *(replace(run, **change) for change in changes)]
    assert len(set(distinct_labels(runs))) == len(runs)
    assert in_folders(distinct_labels([run, run]), ["a", "b"]) == ["seed 0 in a", "seed 0 in b"]


def test_code_of_ones_own_is_told_apart_only_where_its_content_differs(tmp_path):
    head = "import rewire\n\ndef mine(*, density, every, until):\n"
    text = head + "    return rewire.set_(density=density, every=every, until=until)\n"
    (tmp_path / "mine.py").write_text(text)
    method = f"{tmp_path}/mine.py:mine"
    runs = [Run(), Run(method=method)]
    assert distinct_labels(runs) == ["ggr seed 0", "mine seed 0"]
    assert titles(runs[1:]) == ["all: vgg-small digits mine 97% erk"]
    (tmp_path / "mine.py").write_text(text + "# changed\n")
    runs.append(Run(method=method))
    labels = [f"mine code {run.code[0].digest[:6]} seed 0" for run in runs[1:]]
    assert distinct_labels(runs) == ["ggr seed 0", *labels]
    assert len(set(labels)) == 2


def test_blocks_keep_labels_short():
    common = {"model": "vgg16", "data": "cifar100", "every": 98, "store": "packed"}
    wide = [Run(method=method, sparsity=0.96, **common) for method in ("set", "rigl", "dsr", "ggr")]
    runs = [*wide, replace(wide[3], every=None), replace(wide[3], scope="network"), Run(), Run(method="set")]
    runs += [Run(model="vgg16", data="cifar100", method="dense", sparsity=0.0)]
    first, second = blocks(runs)
    assert first.title == "vgg16 cifar100 erk every 98 store packed"
    assert [label for label, _ in first.by_configuration()] == [
        "set 96%", "rigl 96%", "dsr 96%", "ggr 96%", "ggr 96% every default", "ggr 96% scope network", "dense",
    ]  # fmt: skip
    assert (second.title, second.labels) == ("vgg-small digits 97% erk", ["ggr", "set"])
    assert distinct_labels(runs)[-3:] == [
        "vgg-small digits ggr seed 0",
        "vgg-small digits set seed 0",
        "vgg16 cifar100 dense seed 0",
    ]


def test_functions_of_the_same_name_are_told_apart_by_their_files(tmp_path):
    head = "import rewire\n\ndef mine(*, density, every, until):\n"
    for name in ("a", "b"):
        text = f"    return rewire.ggr(density=density, every=every, until=until)  # {name}\n"
        (tmp_path / f"{name}.py").write_text(head + text)
    runs = [Run(method=f"{tmp_path}/{name}.py:mine") for name in ("a", "b")]
    assert distinct_labels(runs) == ["a.py:mine seed 0", "b.py:mine seed 0"]
