"""The pooler's vectors: every source hands out those of the Hugging Face model, and label heads fitted on any of them,
on [CLS] alone, stacked or alone are the same heads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from store_cases import toy_store
from toy import save_encoder
from tuning_helpers import label_texts, score_texts, split_of

from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.heads import load_head
from bertvision.model.trained import logits_of_trained, read_trained
from bertvision.states.base import LiveStates, MemoryStates, States
from bertvision.states.config import EVERYTHING, Selection, StatesConfig
from bertvision.states.stored import StoredStates
from bertvision.tasks.walk import head_logits
from bertvision.train.config import FitConfig
from bertvision.train.fit import fit
from bertvision.train.job import Split
from bertvision.train.run_folder import RunFolder
from bertvision.train.zoo import fit_zoo, zoo_members

CALL = 120
"""Tokens of an encoder call: batches are put together from several, and calls cut into several batches."""
HEADS = (
    "cls_linear", "tenney_small", "adapter_pooler:size=4", "cls_mlp:width=5",
    "minbert:blocks=1,dropout=0",
)  # fmt: skip
"""Heads that read [CLS] and pooled alone."""
WIDE = ("mean_pooler", "attention_pooler")


@pytest.fixture(scope="module")
def lively_encoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Encoders with large weights, whose vectors differ from text to text."""
    folder = tmp_path_factory.mktemp("lively")

    def make(architecture: str) -> Path:
        if not (folder / architecture).exists():
            save_encoder(folder / architecture, architecture, initializer_range=0.3)
        return folder / architecture

    return make


@pytest.fixture(scope="module")
def bert(lively_encoder: Callable[[str], Path]) -> Path:
    return lively_encoder("bert")


def sources(
    encoder: Encoder, split: Split, root: Path, selection: Selection = EVERYTHING
) -> dict[str, States]:
    dtype = "fp32" if encoder.precision == "fp32" else "fp16"
    selection = selection.resolved(encoder.num_states)
    store = toy_store(root, encoder, split.windows, selection=selection, dtype=dtype)
    return {
        "live": LiveStates(encoder, split.windows, tokens_per_call=CALL, selection=selection),
        "memory": MemoryStates(encoder, split.windows, tokens_per_call=CALL, selection=selection),
        "stored": StoredStates(encoder, store, tokens_per_call=CALL),
    }


def pooler_output(encoder: Encoder, split: Split) -> torch.Tensor:
    """(E, H) by the model itself, text by text."""
    found = []
    with torch.no_grad():
        for e in split.data.examples:
            texts = (e.first,) if e.second is None else (e.first, e.second)
            given = encoder.tokenizer(*texts, return_tensors="pt")
            found.append(encoder.model.eval()(**given).pooler_output[0])
    return torch.stack(found)


