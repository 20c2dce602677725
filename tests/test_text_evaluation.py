"""Logits of texts in one walk: those of every text read alone, whatever shares its batch, merged over windows and
answered end to end."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_runner import bertvision
from tuning_helpers import WINDOWS, label_texts, score_texts, split_of, tuned

from bertvision.data.examples import TextData, TextExample
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.heads import Geometry, load_head, parse_head
from bertvision.heads.base import bare_batch
from bertvision.model.trained import logits_of_trained, read_trained
from bertvision.states.base import LiveStates, MemoryStates
from bertvision.tasks.base import TextConfig
from bertvision.tasks.logits import Logits
from bertvision.tasks.walk import head_logits
from bertvision.train.job import Split, load_split, window_split

HEADS = ("minbert:vectors=2,dropout=0.5", "minbert:vectors=2,blocks=0")


def heads_of(encoder: Encoder, split: Split, *texts: str) -> dict[str, Any]:
    geometry = Geometry(encoder.num_states, encoder.hidden, split.task.outputs, "window", True)
    made = {text: parse_head(text).build(geometry, seed=3) for text in texts}
    for head in made.values():
        torch.nn.init.normal_(head.get_parameter("project.weight"))
    return made


def one_by_one(encoder: Encoder, split: Split, head: Any) -> np.ndarray:
    """(R, C) by the model and the head alone, window after window of an example, without pads."""
    windows, group, found = split.windows, split.task.group, []
    head.eval()
    with torch.no_grad():
        for begin in range(0, len(windows), group):
            states, pooled = [], []
            for i in range(begin, begin + group):
                piece = slice(windows.offsets[i], windows.offsets[i + 1])
                ids, types = (
                    torch.from_numpy(a[piece].astype(np.int64))[None] for a in (windows.ids, windows.types)
                )
                out = encoder.model.eval()(input_ids=ids, token_type_ids=types, output_hidden_states=True)
                states.append(torch.stack(out.hidden_states)[:, :, :1])  # these heads read [CLS]
                pooled.append(out.pooler_output)
            mask = torch.ones(group, 1, dtype=torch.bool)
            batch = bare_batch(torch.cat(states, dim=1), mask, pooled=torch.cat(pooled))
            found.append(head(batch)[0].numpy())
    return np.stack(found)


@pytest.mark.parametrize("call", [20, 37, 90, 10_000])
@pytest.mark.parametrize("kind", [LiveStates, MemoryStates])
@pytest.mark.parametrize("gigabytes", [4.0, 1e-6])
def test_pairs_apart_are_read_as_if_alone(
    gigabytes: float, kind: Any, call: int, lively: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Odd numbers of texts of odd lengths; calls that hold less than a pair; parts of a batch in little memory."""
    from bertvision.tasks import walk

    encoder = Encoder.load(str(lively))
    split = split_of(label_texts(17, 3, pairs=True), lively, apart=True)
    assert len(set(split.windows.lengths % 2)) == 2
    heads = heads_of(encoder, split, *HEADS)
    monkeypatch.setattr(walk, "call_tokens", lambda *_: call)  # how groups are put together
    states = kind(encoder, split.windows, tokens_per_call=call)
    found = head_logits(states, heads, split.task, activation_gb=gigabytes)
    for name, head in heads.items():
        wanted = one_by_one(encoder, split, head)
        assert found[name]["values"].shape == (17, 3)
        assert np.ptp(wanted, axis=0).min() > 0.1, "examples are told apart"
        tolerance = 2e-2 if kind is MemoryStates else 1e-4
        assert np.allclose(found[name]["values"], wanted, atol=tolerance)


def long_texts() -> TextData:
    """Short texts and long ones, whose mark stands in the first, a middle or the last window."""
    random = np.random.default_rng(5)
    made = []
    for i in range(12):
        words = random.choice(["the", "old", "road", "was", "cold"], 12 + 50 * (i % 3)).tolist()
        words[int(random.integers(len(words)))] = ("arden", "brill")[i % 2]
        made.append(TextExample(f"l{i}", " ".join(words), None, i % 2))
    return TextData(made, "label", ("arden", "brill"), name="long")


