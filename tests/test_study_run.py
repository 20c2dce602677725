"""What a study keeps is what its heads answer when they are read by themselves, whoever decodes and however often."""

import itertools
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from study_runs import RECIPE, answers, study, titled, write_recipe

from bertvision.artifacts import read_json
from bertvision.config import from_mapping
from bertvision.data.answerable import answerable
from bertvision.data.examples import SpanData
from bertvision.data.load import load_span_data
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError
from bertvision.study.about import About, Key
from bertvision.study.config import StudyConfig
from bertvision.study.judge import judge
from bertvision.study.material import Material, by_article
from bertvision.study.records import LabelRecord, SpanRecord, answerable_of
from bertvision.tasks.span.decode import DecodeConfig, decode
from bertvision.tasks.span.ensemble import combine
from bertvision.tasks.span.logits import SpanLogits, second_best
from bertvision.tasks.span.score import score
from bertvision.tasks.text.answers import answer
from bertvision.tasks.text.score import score_texts
from bertvision.train.splits import Split
from bertvision.train.trained import logits_of_trained, read_trained


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study")


@pytest.fixture(scope="module")
def data(place: Path) -> Path:
    return titled(place)


@pytest.fixture(scope="module")
def out(place: Path, tiny_bert: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole tiny study: a folder to read, not to change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTVISION_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        outcome = study(write_recipe(place), tiny_bert, data, place / "out")
    assert outcome.code == 0, outcome.err
    assert str(place / "out" / "report.html") in outcome.out
    return place / "out"


def part_of(data: Path, name: str) -> SpanData:
    whole = load_span_data(str(data))
    return whole if name == "dev" else by_article(whole, RECIPE["holdout"])[1]


def record(out: Path, name: str, data: Path, part: str) -> SpanRecord:
    return SpanRecord.load(out / "records" / name / f"{part}.safetensors", part_of(data, part).fingerprint)


def logits(folder: Path, spans: Any, encoder: Path | None = None) -> tuple[Split, Any]:
    """Of a head's folder, by the way that eval and predict take."""
    options: dict[str, Any] = {"device": "cpu", "precision": "fp32"}
    (found,) = logits_of_trained([read_trained(folder)], spans, encoder=encoder and str(encoder), **options)
    return found


def head(out: Path, part: str, seed: int, label: str) -> Path:
    """The folder of a fitted head."""
    heads = read_json(out / "fit" / f"{part}.seed{seed}" / "stage.json")["results"]["heads"]
    (name,) = [name for name, told in heads.items() if told["label"] == label]
    return out / "fit" / f"{part}.seed{seed}" / name


def check(kept: SpanRecord, split: Split, values: SpanLogits, decoding: DecodeConfig | None = None) -> None:
    """A record is what decoding gives: the difference, the span, and the official scores at threshold 0."""
    found = decode(split.windows, values, split.spans, decoding or DecodeConfig())
    huge = float(np.finfo(np.float32).max)
    np.testing.assert_allclose(kept.diff, np.clip(found.score_diff, -huge, huge), rtol=1e-5, atol=1e-5)
    official = score(split.spans, found.predictions())
    exact, f1 = kept.at(0.0, answerable_of(split.spans))
    assert 100 * exact.mean() == pytest.approx(official["exact"])
    assert 100 * f1.mean() == pytest.approx(official["f1"])
    told = dict(zip(found.ids, kept.texts(split.spans, 0.0), strict=True))
    assert told == found.predictions()


# Folder of the record; where the head lies below OUT, or its part, seed and label; the encoder if not its own.
SYSTEMS = [
    ("constant@0.5.seed0", "tune/curve.seed0/snapshot-0.5", ""),
    ("constant@1.seed1", "tune/constant.seed1/snapshot-1", ""),
    ("part@1~0.5.seed0", "tune/part.seed0/snapshot-1", ""),
    ("constant@0.5--adapter-4.seed1", ("early", 1, "adapter-4"), "tune/constant.seed1/snapshot-0.5/encoder"),
    (
        "constant@1--learned-pooling.seed0",
        ("late", 0, "learned-pooling"),
        "tune/curve.seed0/snapshot-1/encoder",
    ),
    ("constant@1--adapter-4~0.5.seed0", ("half", 0, "adapter-4"), "tune/curve.seed0/snapshot-1/encoder"),
    ("untuned--learned-pooling.seed0", ("raw", 0, "learned-pooling"), "raw"),
]


@pytest.mark.parametrize("part", ["dev", "holdout"])
@pytest.mark.parametrize(("name", "folder", "encoder"), SYSTEMS, ids=[name for name, _, _ in SYSTEMS])
def test_records_are_what_the_heads_answer(
    name: str, folder: Any, encoder: str, part: str, out: Path, data: Path, tiny_bert: Path
) -> None:
    place = out / folder if isinstance(folder, str) else head(out, *folder)
    source = tiny_bert if encoder == "raw" else out / encoder if encoder else None
    check(record(out, name, data, part), *logits(place, part_of(data, part), source))


def walk(out: Path, data: Path, seed: int = 0, label: str = "") -> tuple[Split, SpanLogits]:
    """constant@1 of a seed, or a head on it, on dev."""
    tuning = out / "tune" / f"{'curve' if seed == 0 else 'constant'}.seed{seed}" / "snapshot-1"
    if not label:
        return logits(tuning, part_of(data, "dev"))
    return logits(head(out, "late", seed, label), part_of(data, "dev"), tuning / "encoder")


def test_ensembles_join_the_members_of_a_seed_or_of_all_seeds(out: Path, data: Path) -> None:
    for seed in (0, 1):
        (split, one), (_, other) = walk(out, data, seed), walk(out, data, seed, "adapter-4")
        kept = record(out, f"join--pair.seed{seed}", data, "dev")
        check(kept, split, combine([one, other], split.windows, how="max"))
    (split, one), (_, other) = walk(out, data, 0, "adapter-4"), walk(out, data, 1, "adapter-4")
    kept = record(out, "join--all_seeds.seed0", data, "dev")
    check(kept, split, combine([one, other], split.windows, how="mean"))
    about = read_json(out / "records" / "join--all_seeds.seed0" / "about.json")
    assert about["members"] == ["constant@1/adapter-4 seed 0", "constant@1/adapter-4 seed 1"]


def test_other_decodings_are_of_the_same_logits(out: Path, data: Path) -> None:
    split, values = walk(out, data, 1, "adapter-4")
    check(
        record(out, "constant@1--adapter-4..second.seed1", data, "dev"),
        split,
        second_best(split.windows, values),
    )
    split, values = walk(out, data, 0, "adapter-4")
    published = DecodeConfig(decoding="bertvision")
    check(record(out, "constant@1--adapter-4..bertvision.seed0", data, "dev"), split, values, published)


def test_a_moved_head_reads_the_later_snapshot(out: Path, data: Path) -> None:
    """By hand: its weights on the other encoder's states, which `eval` would refuse."""
    folder = head(out, "early", 0, "adapter-4")
    text = (folder / "config.json").read_text()
    late = read_json(out / "tune" / "curve.seed0" / "snapshot-1" / "head" / "config.json")["encoder"][
        "fingerprint"
    ]
    early = json.loads(text)["encoder"]["fingerprint"]
    moved = out.parent / "moved"
    moved.mkdir()
    (moved / "config.json").write_text(text.replace(early, late))
    (moved / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    encoder = out / "tune" / "curve.seed0" / "snapshot-1" / "encoder"
    kept = record(out, "constant@1--adapter-4-from-constant@0.5.seed0", data, "dev")
    check(kept, *logits(moved, part_of(data, "dev"), encoder))


def test_label_heads_say_what_they_say_when_read_by_themselves(out: Path, data: Path) -> None:
    name = "answerable-pooled@1--adapter-pooler-4.seed0"
    spans = part_of(data, "dev")
    kept = LabelRecord.load(out / "records" / name / "dev.safetensors", spans.fingerprint)
    encoder = out / "tune" / "pooled.seed0" / "snapshot-1" / "encoder"
    split, values = logits(head(out, "labels", 0, "adapter-pooler-4"), answerable(spans), encoder)
    scored = score_texts(answer(split.windows, values, split.texts, split.text_task), split.texts)
    right = kept.at(0.5, ~answerable_of(spans))
    assert right.mean() == pytest.approx(scored["accuracy"])
    history = read_json(out / "records" / name / "about.json")["history"]
    assert [line["epoch"] for line in history] == [1, 2]
    assert all(0 <= line["score"] <= 1 for line in history)


def test_everything_is_told_of_a_system(out: Path) -> None:
    told = {path.parent.name: read_json(path) for path in out.glob("records/*/about.json")}
    assert all(about["made"] and about["command"].startswith("bertvision study") for about in told.values())
    late, tuned = told["constant@1--adapter-4.seed1"], told["constant@1.seed1"]
    assert tuned["tune_seconds"] == late["tune_seconds"] > 0
    assert late["fit_seconds"] > 0
    assert tuned["inference_seconds"] > 0
    assert late["inference_seconds"] > 0
    assert told["constant@0.5.seed1"]["tune_seconds"] == pytest.approx(tuned["tune_seconds"] / 2)
    assert late["trainable"] == tuned["trainable"] + late["parameters"]
    moved = told["constant@1--adapter-4-from-constant@0.5.seed1"]
    assert (moved["snapshot"], moved["fitted_on"]) == ("constant@1", "constant@0.5")
    assert moved["inference_seconds"] is None
    pair = told["join--pair.seed1"]
    assert pair["tune_seconds"] == pytest.approx(late["tune_seconds"])  # of one snapshot, once
    assert pair["fit_seconds"] == pytest.approx(late["fit_seconds"])
    for name, about in told.items():
        made = About.read(about, name)
        assert name.endswith(f".seed{made.seed}")
        if made.task == "span" and not made.variant and made.kind != "ensemble":
            share = made.data_fraction
            label = "" if made.kind == "snapshot" else made.label
            assert Key.of(made.key) == (made.snapshot, label, share, made.fitted_on)


def mtimes(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for name in ("records", "logits", "tune", "fit")
            for p in (folder / name).rglob("*") if p.is_file()}  # fmt: skip


def test_the_same_command_again_does_nothing(out: Path, place: Path, tiny_bert: Path, data: Path) -> None:
    before, units = mtimes(out), (out / "units.jsonl").read_text()
    outcome = study(write_recipe(place), tiny_bert, data, out, "--limit", "0")
    assert outcome.code == 0
    assert "report.html" in outcome.out
    assert mtimes(out) == before
    assert (out / "units.jsonl").read_text() == units
    lines = [json.loads(line) for line in units.splitlines()]
    wanted = {(part["name"], seed) for kind in ("tune", "fit", "read", "join", "decode")
              for part in RECIPE[kind] for seed in part.get("seeds", [0])}  # fmt: skip
    wanted.remove(("all seeds", 0))  # it is joined with the last of its seeds
    assert sorted((line["name"], line["seed"]) for line in lines) == sorted(wanted)
    assert all(line["alone"] is True and line["seconds"] > 0 for line in lines)


def test_nothing_is_told_of_a_system_before_all_its_answers_are_there(
    tmp_path: Path, out: Path, material: Material
) -> None:
    parts = {part: material.part(part, "span") for part in ("dev", "holdout")}
    shutil.copytree(out / "logits" / "constant@1.seed0", tmp_path / "logits")
    judge(parts, tmp_path / "logits", "", tmp_path / "whole", {"made": "here"})
    assert {path.name for path in (tmp_path / "whole").iterdir()} == {
        "about.json", "dev.safetensors", "holdout.safetensors",
    }  # fmt: skip
    (tmp_path / "logits" / "holdout.safetensors").unlink()
    with pytest.raises(ArtifactError, match="missing"):
        judge(parts, tmp_path / "logits", "", tmp_path / "half", {"made": "here"})
    assert (tmp_path / "half" / "dev.safetensors").exists()
    assert not (tmp_path / "half" / "about.json").exists()


# ---- a smaller study, for what changes it

SMALL: dict[str, Any] = {
    "tune": RECIPE["tune"][:1],
    "fit": [{**RECIPE["fit"][1], "seeds": [0], "inference": False}],
    "read": [],
    "join": [{**RECIPE["join"][0], "seeds": [0]}],
    "decode": RECIPE["decode"][1:],
}


def test_another_process_decodes_the_same(tmp_path: Path, tiny_bert: Path, data: Path, out: Path) -> None:
    outcome = study(
        write_recipe(tmp_path, **SMALL), tiny_bert, data, tmp_path / "out", "--workers", "1", "--shared"
    )
    assert outcome.code == 0, outcome.err
    ours, theirs = answers(tmp_path / "out"), answers(out)
    assert len(ours) == 3 * 6
    for name, value in ours.items():
        if isinstance(value, dict):
            assert value.pop("alone") is False
            assert value == {k: v for k, v in theirs[name].items() if k != "alone"}
        else:
            assert value == theirs[name]


def test_other_settings_are_refused_and_overwrite_replaces_all_that_stands_on_them(
    tmp_path: Path, tiny_bert: Path, data: Path
) -> None:
    place = tmp_path / "out"
    assert study(write_recipe(tmp_path, **SMALL), tiny_bert, data, place).code == 0
    before = answers(place)
    changed = json.loads(json.dumps(SMALL))
    changed["tune"][0]["finetune"]["lr"] = 1e-2
    recipe = write_recipe(tmp_path, **changed)
    refused = study(recipe, tiny_bert, data, place)
    assert refused.code == 2
    assert "other settings (finetune.lr)" in refused.err
    assert "--overwrite" in refused.err
    assert answers(place) == before
    assert study(recipe, tiny_bert, data, place, "--overwrite").code == 0
    after = answers(place)
    assert after.keys() == before.keys()
    assert all(
        after[name] != before[name] for name in before if name.endswith(("about.json", "dev.safetensors"))
    )
    assert study(recipe, tiny_bert, data, tmp_path / "fresh").code == 0
    assert answers(tmp_path / "fresh") == after


# ---- the data


@pytest.fixture(scope="module")
def material(tiny_bert: Path, data: Path, place: Path) -> Iterator[Material]:
    settings = {name: RECIPE[name] for name in ("windows", "holdout")}
    config = from_mapping(StudyConfig, settings | {"train": str(data), "dev": str(data)}, source="here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTVISION_CACHE", str(place / "cache"))
        yield Material(config, Encoder.load(str(tiny_bert), device="cpu"))


def test_no_article_is_both_trained_on_and_held_out(material: Material, data: Path) -> None:
    whole = load_span_data(str(data))
    titles = [{example.title for example in part.examples} for part in (material.rest, material.aside)]
    assert not titles[0] & titles[1]
    assert titles[0] | titles[1] == {e.title for e in whole.examples}
    assert len(material.rest) + len(material.aside) == len(whole)
    assert len(material.aside) >= RECIPE["holdout"] * len(whole) > len(material.aside) - 3
    for task in ("span", "answerable"):
        train, aside = material.train(task), material.part("holdout", task)
        assert not set(train.ids(np.arange(len(train.windows)))) & set(
            aside.ids(np.arange(len(aside.windows)))
        )
    untitled = SpanData(whole.paragraphs, [replace(example, title="") for example in whole.examples], "plain")
    rest, aside = by_article(untitled, 0.3)  # paragraphs stand for articles
    assert not {e.paragraph for e in rest.examples} & {e.paragraph for e in aside.examples}
    assert len(rest) + len(aside) == len(whole)
    one = whole.take([0, 1, 2])
    with pytest.raises(ConfigError, match="one article alone"):
        by_article(one, 0.5)


def windows_of(split: Split) -> set[tuple[int, ...]]:
    """Each by its example and its tokens."""
    ids, ends = split.windows.ids, split.windows.offsets
    return {
        (int(example), *ids[begin:end].tolist())
        for example, begin, end in zip(split.windows.example, ends[:-1], ends[1:], strict=True)
    }


def test_smaller_fractions_lie_inside_larger_ones(material: Material) -> None:
    parts = []
    for seed in (3, 4):
        parts = [material.train("span", fraction, seed) for fraction in (0.2, 0.5, 0.7, 1.0)]
        rows = [windows_of(part) for part in parts]
        for small, large in itertools.pairwise(rows):
            assert small < large
    whole = len(material.train("span").windows)
    assert [len(part.windows) for part in parts] == [round(f * whole) for f in (0.2, 0.5, 0.7)] + [whole]
    assert len({part.fingerprint for part in parts}) == 4
    other = material.train("span", 0.5, 4)
    assert other.fingerprint != material.train("span", 0.5, 3).fingerprint
