"""What came of a search for a cure: fix.json, and the lines that are printed."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gradlab.base.command import command, key
from gradlab.base.json_lines import write_json
from gradlab.remedies.compared_job import ComparedJob, compared_job
from gradlab.remedies.comparison_rows import row
from gradlab.sweep.search import fix_plan
from gradlab.sweep.search.fix_search import FixSearch
from gradlab.sweep.search.fix_trial import ERROR, Change, Plan, Trial
from gradlab.sweep.vectorized.grouping import LANE_VALUES


def report(folder: Path, search: FixSearch, ended: str | None) -> None:
    """Write the results into fix.json, and print them."""
    content = fix_plan.kept(folder)
    content |= result(folder, Path(content["run"]), search, ended) | {"trials": [told(t) for t in search.trials]}
    write_json(folder / fix_plan.NAME, content)
    print(*lines(content), sep="\n", flush=True)


def told(t: Trial) -> dict[str, Any]:
    shown = {"change": None if t.change is None else {"name": t.change.name, "overrides": t.change.overrides}}
    return asdict(replace(t, follow=None)) | shown


def result(folder: Path, run: Path, search: FixSearch, ended: str | None) -> dict[str, Any]:
    """proven, command, effect, cost, ...: see docs/fix.md."""
    change = search.proven or search.cure
    return {
        "proven": search.proven is not None,
        "cure": None if change is None else list(change.overrides),
        "why": "" if change is None else reason(search, change),
        "command": None if change is None else command(fix_plan.again(search.plan, change)),
        "ended": "" if search.proven else ended or search.ended,
        "edge": edge(search, change),
        "did_not_help": failures(search, change),
        "effect": None if change is None else effect(folder, run, search, change),
        "cost": None if change is None else cost(change),
    }


def reason(search: FixSearch, change: Change) -> str:
    """Why it was tried; of another value of its number, why that was that it was found from."""
    first = next((c for c in search.plan.changes if c.name == change.name), change)
    if change.number is None or first.value == change.value:
        return change.why
    return f"found from {change.number.field}={first.value:.3g} ({first.why})"


def effect(folder: Path, run: Path, search: FixSearch, change: Change) -> dict[str, Any] | None:
    """The change against the run without it, seed by seed, as a comparison of remedies has it."""
    mine = {t.seed: t.job for t in search.trials if t.change == change and t.updates is None and t.verdict}
    without = {t.seed: t.job for t in search.trials if t.change is None}
    baseline = {str(search.plan.seed): compared(run.parent, run.name, "none", search.plan.seed)}
    baseline |= {str(seed): compared(folder, job, "none", seed) for seed, job in without.items()}
    after = [compared(folder, job, change.name, seed) for seed, job in mine.items()]
    if not after:
        return None
    made = row(change.name, after, baseline)
    kept = {name: made[name] for name in ("seeds", "judgement", "verdicts", "survived", "improved")}
    kept |= {"improved": None} if another_loss(change) else {}
    return kept | {"without": {seed: job.verdict for seed, job in baseline.items()}}


def another_loss(change: Change) -> bool:
    """Whether it changes what the loss is, as weights of terms do: then no loss with it is lower than one without."""
    return any(key(o).split(".")[0] == "loss" and key(o) != "loss.reduction" for o in change.overrides)


def compared(folder: Path, job: str, remedy: str, seed: int) -> ComparedJob:
    found = compared_job(folder, job)
    found.remedy, found.seed, found.rest = remedy, str(seed), ()
    return found


def cost(change: Change) -> str:
    """What an update costs beside the failed run's. Times of trials say nothing: they share the machine."""
    numbers = all(
        "." in o and key(o).split(".")[1] in LANE_VALUES.get(key(o).split(".")[0], ()) for o in change.overrides
    )
    same = "an update costs what it did: only numbers differ"
    return same if numbers else "of an update not measured: trials share the machine"


