"""The search for the smallest change that cures a failed run: which jobs to run next, from how the last ones ended.

1. try: the likeliest change at full length; then the others for a part of the updates, all at once; then those that
   are best so far, one at a time at full length; pairs of the best where no single one cures.
2. shrink: towards the run's own value as far as it still cures, at a distance from values that do not; changes that are
   not needed are left out.
3. confirm: under further seeds, with and without the change; what fails there is undone, or another change tried.

Overrides in, `FinishedJob` out: it depends on the results alone, so that an interrupted search repeats itself for free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from gradlab.base.command import appended, pasted
from gradlab.runs.outcome_class import HEALTHY
from gradlab.sweep.grid.axes import Point
from gradlab.sweep.search import cure as cures
from gradlab.sweep.search.fix_trial import ERROR, Change, Plan, Trial, both, groups, merit, names
from gradlab.sweep.search.judge import FinishedJob

PART = 4
"""A trial takes this part of the updates of a run, one in so many."""
SHORTEST = 60
"""Updates of a trial at least; runs of twice as many are not worth one."""
BEST = 4
"""Changes of which pairs are made."""
STEPS = 3
"""Values in a round of shrinking, evenly spaced in their logarithm."""
NEAR = 2.0
"""Values nearer than this factor are not told apart, and a cure keeps it from those that do not cure."""
FOLLOWED = 5
"""How often, within half of the budget, further samples that make a trial fail are left out as well."""
PURPOSES = {
    "full": "at full length",
    "part": "for a part of the updates",
    "shrink": "smaller changes",
    "seed": "further seeds",
    "without": "further seeds",
}
"""What the trials of a round are for."""
SAMPLES = "data.without"
OTHER = {"loss", "data", "trainer", "remedy"}
"""Changes with which losses cannot be compared, or runs have another length."""
LOOSER = 64.0
"""By how much a bound that cures is loosened at most, where the run had none."""


Rounds = Iterator[list[Trial]]


@dataclass
class FixSearch:
    """Ask-and-tell, as `rounds.Search`."""

    plan: Plan
    late: Callable[[], bool] = lambda: False
    """Whether the time is over."""
    say: Callable[[Trial], None] = lambda trial: None
    """Told of every job that has ended."""
    trials: list[Trial] = field(default_factory=list)
    proven: Change | None = None
    cure: Change | None = None
    """What cured the run under its own seed, confirmed or not."""
    ended: str = ""
    """Why it ended without a proven cure."""

    def __post_init__(self) -> None:
        self.rounds = self.search()
        self.asked: list[Trial] = []
        self.spent = 0.0

    # --- ask and tell ------------------------------------------------------------------------------------------------

    def ask(self) -> list[Point]:
        self.asked = next(self.rounds, [])  # what has run is judged, whatever the time
        if self.asked and self.late():
            self.ended, self.asked = "the time is over", []  # whatever an earlier change ended as
        return [self.job(trial) for trial in self.asked]

    def job(self, trial: Trial) -> Point:
        own = () if trial.change is None else trial.change.overrides
        more = ["expect=any"]
        if trial.seed != self.plan.seed:
            more.append(f"seed={trial.seed}")
        if trial.updates is not None:
            more.append(f"trainer.updates={trial.updates}")
        return tuple(map(appended, pasted(pasted(list(self.plan.overrides), list(own)), more)))

    def tell(self, seen: Sequence[FinishedJob]) -> None:
        for trial, job in zip(self.asked, seen, strict=False):
            self.read(trial, job)
            self.trials.append(trial)
            self.say(trial)

    def read(self, trial: Trial, job: FinishedJob) -> None:
        """The run's own diagnosis decides, and nothing else."""
        d, outcome = job.diagnosis, job.diagnosis.get("outcome") or {}
        trial.job, trial.verdict, trial.why = job.job, str(d.get("verdict") or ERROR), job.why
        good = trial.verdict in HEALTHY and d.get("ill") is False
        good = good and outcome.get("status") == "completed"
        trial.but = cures.why_not(d, self.end(trial)) if good and trial.change is not None else ""
        trial.cured = good and not trial.but
        trial.unstable = bool(d.get("lost", True)) or outcome.get("status") not in ("completed", "interrupted")
        trial.ill = bool(d.get("ill", True))
        trial.learns, trial.attempts = bool(d.get("learns")), int(outcome.get("attempts") or 0)
        if not trial.cured and trial.change is not None and names(trial.change.overrides) == [SAMPLES]:
            more = (r for r in d.get("remedies") or [] if names(r["overrides"]) == [SAMPLES])
            trial.follow = next((Change(SAMPLES, tuple(r["overrides"]), r["why"]) for r in more), None)

    def end(self, trial: Trial) -> float | None:
        """The failed run's last evaluation; None where that of a trial is of another length, or another loss."""
        assert trial.change is not None
        return None if trial.updates is not None or groups(trial.change) & OTHER else self.plan.end

    def progress(self) -> str:
        return PURPOSES[self.asked[0].purpose]

    # --- the search --------------------------------------------------------------------------------------------------

    def search(self) -> Rounds:
        for source in (self.singles(), self.pairs()):
            for change in source:
                if isinstance(change, list):
                    yield change
                elif (yield from self.run_whole(change)):
                    return
        self.ended = self.ended or "nothing else is left to try"

    def run_whole(self, change: Change) -> Generator[list[Trial], None, bool]:
        """Run a change at full length, then those that follow from how it ended; whether the search is over."""
        following: Change | None = change
        for again in range(FOLLOWED):
            if following is None or (again and 2 * self.spent >= self.plan.budget):
                break
            if self.spent + 1 > self.plan.budget + 1e-9:
                self.ended = self.ended or f"the budget of {self.plan.budget:g} runs is spent"
                return True
            trial = Trial("full", following, self.plan.seed, None)
            yield [trial]
            self.spent += trial.attempts / max(self.plan.planned, 1)
            if trial.verdict == ERROR and len(self.trials) == 1:
                self.ended = f"trials cannot be run here: {trial.why}"
                return True
            if trial.cured:
                yield from self.prove(following)
                if self.proven is not None:
                    return True
            following = trial.follow
        return False

    @property
    def part(self) -> int | None:
        """Updates of a trial: past the failure where that was early; None where trials are not worth it."""
        p = self.plan
        updates = max(SHORTEST, p.planned // PART)
        if p.died_at:
            updates = min(updates, max(SHORTEST, 2 * p.died_at))
        return updates if 2 * updates <= p.planned else None

    def singles(self) -> Iterator[Change | list[Trial]]:
        """The likeliest; then trials of the others; then the others, the best first."""
        first, *others = self.plan.changes
        yield first
        yield from self.screened(others)

    def pairs(self) -> Iterator[Change | list[Trial]]:
        """Pairs of the best changes that change different fields."""
        done = {trial.change: trial for trial in self.trials if trial.change and trial.purpose in ("full", "part")}
        best = sorted(done, key=lambda change: merit(done[change]))[:BEST]
        yield from self.screened([both(a, b) for a, b in combinations(best, 2) if not groups(a) & groups(b)])

    def screened(self, changes: list[Change]) -> Iterator[Change | list[Trial]]:
        """Trials of as many as leave room for a run to its end; then those that were stable, the best first."""
        part = self.part
        room = 0 if part is None else int((self.plan.budget - self.spent - 1) * self.plan.planned / part + 1e-9)
        trials = [Trial("part", change, self.plan.seed, part) for change in changes[: max(room, 0)]]
        if not trials:
            yield from changes
            return
        yield trials
        self.spent += sum(trial.attempts for trial in trials) / self.plan.planned
        yield from [trial.change for trial in sorted(trials, key=merit) if trial.change and not trial.unstable]

    def prove(self, cure: Change) -> Rounds:
        """Shrink and confirm; `proven` is then set, if it could be."""
        self.cure = cure
        if cure.parts:
            alone = [Trial("shrink", part, self.plan.seed, None) for part in cure.parts if not self.failed(part)]
            if alone:
                yield alone
            cure = next((trial.change for trial in alone if trial.cured and trial.change), cure)
        smaller: list[Change] = []
        if cure.number is not None:
            yield from self.shrink(cure, smaller)
        nearest, *others = *reversed(smaller), cure
        candidates = [nearest] if self.apart(nearest) else [self.further(nearest)]
        candidates = [*dict.fromkeys([*candidates, *others, cure])]
        for place, change in enumerate(candidates):  # which grow
            if change != cure and not self.apart(change):
                continue
            seeds = self.seeds if self.cured(change) else [self.plan.seed, *self.seeds]
            pair = [Trial(kind, c, seed, None) for seed in seeds for kind, c in (("seed", change), ("without", None))]
            yield [t for t in pair if t.change is not None or not self.known(t)]
            if place < FOLLOWED:
                candidates += [t.follow for t in pair if t.follow is not None][:1]
            named = " ".join(change.overrides)
            if not self.cured(change):  # or the time was over before it was tried
                self.ended = f"{named} was not seen to cure under seed {self.plan.seed}"
                continue
            self.cure = change
            if all(t.cured for t in pair if t.change is not None):
                self.proven, self.ended = change, ""
                return
            self.ended = f"{named} cures under seed {self.plan.seed}, and not under further seeds"

    def apart(self, change: Change) -> bool:
        """Whether the values of its number that do not cure, under any seed, are further off than a factor."""
        if change.number is None:
            return True
        ended = [t for t in self.trials if t.change and t.change.name == change.name and t.updates is None]
        failed = [t.change.value for t in ended if t.change and not t.cured]
        return all(max(v / change.value, change.value / v) > NEAR for v in [*failed, change.number.own])

    def further(self, cure: Change) -> Change:
        """The change with a value further from the run's own."""
        assert cure.number is not None
        return cure.at(cure.value / NEAR if cure.number.own > cure.value else cure.value * NEAR)

    def shrink(self, cure: Change, found: list[Change]) -> Rounds:
        """Values between the one that cures and the run's own, in two rounds; `found` gets those that cure."""
        assert cure.number is not None
        good, bad = cure.value, cure.number.own
        if math.isinf(bad):
            bad = good * LOOSER
        for _ in range(2):
            if not max(good / bad, bad / good) > NEAR:
                return
            step = (bad / good) ** (1 / (STEPS + 1))
            if not max(step, 1 / step) > NEAR**0.5:
                return
            changes = [cure.at(good * step**i) for i in range(1, STEPS + 1)]
            trials = [Trial("shrink", change, self.plan.seed, None) for change in changes]
            yield trials
            for change, trial in zip(changes, trials, strict=True):
                if not trial.cured:
                    bad = change.value
                    break
                found.append(change)
                good = change.value

    @property
    def seeds(self) -> list[int]:
        return [self.plan.seed + i for i in range(1, self.plan.seeds + 1)]

    def known(self, trial: Trial) -> bool:
        """Whether the failed run was run under that seed already."""
        return trial.seed == self.plan.seed or any(t.change is None and t.seed == trial.seed for t in self.trials)

    def cured(self, change: Change) -> bool:
        """Whether it cured the run under its own seed."""
        return any(
            t.change == change and t.seed == self.plan.seed and t.updates is None and t.cured for t in self.trials
        )

    def failed(self, change: Change) -> bool:
        return any(t.change == change and t.purpose == "full" and not t.cured for t in self.trials)
