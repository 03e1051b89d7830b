"""Which growth is steadier: how far each falls behind the best one of a setting, in the setting where that is worst."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from rewire.lab.report.findings import Answer, BySeed, Cell, Effect, Study, answer
from rewire.lab.report.results_format import number, range_text
from rewire.lab.report.statistics import Interval, jackknife_interval

Setting = Mapping[str, BySeed]  # by variant
Statistic = Callable[[Sequence[Setting], str, Sequence[int]], float]  # of one variant in several settings


def common_seeds(settings: Sequence[Setting]) -> list[int]:
    """The seeds that every variant has in every setting."""
    return sorted(set.intersection(*(set(values) for setting in settings for values in setting.values())))


def worst_shortfall(settings: Sequence[Setting], name: str, seeds: Sequence[int]) -> float:
    """How far a variant falls behind the best one in the setting where that is worst, with means over the seeds."""
    return max(max(setting.values()) - setting[name] for setting in _means(settings, seeds))


def spread_over_settings(settings: Sequence[Setting], name: str, seeds: Sequence[int]) -> float:
    """The standard deviation over settings of how far a variant is from the mean of all, with means over the seeds."""
    return stdev(setting[name] - fmean(setting.values()) for setting in _means(settings, seeds))


def _means(settings: Sequence[Setting], seeds: Sequence[int]) -> list[dict[str, float]]:
    return [{key: fmean(values[seed] for seed in seeds) for key, values in setting.items()} for setting in settings]


class Shortfalls:
    """How far growths fall behind the best one of a setting, in the setting where that is worst."""

    def __init__(
        self,
        study: Study,
        ablation: Mapping[str, Sequence[Cell]],
        variants: Mapping[str, Cell],
        names: Mapping[str, str],
    ) -> None:
        self.study, self.names = study, names
        self.groups = {
            where: [{name: study.values({**cell, **own}) for name, own in variants.items()} for cell in cells]
            for where, cells in ablation.items()
        }
        self.settings = [setting for group in self.groups.values() for setting in group]
        cells = [{**cell, **own} for cells in ablation.values() for cell in cells for own in variants.values()]
        seeds = set.intersection(*({run.seed for run in study.runs(cell)} for cell in cells))  # more cannot count
        self.cells = [{**cell, "seed": seed} for cell in cells for seed in sorted(seeds)]

    def gap(self, ours: str, theirs: str, above: float = 0.0) -> Effect | None:
        """The worst shortfall of one growth minus that of another over all settings, with the same for their spread."""
        gap = self._gap(worst_shortfall, "worst shortfall", self.settings, ours, theirs, above)
        spread = self._gap_of_spreads(ours, theirs)
        if gap is None or spread is None:
            return gap
        return replace(gap, note=f"spread over settings {number(spread.interval.mean)} ({range_text(spread.interval)})")

    def answer(
        self,
        effects: Sequence[Effect | None],
        pairs: Sequence[tuple[str, str]],
        details: Sequence[Effect | None] = (),
    ) -> Answer:
        """The answer; for each pair of growths the gaps in each group, and the shortfalls of every growth beside it."""
        parts = [*details]
        for where, settings in self.groups.items():
            parts += [self._gap(worst_shortfall, f"{where}: worst shortfall", settings, *pair) for pair in pairs]
            parts += [self._worst(where, name) for name in self.names]
        parts += [self._gap_of_spreads(*pair) for pair in pairs]
        return answer(self.study, self.cells, effects, parts)

    def _gap_of_spreads(self, ours: str, theirs: str) -> Effect | None:
        if len(self.settings) < 2:
            return None
        return self._gap(spread_over_settings, "spread over settings", self.settings, ours, theirs)

    def _gap(
        self, of: Statistic, what: str, settings: Sequence[Setting], ours: str, theirs: str, above: float = 0.0
    ) -> Effect | None:
        def difference_of(seeds: Sequence[int]) -> float:
            return of(settings, ours, seeds) - of(settings, theirs, seeds)

        if not (seeds := common_seeds(settings)):
            return None
        name = f"{what} of {self.names[ours]} minus that of {self.names[theirs]}"
        return Effect(name, jackknife_interval(difference_of, seeds), above=above)

    def _worst(self, where: str, name: str) -> Effect | None:
        """Without an interval: of a maximum that noise alone pushes up, none covers what it should."""
        settings = self.groups[where]
        if not (seeds := common_seeds(settings)):
            return None
        interval = Interval(worst_shortfall(settings, name, seeds), math.nan, math.nan, len(seeds))
        return Effect(f"{where}: worst shortfall of {self.names[name]}", interval, signed=False)