def edge(search: FixSearch, change: Change | None) -> list[dict[str, Any]]:
    """The values of the cure's number that were tried under the run's own seed, and whether they cured."""
    if change is None or change.number is None:
        return []
    name = change.number.field
    tried = {
        t.change.value: t.said
        for t in search.trials
        if t.change and t.change.number and t.change.number.field == name and t.updates is None
        if t.seed == search.plan.seed and t.change.name == change.name
    }
    return [{"field": name, "value": value, "verdict": verdict} for value, verdict in sorted(tried.items())]


def failures(search: FixSearch, change: Change | None) -> list[dict[str, Any]]:
    """Changes that did not cure, with what they ended as."""
    found = {}
    for t in search.trials:
        judged = t.verdict != ERROR and (t.purpose == "full" or (t.purpose == "part" and t.unstable))
        if t.change is not None and judged and not t.cured and t.change != change:
            found[t.change.overrides] = {
                "overrides": list(t.change.overrides),
                "verdict": t.said,
                "updates": t.attempts,
                "job": t.job,
                "pair": bool(t.change.parts),
            }
    return list(found.values())


def lines(content: dict[str, Any]) -> list[str]:
    """What is printed at the end, and stands on the page."""
    seed, verdict = content["plan"]["seed"], content["plan"]["verdict"]
    if content["cure"] is None:
        made = ["== no cure found", f"ended because {content['ended']}"]
    else:
        found = " ".join(content["cure"])
        seen = content["effect"] or {}
        made = [f"== {'fixed' if content['proven'] else 'cured, not proven'}: {found}", content["why"]]
        if not content["proven"]:
            made.append(f"not confirmed: {content['ended']}")
        without = ", ".join(f"{v} (seed {s})" for s, v in seen.get("without", {}).items())
        counts = ", ".join(f"{n} {v}" for v, n in seen.get("verdicts", {}).items())
        made.append(f"with it: {counts}; without: {without or f'{verdict} (seed {seed})'}")
        made += [
            f"{words}: {share(seen[name])}"
            for name, words in (("survived", "more updates, of those planned"), ("improved", "lower loss"))
            if seen.get(name) and seen[name]["mean"]
        ]
        made.append(f"cost: {content['cost']}")
        if content["edge"]:
            tried = ", ".join(f"{e['value']:.3g} {e['verdict']}" for e in content["edge"])
            made.append(f"{content['edge'][0]['field']}: {tried}")
        made.append(content["command"])
    if content["did_not_help"]:
        made.append("tried, and did not cure it:")
        made += [f"  {' '.join(one['overrides'])}: {one['verdict']}" for one in content["did_not_help"]]
    if content["code"] and not content["proven"]:
        made.append("not tried, since it is in your code:")
        made += [f"  {one['lines']}   # {one['why']}" for one in content["code"]]
    return made


def share(effect: dict[str, Any]) -> str:
    """A share with its interval, which ends at 100%."""
    interval = f" [{effect['low']:+.1%}, {min(effect['high'], 1.0):+.1%}]" if effect["low"] is not None else ""
    return f"{effect['mean']:+.1%}{interval}"


def estimate(plan: Plan, seconds: float) -> list[str]:
    """What is printed before it begins."""
    changes = len(plan.changes)
    confirm = plan.seeds * (2 if plan.died_at is None else 1 + plan.died_at / plan.planned)
    return [
        f"{plan.verdict}: {changes} change{'s' * (changes != 1)} to try, the likeliest first: "
        + "; ".join(" ".join(c.overrides) for c in plan.changes[:3])
        + f"; and {changes - 3} more" * (changes > 3),
        f"a run to its end takes {seconds:.0f} s if trials are as fast as the failed run was: up to "
        f"{plan.budget * seconds:.0f} s to find a cure (--runs {plan.budget:g}), then {confirm * seconds:.0f} s to "
        "confirm it, as long to shrink it, and the time in which each trial starts",
    ]