@pytest.mark.parametrize("architecture", ["bert", "mpnet", "albert", "distilbert"])
@pytest.mark.parametrize(
    "selection",
    [Selection(), Selection(positions="cls"), Selection((-1, 0), "cls"), Selection((0, 1))],
    ids=str,
)
def test_every_source_gives_the_model_s_pooled_vectors(
    architecture: str, selection: Selection, lively_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    source = lively_encoder(architecture)
    encoder, split = Encoder.load(str(source)), split_of(label_texts(13, pairs=True), source)
    assert encoder.has_pooler == (architecture != "distilbert")
    if not encoder.has_pooler or selection == Selection((0, 1)):  # no pooler, or not the state it reads
        for states in sources(encoder, split, tmp_path, selection).values():
            assert all(batch.pooled is None for batch in states.walk())
        return
    wanted = pooler_output(encoder, split)
    assert wanted.std(dim=0).max() > 0.01, "they differ from text to text"
    for kind, states in sources(encoder, split, tmp_path, selection).items():
        seen = 0
        for batches in (states.epoch(1, batch_size=4, seed=0), states.walk()):
            for batch in batches:
                assert batch.pooled is not None
                tolerance = 2e-3 if kind == "memory" else 1e-5
                assert torch.allclose(batch.pooled, wanted[batch.windows], atol=tolerance), kind
                part = batch.rows(slice(1, 3)).pooled
                assert part is not None
                assert torch.equal(part, batch.pooled[1:3])
                seen += len(batch.windows)
        assert seen == 2 * len(split.windows)


# ---- heads fitted on them


def fitted(states: States, split: Split, folder: Path, *heads: str, **values: Any) -> dict[str, Any]:
    config = FitConfig(heads=heads, epochs=2, batch_size=6, lr=3e-3, eps=1e-2, **values)
    return fit(states, zoo_members(config, split.task), config, RunFolder(folder, {}), task=split.task)


def largest(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """The largest difference of two fits' weights; they must have moved much more than it."""
    assert ours.keys() == theirs.keys()
    return max(
        float((p - q).detach().abs().max())
        for name in ours
        for p, q in zip(ours[name].head.parameters(), theirs[name].head.parameters(), strict=True)
    )


@pytest.mark.parametrize("data", [label_texts(25), score_texts(25)], ids=["labels", "scores"])
def test_heads_fitted_from_every_source_and_on_cls_alone_are_the_same(
    data: Any, bert: Path, tmp_path: Path
) -> None:
    encoder, split = Encoder.load(str(bert)), split_of(data, bert)
    whole, narrow = (
        sources(encoder, split, tmp_path / name, selection)
        for name, selection in (("all", Selection()), ("cls", Selection(positions="cls")))
    )
    reference = fitted(whole["live"], split, tmp_path / "live", *HEADS)
    begun = {
        name: f.spec.build(f.head.geometry, seed=0).state_dict()["project.weight"]
        for name, f in reference.items()
    }
    assert all((f.head.project.weight - begun[n]).abs().max() > 1e-3 for n, f in reference.items())
    for kind, states in {**whole, **{f"{k} cls": f for k, f in narrow.items()}}.items():
        again = fitted(states, split, tmp_path / kind, *HEADS)
        assert largest(again, reference) < (2e-4 if "memory" in kind else 2e-6), kind
        ours = head_logits(states, {n: f.head for n, f in again.items()}, split.task)
        theirs = head_logits(whole["live"], {n: f.head for n, f in again.items()}, split.task)
        for name in ours:
            tolerance = 5e-3 if "memory" in kind else 1e-5
            assert np.allclose(ours[name]["values"], theirs[name]["values"], atol=tolerance), (kind, name)


@pytest.mark.parametrize("kind", ["live", "memory", "stored"])
def test_states_kept_in_half_precision_are_read_under_bf16(kind: str, bert: Path, tmp_path: Path) -> None:
    """Half precision is float16 where an encoder on a CPU computes in bf16: autocast does not mix the two."""
    encoder, split = Encoder.load(str(bert), device="cpu", precision="bf16"), split_of(label_texts(25), bert)
    plain = LiveStates(Encoder.load(str(bert)), split.windows)
    exact = fitted(plain, split, tmp_path / "exact", *HEADS, *WIDE)
    rough = fitted(sources(encoder, split, tmp_path)[kind], split, tmp_path / kind, *HEADS, *WIDE)
    for name, one in rough.items():
        assert one.history[-1]["loss"] == pytest.approx(exact[name].history[-1]["loss"], rel=0.05), name


def zoo(encoder: Encoder, train: Split, folder: Path, *heads: str, states: Any = None, **values: Any) -> Any:
    config = FitConfig(heads=heads, epochs=2, batch_size=6, lr=3e-3, **values)
    return fit_zoo(
        encoder, train, folder=folder, config=config, encoder_about={"name": encoder.name},
        states=states or StatesConfig(source="memory"), dev=train,
    )  # fmt: skip


def test_heads_on_cls_are_fitted_and_used_on_it_without_being_asked(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = label_texts(25)
    encoder, split = Encoder.load(str(bert)), split_of(data, bert)
    kept: list[int] = []
    real = MemoryStates.__init__

    def begin(self: MemoryStates, *args: Any, **how: Any) -> None:
        real(self, *args, **how)
        kept.append(self.store.shape[1])

    monkeypatch.setattr(MemoryStates, "__init__", begin)
    zoo(encoder, split, tmp_path / "cls", *HEADS, keep="best")
    assert kept == [len(split.windows)] * 2, "train and dev: one token a window"
    zoo(encoder, split, tmp_path / "all", *HEADS, WIDE[0], keep="best")
    assert kept[2:] == [split.windows.num_tokens] * 2
    for folder in sorted(tmp_path.glob("cls/*.seed0")):
        (head, about), (twin, other) = load_head(folder), load_head(tmp_path / "all" / folder.name)
        assert about["states"] == {"layers": [0, 1, 2], "positions": "cls"}
        assert "states" not in other
        for p, q in zip(head.parameters(), twin.parameters(), strict=True):
            assert torch.allclose(p, q, atol=1e-6)
        both = [read_trained(path) for path in (folder, tmp_path / "all" / folder.name)]
        assert both[0].readers[0].selection.positions == "cls"
        (_, ours), (_, theirs) = logits_of_trained(both, data)
        assert np.allclose(ours["values"], theirs["values"], atol=1e-5)


def test_what_frozen_states_cannot_serve_is_refused(bert: Path, tmp_path: Path) -> None:
    encoder, narrow = Encoder.load(str(bert)), StatesConfig(positions="cls")
    with pytest.raises(ConfigError, match=r"positions cls keeps one token, and mean-pooler reads all"):
        zoo(encoder, split_of(label_texts(12), bert), tmp_path / "out", "mean_pooler", states=narrow)
    with pytest.raises(ConfigError, match="use finetune, or leave out --apart"):
        zoo(encoder, split_of(score_texts(12), bert, apart=True), tmp_path / "out", "cls_linear")
    assert not (tmp_path / "out").exists()
