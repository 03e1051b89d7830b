"""The paper's claims, each with the rule by which runs decide it."""

from collections.abc import Callable
from dataclasses import dataclass

from rewire.lab.report import claim_rules as rules
from rewire.lab.report.findings import Answer, Study
from rewire.lab.report.questions import Layout


@dataclass(frozen=True)
class Claim:
    """A statement, what the paper says of it, the rule that decides it, and the function that applies the rule."""

    key: str
    statement: str
    paper: str
    rule: str
    judge: Callable[[Study, Layout], Answer]


COMMON = "Rule: the [common one](#how-to-read-this-page)."
CLAIMS = (
    Claim(
        "a",
        "From a uniform start at 97 and 99 %, GGR is above DSR, RigL and SET.",
        "Means over networks and data sets at 97 %: GGR 63.83, DSR 63.30, RigL 60.36, SET 59.52; at 99 %: GGR 58.36, "
        "SET 51.56, while DSR and RigL do not fit VGG16. They come without intervals; a lead as small as that over DSR "
        "at 97 % cannot be seen here.",
        f"{COMMON} An effect is the mean over the cells that are listed as details.",
        rules.a,
    ),
    Claim(
        "b",
        "GGR loses least between an ERK and a uniform start.",
        'GGR is "less sensitive to unbalanced layer densities at initialization than previous work".',
        f"{COMMON} A loss is the accuracy from ERK minus that from uniform.",
        rules.b,
    ),
    Claim(
        "c",
        "At 99 % from ERK, GGR leads by far on MobileNetV2.",
        "On CIFAR-100: GGR 46.49, RigL 43.79, DSR 37.38, SET 25.75.",
        f"{COMMON} Any lead counts, not only one by far.",
        rules.c,
    ),
    Claim(
        "d",
        "Growing half by gradient and half at random is steadier than either.",
        "In GGR, growth by gradient alone and at random alone can fall behind each other by a large margin, while the "
        "combination is always close to the best.",
        f"{COMMON} A shortfall is the distance to the best of the three growths in the same setting, in means over the "
        "seeds; the worst over all settings counts. Intervals are jackknife intervals over seeds. Beside it stands the "
        "spread: the standard deviation over settings of the distance to the mean of the three. It does not decide, as "
        "a mixture lies between its parts and so has a small spread almost by construction. The worst of many "
        "shortfalls is large by noise alone, so single ones have no interval: their differences count.",
        rules.d,
    ),
    Claim(
        "e",
        "In place, SET+RigL does not have that effect.",
        "RigL is the best of the three in five of six columns of table 3, and SET in the sixth.",
        f"{COMMON} The bound is {-rules.SAME:g} points instead of zero: mixing must not spare RigL, the best of the "
        f"three in the paper, more than {rules.SAME:g} points of its worst shortfall. Shortfalls are those of claim d.",
        rules.e,
    ),
    Claim(
        "f",
        "Methods that redistribute weights leave more empty neurons and smaller networks.",
        "A reading of table 4, at 97 %: VGG16 from ERK has 57.1 and 61.8 % empty neurons after DSR and GGR, 31.9 and "
        "49.6 % after SET and RigL; but RigL makes the smallest MobileNetV2.",
        f"{COMMON} It is asked in the cells where some method leaves at least 1 % of the neurons empty; the others "
        "stand beside it.",
        rules.f,
    ),
    Claim(
        "g",
        "Removing the lowest weights network-wide hurts.",
        'Early experiments showed "a minor advantage" of removing them from each layer.',
        COMMON,
        rules.g,
    ),
    Claim(
        "h",
        "At 90 % from ERK, large networks prefer SET.",
        "SET is the first of four for VGG16 and ResNet-18 in table 1.",
        f"{COMMON} SET is compared with GGR alone. At quarter width ERK makes 13 of ResNet-18's 21 layers dense, at "
        "full width 4, so this setting is easier than the paper's.",
        rules.h,
    ),
    Claim(
        "i",
        "VGG16 at 99 % from a uniform start: RigL and DSR fail, GGR does not.",
        "On Tiny-ImageNet: RigL and DSR below 5 %, SET 45.34, GGR 52.30.",
        f"{COMMON} A training fails below 5 % accuracy: RigL and DSR have to be below that line, GGR above it. Full "
        "width decides, with quarter width beside it. Intervals of shares of failed seeds are Clopper and Pearson's.",
        rules.i,
    ),
    Claim(
        "j",
        "The largest gradients show which layers are too sparse.",
        '"Very sparse layers that require more weights can get them quickly."',
        f"One layer starts with a tenth of its weights. {COMMON} The bound is {rules.CLOSED:g} instead of zero: GGR "
        "has to close more than half of the gap to what the layer has at the end of a training from a uniform start. "
        "RigL, shown beside it, cannot move weights between layers. What the layer's weights are worth is the "
        "difference in accuracy between the two starts.",
        rules.j,
    ),
    Claim(
        "k",
        "Sparse wide networks beat dense narrow ones with as many weights.",
        "Quoted from earlier work in the introduction, and claimed of its own networks: at 97 %, VGG16 and ResNet-18 "
        "are above a dense MobileNetV2, VGG16 with a quarter of its weights.",
        f"{COMMON} The weights are about as many, not the cost: [the section on costs](#cost-of-each-training) has "
        "the multiply-adds of both.",
        rules.k,
    ),
)
OPEN_QUESTION = Claim(
    "connected",
    "From connected starts, GGR is above DSR, RigL and SET.",
    "It has no connected starts: do GGR's gains survive when every method gets one?",
    f"{COMMON} An effect is the mean over the cells that are listed as details.",
    rules.survives,
)
