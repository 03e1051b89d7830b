"""What an optimizer keeps for each weight, and what it starts with where a weight is born: a table by optimizer.

A rule is a number, the name of an option of the parameter's group (``"lr"``), ``SECOND_MOMENT`` or ``SHARED``.
docs/optimizers.md explains the choice for each optimizer.
"""

from collections.abc import Mapping

import torch

Rule = float | str

SECOND_MOMENT = "second_moment"  # zero until the next step; see ``newborns``
SHARED = "shared"  # belongs to rows, columns or the whole weight: never moved, whatever its shape

_ADAM: dict[str, Rule] = {"exp_avg": 0.0, "exp_avg_sq": SECOND_MOMENT, "max_exp_avg_sq": SECOND_MOMENT}

# By the name of the optimizer's class, so that optimizers of other libraries need not be imported.
_RULES: dict[str, dict[str, Rule]] = {
    "SGD": {"momentum_buffer": 0.0},
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "NAdam": _ADAM,
    "RAdam": _ADAM,
    "Adamax": {"exp_avg": 0.0, "exp_inf": 0.0},
    "Adagrad": {"sum": "initial_accumulator_value"},
    "Adadelta": {"square_avg": 0.0, "acc_delta": 0.0},
    "RMSprop": {"square_avg": SECOND_MOMENT, "momentum_buffer": 0.0, "grad_avg": 0.0},
    "Rprop": {"prev": 0.0, "step_size": "lr"},
    "ASGD": {"ax": 0.0},
    "Muon": {"momentum_buffer": 0.0},
    "Adafactor": {
        "exp_avg": 0.0,
        **dict.fromkeys(("row_var", "col_var", "exp_avg_sq_row", "exp_avg_sq_col"), SHARED),
    },
}

# Keys that mean the same in most optimizers that are not in the table.
_COMMON: dict[str, Rule] = {"momentum_buffer": 0.0, **_ADAM}


def register(kind: type[torch.optim.Optimizer], **rules: Rule) -> None:
    """Say what an optimizer of your own keeps for each weight and what that starts with at birth.

    ``rules``: by the key in the optimizer's state a number, ``"second_moment"``, ``"shared"`` for what belongs to no
    single weight, or the name of an option of the parameter's group, such as ``"lr"``. Subclasses inherit them.

    >>> class Sophia(torch.optim.Optimizer): ...
    >>> register(Sophia, exp_avg=0.0, hessian="second_moment", rows="shared")
    """
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise TypeError(f"register takes the class of an optimizer, not {kind!r}")
    for key, rule in rules.items():
        if not isinstance(rule, (int, float, str)):
            raise TypeError(
                f"{key} must be a number, 'second_moment', 'shared' or the name of a group's option, not {rule!r}"
            )
    _RULES[kind.__name__] = dict(rules)


def rule_of(optimizer: torch.optim.Optimizer, key: str) -> Rule | None:
    """The rule for one entry of the state, or ``None`` if neither the optimizer nor the name of the entry is known."""
    for kind in type(optimizer).__mro__:
        rules = _RULES.get(kind.__name__, {})
        if key in rules:
            return rules[key]
    return _COMMON.get(key)


def start_value(rule: Rule | None, group: Mapping[str, object]) -> float | torch.Tensor:
    """What a newborn weight's state is right after the rewiring."""
    if rule is None or rule == SECOND_MOMENT:
        return 0.0
    value = group.get(rule, 0.0) if isinstance(rule, str) else rule
    assert isinstance(value, (int, float, torch.Tensor)), f"the option {rule} of the optimizer is no number"
    return value