@pytest.mark.parametrize("merge", ["mean", "min", "max", "any_null"])
def test_windows_of_a_long_text_become_one_answer(merge: Any, lively: Path, tmp_path: Path) -> None:
    encoder, data = Encoder.load(str(lively)), long_texts()
    config = replace(WINDOWS, max_seq_length=32, doc_stride=12)
    split = window_split(data, encoder, config, text=TextConfig(merge=merge))
    counts = np.bincount(split.windows.example)
    assert counts.min() == 1
    assert counts.max() > 3
    tuned(tmp_path, split, lively, dev=split, epochs=1.0)
    head, _ = load_head(tmp_path / "snapshot-1" / "head")
    tuned_encoder = Encoder.load(str(tmp_path / "snapshot-1" / "encoder"))
    rows = torch.from_numpy(one_by_one(tuned_encoder, split, head)).double().softmax(-1).numpy()[:, 1]
    pick = {"mean": np.mean, "min": np.min, "max": np.max, "any_null": np.max}[merge]
    wanted = np.array([pick(rows[split.windows.example == i]) for i in range(12)])
    ((again, logits),) = logits_of_trained([read_trained(tmp_path / "snapshot-1")], data)
    found = again.task.answer(again.windows, logits, data)
    assert np.allclose(found.probabilities[:, 1], wanted, atol=1e-5)
    assert found.values.tolist() == (wanted > 0.5).astype(int).tolist()


def test_answerable_windows_are_labelled_by_what_they_hold(lively: Path, toy_squad: Path) -> None:
    encoder = Encoder.load(str(lively))
    spans = load_split(str(toy_squad), encoder, WINDOWS)
    split = load_split(f"answerable:{toy_squad}", encoder, WINDOWS)
    assert (split.task.kind, split.task.outputs, split.task.config()["merge"]) == ("label", 2, "min")
    assert np.array_equal(split.windows.ids, spans.windows.ids)
    holds = spans.windows.labels[:, 0] != spans.windows.null
    assert split.windows.labels[:, 0].tolist() == (~holds).astype(int).tolist()
    partly = [
        i for i, e in enumerate(split.data.examples)
        if e.label == 0 and len(set(split.windows.labels[split.windows.example == i, 0])) == 2
    ]  # fmt: skip
    assert partly, "a question whose answer only some windows hold"
    # A head that is right about every window is right about every question with min, and not with any_null.
    right = Logits({"values": np.where(split.windows.labels == np.arange(2), 5.0, -5.0).astype(np.float32)})
    truth = [e.label for e in split.data.examples]
    assert split.task.answer(split.windows, right, split.data).values.tolist() == truth
    vote = split.task.merged_by("any_null")
    voted = vote.answer(split.windows, right, split.data).values
    assert [i for i, (v, t) in enumerate(zip(voted, truth, strict=True)) if v != t] == partly


@pytest.mark.parametrize("apart", [False, True])
def test_single_texts_are_no_pairs(apart: bool, lively: Path, tmp_path: Path) -> None:
    """Neither as dev of a training set nor for a head: two texts would be read as one pair."""
    singles, pairs = score_texts(12, pairs=False), score_texts(12)
    for name, data in (("singles", singles), ("pairs", pairs)):
        rows = ["\t".join([t for t in (e.first, e.second) if t] + [str(e.label)]) for e in data.examples]
        head = "sentence1\tsentence2\tscore" if data.pairs else "sentence\tscore"
        (tmp_path / f"{name}.tsv").write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    words = ["finetune", "--encoder", lively, "--text.task", "score", "--max-seq-length", "64"]
    words += ["--out", tmp_path / "out"] + ["--apart", "--head", "minbert:vectors=2"] * apart
    for train, dev in (("pairs", "singles"), ("singles", "pairs")):
        data = ("--train", tmp_path / f"{train}.tsv", "--dev", tmp_path / f"{dev}.tsv")
        done = bertvision(*words, *data)
        assert done.code == 2
        assert f"{dev}.tsv has " in done.err
        assert "name data of its kind" in done.err
        assert not (tmp_path / "out").exists()
    done = bertvision(*words, "--train", tmp_path / "pairs.tsv")
    assert done.code == 0, done.err
    trained = [read_trained(tmp_path / "out" / "snapshot-1")]
    assert len(logits_of_trained(trained, pairs)[0][1]["values"]) == 12
    with pytest.raises(ConfigError, match="has single texts, and the task is about pairs"):
        logits_of_trained(trained, singles)
