"""What the results page says of its numbers: the setting, the statistics, amendments, and how the runs were made."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rewire.lab.report.findings import Study, cpu_seconds
from rewire.lab.report.statistics import ENOUGH_SEEDS

UNPUBLISHED = ("2295625d91fe", "63f45937e928", "8605bfa2815a", "a85622936fb2")
UNSAID = ("device", "commit")  # of the environments: stated elsewhere on the page

SETTINGS = {
    "workstation": """\
**The setting.** Every run on CIFAR-100 with a convolutional network sees 600,000 images: 12 epochs (the paper: 100)
with the paper's learning-rate schedule scaled, the first of them warm-up, and 23 rewirings, four an epoch (the paper:
about 50, one an epoch). That choice was made on the digits; on VGG16 from a uniform start both were run, and [GGR's
lead depends on it](#what-would-make-ggr-better). The paper's VGG16 was trained on Tiny-ImageNet, for 200 epochs and
with 100 rewirings: a network that fails there, as in claim i, may not fail here, and the reverse. Most networks have a
quarter of the paper's channels (x0.25); those without a width have all of them. So this page does not repeat the
paper's numbers. It asks whether its statements hold in a smaller setting of the same regime. The digits are the 8x8
images of scikit-learn.

**Sparsities.** What makes a sparse network hard to train is the number of connections of a neuron: at quarter width,
96 % leaves a neuron in a hidden layer of VGG16 or ResNet-18 as many as 99 % does at full width, and 88 % as many as
97 %; the tables name both. 60 % would match 90 %, but from ERK, which claim h asks for, it makes 13 of ResNet-18's 21
layers dense, at full width 4. First layers have three inputs at any width: VGG16 at full width and
99 % starts with 17 weights for 64 neurons, at quarter width and 96 % with 17 for 16. MobileNetV2 has no such match: its
last convolution keeps 1280 channels, and 65 % of its weights lie in that layer and the classifier.

**Equal weights, not equal cost.** Methods are compared with equally many weights. GGR moves weights into early layers,
where each of them takes more multiply-adds: see [what each training costs](#cost-of-each-training).

**Amendments.** The first rules were written before the runs. What was changed since, and how many runs were known:

- *670 runs.* Seeds of claims went from three to five; connected ERK starts were added; MobileNetV2, of which there was
  no run, got a stem with stride 2; verdicts are given from three seeds on; contradictions allow for the number of
  effects. No verdict changed with these.
- *1258 runs.* The plan was cut to what can be computed: ResNet-18 got a stem with stride 2 as well; claim h is asked of
  ResNet-18 instead of VGG16; VGG16 at full width, of which eight runs were known, had three seeds even where a claim
  rests on it, and is not trained at 97 %; nor is MobileNetV2 at 96 % from a scattered uniform start, which lets no
  signal through.
- *1262 runs.* A review changed the rules of four claims, knowing most of the runs behind them. Claims d and e took the
  worst shortfall of every seed before averaging, and VGG16's two settings apart from the twelve of the digits; d was
  "contradicted" then, because GGR with random growth alone is more accurate on VGG16 from the uniform start, and by the
  rule of today it still would be if VGG16 alone counted. Claim e asked the same of all growths. Claim f was asked of
  VGG16 at quarter width and 88 %, where no method leaves a neuron empty, and was "not confirmed". Claim i, undecided at
  the time, counted failed seeds at both widths and then at full width alone, without an interval.
- *1284 runs.* Other times between rewirings were added for VGG16 at 96 % from a uniform start; no claim is decided by
  them.
- *1953 runs.* VGG16 at full width got the five seeds of the others, with three known: claims a, f and i rest on it, and
  were "not confirmed", "not confirmed" and "contradicted" by those. Claim f had been asked of MobileNetV2 and of VGG16
  at full width alone; a review found that ResNet-18 and VGG16 at quarter width leave as many neurons empty. By three
  seeds of the four cells it was "contradicted".
"""
}
STATISTICS = f"""\
**Statistics.** Runs with the same seed share the order of the data and, if the networks are alike, the first weights,
so all differences are paired by seed; in claim k seeds share the order of the data alone. Intervals are Student's t
intervals at 95 % over seeds, n is the number of seeds. Networks that did not learn count with the accuracy that they
reached, except for the accuracies in the tables at the end, which mark them and leave them out.

**Verdicts.** The common rule of the claims: confirmed if the 95 % intervals of all effects lie above zero, contradicted
if one lies below zero at a level that allows for the number of effects (Bonferroni), not confirmed if neither holds. As
intervals over a few seeds are wide, "not confirmed" does not show that there is no effect. A claim is undecided until
each of its effects has {ENOUGH_SEEDS} seeds. "So far" marks verdicts that planned runs may still change.

**Terms.** GGR, "the mix", grows half of a layer's new weights at its largest gradients and half at random; GGR SET
("random growth", "share by gradient 0") has GGR's numbers of new weights by layer, but all of them at random; GGR RigL
("gradient growth", "share 1") all of them by gradient. SET+RigL is the mix without moving weights between layers. A
uniform start ("uni") gives all layers one density, ERK more to small layers; both are scattered, their positions drawn
at random, while connected starts ("conn.") give every input and output a weight first. Masked: weights are stored as a
dense tensor and a mask; packed: only the weights that exist.
"""


def about(study: Study, experiment: str, scale: str, source: Path) -> str:
    """The section on how the numbers were made."""
    parts = [
        "## How to read this page\n",
        SETTINGS.get(scale, ""),
        STATISTICS,
        _origin(study, experiment, scale, source),
    ]
    return "\n".join(part for part in parts if part)


def _origin(study: Study, experiment: str, scale: str, source: Path) -> str:
    """The command, how much of it is done, and where it ran."""
    done, planned = study.progress([{}])
    hours = sum(map(cpu_seconds, study.done.values())) / 3600
    environments = [record.result["environment"] for record in study.done.values() if record.result is not None]
    file = f"docs/results/{source.name}"
    return f"""\
**Runs.** `rewire sweep {experiment} --scale {scale}`{_commits(environments)}.
**{done} of {planned} planned runs are done**, in {hours:.1f} hours of one core ({machines(environments)}).
This page is generated: `rewire report {file} --page docs/results.md` rebuilds it from the stored runs, and no number is
typed by hand. `rewire repeat {file}` trains one of the runs again, chosen at random, and compares every number bit for
bit; they are the same on a processor of the same kind.
"""


def _commits(environments: Iterable[dict[str, Any]]) -> str:
    """Where in the history the runs were made, most of them first."""
    counts = Counter(short_commit(environment["commit"]) for environment in environments if "commit" in environment)
    if not counts:
        return ""
    where = [f"`{commit}`{' †' * (commit in UNPUBLISHED)} ({count} runs)" for commit, count in counts.most_common()]
    mark = ". † is not part of the history that was published; a run of each was repeated bit for bit on later code"
    return f" at {', '.join(where)}{mark * any(commit in UNPUBLISHED for commit in counts)}"


def short_commit(commit: str) -> str:
    """A commit as people write it; ``-dirty`` stays.

    >>> short_commit("2401a8e0ec83deadbeef-dirty")
    '2401a8e0ec83-dirty'
    """
    return commit[:12] + ("-dirty" if commit.endswith("-dirty") else "")


def machines(environments: Iterable[dict[str, Any]]) -> str:
    """Versions and hardware in words; what differs between runs has several values."""
    values: dict[str, set[str]] = {}
    for environment in environments:
        for name, value in environment.items():
            values.setdefault(name, set()).add(str(value))
    return ", ".join(f"{name} {' or '.join(sorted(own))}" for name, own in values.items() if name not in UNSAID)
