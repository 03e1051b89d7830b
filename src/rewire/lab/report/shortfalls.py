"""Which growth is steadier: how far each falls behind the best one of a setting, in the setting where that is worst."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from rewire.lab.report.findings import Answer, BySeed, Cell, Effect, Study, answer
from rewire.lab.report.statistics import jackknife_interval


def common_seeds(settings: Sequence[Mapping[str, BySeed]]) -> list[int]:
    """The seeds that every variant has in every setting."""
    return sorted(set.intersection(*(set(values) for setting in settings for values in setting.values())))


def worst_shortfall(settings: Sequence[Mapping[str, BySeed]], name: str, seeds: Sequence[int]) -> float:
    """How far a variant falls behind the best one in the setting where that is worst, with means over the seeds."""
    means = [{key: fmean(values[seed] for seed in seeds) for key, values in setting.items()} for setting in settings]
    return max(max(setting.values()) - setting[name] for setting in means)


class Shortfalls:
    """How far growths fall behind the best one of a setting, in the setting where that is worst."""

    def __init__(
        self,
        study: Study,
        ablation: Mapping[str, Sequence[Cell]],
        variants: Mapping[str, Cell],
        names: Mapping[str, str],
    ) -> None:
        self.study, self.variants, self.names = study, variants, names
        self.groups = {
            where: [{name: study.values({**cell, **own}) for name, own in variants.items()} for cell in cells]
            for where, cells in ablation.items()
        }
        self.cells = [{**cell, **own} for cells in ablation.values() for cell in cells for own in variants.values()]

    def gap(self, ours: str, theirs: str, above: float = 0.0) -> Effect | None:
        """The worst shortfall of one growth minus that of another, over all settings."""
        settings = [setting for group in self.groups.values() for setting in group]
        seeds = common_seeds(settings)
        name = f"worst shortfall of {self.names[ours]} minus that of {self.names[theirs]}"

        def difference_of(chosen: Sequence[int]) -> float:
            return worst_shortfall(settings, ours, chosen) - worst_shortfall(settings, theirs, chosen)

        return Effect(name, jackknife_interval(difference_of, seeds), above=above) if seeds else None

    def answer(self, effects: Sequence[Effect | None], details: Sequence[Effect | None] = ()) -> Answer:
        """The answer, with the worst shortfall of every growth in each group of settings."""
        worst = [self._worst(where, name) for where in self.groups for name in self.variants]
        return answer(self.study, self.cells, effects, [*details, *worst])

    def _worst(self, where: str, name: str) -> Effect | None:
        settings = self.groups[where]
        if not (seeds := common_seeds(settings)):
            return None
        interval = jackknife_interval(lambda chosen: worst_shortfall(settings, name, chosen), seeds)
        return Effect(f"{where}: worst shortfall of {self.names[name]}", interval, signed=False)
