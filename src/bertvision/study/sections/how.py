"""How the study was run: commands, machine, seeds, settings, and what to be careful about in the data."""

from collections.abc import Mapping
from typing import Any

from bertvision.report import words
from bertvision.study.blocks import code, column, listing, row, section, table, value_cell
from bertvision.study.picks import family
from bertvision.study.view import Study

__all__ = ["how"]


def how(
    study: Study, *, encoder: Mapping[str, Any] | None = None, data: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """`encoder` and `data` as the study's own files tell them."""
    blocks = [code(study.commands), _sources(study)] if study.commands else []
    blocks += [_tunings(study)] if any(g.about.kind == "snapshot" for g in study.groups.values()) else []
    blocks += [_data(data)] if data else []
    blocks.append(listing(_cautions(study, encoder or {}, data or {})))
    blocks += _environments(study)
    return section(
        "how",
        "How it was run",
        "Commands, data, settings and machine. Thresholds were tuned on the held-out part of train alone (those called "
        "an oracle's on dev). Heads, the strongest baseline and ensembles were chosen there as well; the best full "
        "fine-tuning, the cheapest system within reach of it and the best member of an ensemble were chosen on dev.",
        blocks,
    )


def _sources(study: Study) -> dict[str, Any]:
    """Which command, at which commit, made the systems of which part."""
    found: dict[tuple[str, str, int], list[str]] = {}
    numbers = {command: i + 1 for i, command in enumerate(study.commands)}
    for group in (*study.groups.values(), *study.labels.values()):
        for about in (system.about for system in group.systems):
            place = (about.experiment, about.commit, numbers.get(about.command, 0))
            found.setdefault(place, []).append(group.key)
    rows = [
        row(
            [
                part,
                value_cell(len(set(keys)), digits=0),
                value_cell(len(keys), digits=0),
                {"text": keys[0], "sub": f"to {keys[-1]}"} if len(set(keys)) > 1 else keys[0],
                str(number) if number else words.UNKNOWN,
                commit[:10] or words.UNKNOWN,
            ]
        )
        for (part, commit, number), keys in found.items()
    ]
    return table(
        "Parts of the recipe, what they made, and by which of the commands above (in their order) and commit.",
        [
            column("part", "text"),
            column("systems"),
            column("with seeds"),
            column("first and last", "text"),
            column("command"),
            column("commit", "text"),
        ],
        rows,
    )


def _tunings(study: Study) -> dict[str, Any]:
    """One row a family: its snapshots differ in length alone."""
    rows = {}
    runs: dict[tuple[str, str], dict[float, set[int]]] = {}
    for group in (*study.groups.values(), *study.labels.values()):
        for about in (system.about for system in group.systems if system.about.kind == "snapshot"):
            own = runs.setdefault((family(group), about.task), {})
            own.setdefault(about.epochs, set()).add(about.seed)
    for group in (*study.groups.values(), *study.labels.values()):
        about = group.about
        if about.kind != "snapshot" or about.variant or family(group) in rows or not about.schedule:
            continue
        own = family(group)
        lengths = sorted(runs[own, about.task], reverse=True)
        rows[own] = row(
            [
                own,
                about.task,
                about.policy or words.UNKNOWN,
                about.schedule,
                words.plain(about.lr),
                value_cell(about.batch_size, digits=0),
                ", ".join(map(words.plain, lengths)),
                f"{100 * about.data_fraction:g} %",
                "; ".join(", ".join(map(str, sorted(runs[own, about.task][length]))) for length in lengths),
            ]
        )
    return table(
        "Fine-tunings.",
        [
            column("family", "text"),
            column("task", "text"),
            column("trained", "text"),
            column("rate", "text"),
            column("peak rate"),
            column("batch"),
            column("epochs"),
            column("data"),
            column("seeds", "text"),
        ],
        list(rows.values()),
    )


def _data(data: Mapping[str, Any]) -> dict[str, Any]:
    rows = []
    for part, about in data.items():
        examples, without = words.finite(about.get("examples")), words.finite(about.get("unanswerable"))
        share = f"{100 * without / examples:.1f} %" if examples and without is not None else words.UNKNOWN
        cells = [part, str(about.get("name", words.UNKNOWN)), words.count(examples), share]
        rows.append(row([*cells, words.count(about.get("windows")), words.compact(about.get("tokens"))]))
    return table(
        "Parts of the data.",
        [
            column("part", "text"),
            column("name", "text"),
            column("questions"),
            column("without an answer"),
            column("windows"),
            column("tokens"),
        ],
        rows,
    )


def _cautions(study: Study, encoder: Mapping[str, Any], data: Mapping[str, Any]) -> list[str]:
    """What a reader must know before comparing these numbers with others."""
    said = []
    train = data.get("train", {})
    if "partial" in str(train.get("name", "")):
        questions, without = words.finite(train.get("examples")), words.finite(train.get("unanswerable"))
        share = f"{100 * without / questions:.1f} %" if questions and without is not None else "a small part"
        said += [
            f"The training data is a rebuilt part of SQuAD 2.0 train: {words.count(questions)} questions are trained "
            f"on, {share} of them without an answer (in the official set 33.4 %, in dev about half). Windows without "
            "an answer are weighted in training, and thresholds are tuned as if half of the questions had none.",
            "All its questions are lower-cased, as the unanswerable ones exist only so and casing would give the label "
            "away; about 0.6 % of the answers' places are first occurrences and wrong.",
        ]
    name = str(encoder.get("name", ""))
    if any(known in name.lower() for known in ("mpnet", "minilm")):
        said.append(
            f"The encoder ({name}) had been trained as a sentence encoder before, on pairs that come in part from "
            "SQuAD: compare systems on this one encoder, and do not set its scores beside those of plain encoders."
        )
    answerable = int(study.answerable.sum())
    said.append(
        f"dev has {len(study.answerable):,} questions, {answerable:,} of them answerable; scores are the official "
        "exact match and F1. Intervals are over questions (paired bootstrap, 2,000 resamples), of scores averaged "
        "over the seeds both systems have; they do not hold the spread between trainings, which the ± beside "
        "scores tells."
    )
    seeds = sorted({seed for group in study.groups.values() for seed in group.seeds})
    said.append(f"Seeds: {', '.join(map(str, seeds))}; how many of them a system has stands in its row.")
    said.append(
        "Claims use threshold 0 and the threshold tuned on held-out train. The best threshold on dev itself is called "
        "an oracle wherever it is shown."
    )
    return said


def _environments(study: Study) -> list[dict[str, Any]]:
    found = study.environments
    if not found:
        return []
    names = list(dict.fromkeys(name for one in found for name in one))
    rows = [row([name, *(_plain(one.get(name)) for one in found)]) for name in names]
    many = len(found) > 1
    titles = [column(f"machine {i + 1}" if many else "value", "text") for i in range(len(found))]
    return [table("What it ran on.", [column("what", "text"), *titles], rows)]


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(one)}" for name, one in value.items())
    return words.plain(value)
