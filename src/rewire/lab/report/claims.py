"""The paper's claims, each with the rule by which runs decide it. The rules were written before the runs were made."""

from collections.abc import Callable
from dataclasses import dataclass

from rewire.lab.report import claim_rules as rules
from rewire.lab.report.findings import Answer, Study
from rewire.lab.report.questions import Layout


@dataclass(frozen=True)
class Claim:
    """What the paper says, the rule that decides it, and the function that applies the rule."""

    key: str
    statement: str
    rule: str
    judge: Callable[[Study, Layout], Answer]


_ALL = "Confirmed if the 95 % intervals of all effects lie above zero, contradicted if one lies below."
CLAIMS = (
    Claim(
        "a",
        "From a uniform start at 97 and 99 %, GGR is above DSR, RigL and SET.",
        f"{_ALL} An effect is the difference averaged over networks; VGG16 at full width and 97 % is shown beside "
        "them.",
        rules.a,
    ),
    Claim(
        "b",
        "GGR loses least between an ERK and a uniform start.",
        f"{_ALL} A loss is the accuracy from ERK less that from uniform.",
        rules.b,
    ),
    Claim("c", "At 99 % from ERK, GGR leads by far on MobileNetV2.", _ALL, rules.c),
    Claim(
        "d",
        "Growing half by gradient and half at random is steadier than either.",
        f"{_ALL} A shortfall is the distance to the best of the three growths in the same setting; the worst over "
        "settings counts.",
        rules.d,
    ),
    Claim(
        "e",
        "In place, SET+RigL does not have that effect.",
        f"Confirmed if the mix's advantage over RigL, the better part, is below {rules.SAME} points with 95 % "
        "confidence, contradicted if it is above zero everywhere.",
        rules.e,
    ),
    Claim("f", "Methods that redistribute weights leave more empty neurons and smaller networks.", _ALL, rules.f),
    Claim("g", "Removing the lowest weights network-wide hurts.", _ALL, rules.g),
    Claim("h", "At 90 % from ERK, large networks prefer SET.", _ALL, rules.h),
    Claim(
        "i",
        "VGG16 at 99 % from a uniform start: RigL and DSR fail, GGR does not.",
        "Failing is an accuracy below 5 %. Confirmed if every seed of RigL and DSR fails and none of GGR; contradicted "
        "if GGR fails more often than one of them, or if neither of them ever fails.",
        rules.i,
    ),
    Claim(
        "j",
        "The largest gradients show which layers are too sparse.",
        f"One layer starts with a tenth of its weights. Confirmed if GGR closes more than {rules.CLOSED:.0%} of the "
        "gap to what the layer has at the end of a training from a uniform start, with 95 % confidence; contradicted "
        "if it closes less with as much confidence.",
        rules.j,
    ),
    Claim("k", "Sparse wide networks beat dense narrow ones with as many weights.", _ALL, rules.k),
)
OPEN_QUESTION = Claim(
    "connected", "GGR's lead survives when every method gets a connected start.", _ALL, rules.survives
)
