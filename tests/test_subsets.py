"""Some layers, or the classification token alone: states against slicing, heads from fit to answer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_runner import TINY, bertvision
from safetensors.torch import load_file
from store_cases import toy_store

from bertvision.artifacts import read_json
from bertvision.data.windows import Windows
from bertvision.encoder.batch import collate
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.heads import Head, load_head
from bertvision.heads.base import bare_batch
from bertvision.model.load import load
from bertvision.model.trained import read_trained
from bertvision.states.base import LiveStates, MemoryStates, StateBatch, States
from bertvision.states.config import Selection, StatesConfig
from bertvision.states.stored import StoredStates
from bertvision.tasks.base import DecodeConfig
from bertvision.tasks.logits import Logits
from bertvision.tasks.span_decode import combine, decode
from bertvision.train.job import Split

READINGS = [
    Selection((0, -1), "cls"),
    Selection((2, 0)),
    Selection((), "cls"),
]


def tokens_of(windows: Windows, w: int, positions: str) -> list[int]:
    """The tokens of a window that are read, as positions inside it."""
    return list(range(int(windows.lengths[w]))) if positions == "all" else [int(windows.null[w])]


# ---- readings


def test_layers_are_counted_from_either_end_in_the_order_given() -> None:
    assert Selection().numbers(3) == (0, 1, 2)
    assert Selection((2, 0, -2)).numbers(3) == (2, 0, 1)
    assert Selection((-1,)).numbers(13) == (12,)
    assert Selection((0, 1, -1)).whole(3)
    assert Selection((0, 1, -1)).resolved(3) == Selection()
    assert not Selection((2, 1, 0)).whole(3)
    assert not Selection(positions="cls").whole(3)
    assert Selection(positions="cls").resolved(3) == Selection((0, 1, 2), "cls")


@pytest.mark.parametrize(
    ("layers", "words"),
    [((3,), "names 3, .* 0 to 2"), ((0, -4), "names -4, .* 0 to 2"), ((2, -1), "names state 2 twice"),
     ((0, 0), "names state 0 twice")],
)  # fmt: skip
def test_layers_there_are_not_are_one_sentence(layers: tuple[int, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=f"--states.layers {words}") as caught:
        StatesConfig(layers=layers).selection.numbers(3)
    assert "\n" not in str(caught.value)


# ---- states


def cut(batch: StateBatch, windows: Windows, selection: Selection) -> list[torch.Tensor]:
    """The states of each window of a whole batch, sliced by hand: (layers, kept tokens, H)."""
    layers = list(selection.numbers(len(batch.states)))
    return [
        batch.states[layers, row][:, tokens_of(windows, int(w), selection.positions)]
        for row, w in enumerate(batch.windows)
    ]


def own(batch: StateBatch) -> list[torch.Tensor]:
    return [batch.states[:, row, mask] for row, mask in enumerate(batch.mask)]


def opened(kind: Any, encoder: Encoder, windows: Windows, root: Path, selection: Selection) -> States:
    if kind in ("live", "memory"):
        source = LiveStates if kind == "live" else MemoryStates
        return source(encoder, windows, tokens_per_call=700, selection=selection)
    store = toy_store(root, encoder, windows, selection=selection, dtype=kind)
    return StoredStates(encoder, store, tokens_per_call=700)


@pytest.mark.parametrize("selection", READINGS, ids=str)
def test_states_are_what_slicing_gives(
    encoder: Encoder, train: Split, selection: Selection, tmp_path: Path
) -> None:
    """Bit by bit: the encoder sees the same calls, whatever is read."""
    windows = train.windows
    for kind in ("live", "memory", "fp32", "int8", "int8"):  # stores are written, then read
        whole = opened(kind, encoder, windows, tmp_path, Selection())
        part = opened(kind, encoder, windows, tmp_path, selection)
        assert part.layers == selection.numbers(3)
        if isinstance(part, MemoryStates):
            tokens = windows.num_tokens if selection.positions == "all" else len(windows)
            assert part.store.shape == (len(part.layers), tokens, 32), "only what is read is kept"
        assert part.num_batches(4) == whole.num_batches(4)
        walks = (lambda states: states.walk()), (lambda states: states.epoch(1, batch_size=4, seed=3))
        for walk in walks:
            seen = 0
            for a, b in zip(walk(whole), walk(part), strict=True):
                assert np.array_equal(a.windows, b.windows), "batches do not depend on the reading"
                pieces = cut(a, windows, selection)
                for expected, found in zip(pieces, own(b), strict=True):
                    assert torch.equal(expected, found)
                assert b.mask.shape[1] == max(piece.shape[1] for piece in pieces)
                assert b.states.shape == (len(part.layers), *b.mask.shape, 32)
                assert torch.equal(a.targets, b.targets)
                seen += len(b.windows)
            assert seen == len(windows)
        chosen = np.array([7, 2, 19])
        one_call = part.read(chosen)
        assert one_call.windows.tolist() == chosen.tolist()
        for expected, found in zip(cut(whole.read(chosen), windows, selection), own(one_call), strict=True):
            assert torch.equal(expected, found)


def test_states_are_written_where_the_heads_want_them(encoder: Encoder, train: Split) -> None:
    states = LiveStates(encoder, train.windows, tokens_per_call=700, selection=READINGS[0])
    buffer = torch.empty(10**6)
    asked: list[tuple[int, ...]] = []

    def place(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        asked.append(shape)
        return buffer[: int(np.prod(shape))].view(shape)

    plain = states.epoch(0, batch_size=4, seed=0)
    for a, b in zip(states.epoch(0, batch_size=4, seed=0, place=place), plain, strict=True):
        assert a.states.data_ptr() == buffer.data_ptr()
        assert asked[-1] == tuple(b.states.shape)
        assert torch.equal(a.states, b.states)


# ---- from the command line


HEADS = ("adapter:size=4", "learned_pooling", "biaffine:size=4,rank=4")
WINDOW_FLAGS = ("--max-seq-length", "64", "--max-query-length", "16", "--doc-stride", "24")
CUT = {"layers": [0, 2], "positions": "all"}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, toy_squad: Path) -> Path:
    """`fit` on the first and the last state."""
    folder = tmp_path_factory.mktemp("zoo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTVISION_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        done = bertvision(*fit_words(tiny_bert, toy_squad, folder / "cut", "0,-1"))
        assert done.code == 0, done.err
        flags = ("fit", tiny_bert, "--train", toy_squad, "--dev", toy_squad, "--out", folder / "whole")
        done = bertvision(*flags, "--heads", "adapter:size=4", *WINDOW_FLAGS)
        assert done.code == 0, done.err
    return folder


def fit_words(encoder: Path, data: Path, out: Path, *layers: str) -> tuple[str | Path, ...]:
    words = ("fit", encoder, "--train", data, "--dev", data, "--out", out, "--heads", *HEADS, *WINDOW_FLAGS)
    return (*words, "--epochs", "2", "--lr", "3e-3", "--states.layers", *layers)


def by_hand(head: Head, encoder: Encoder, windows: Windows) -> np.ndarray:
    """(N, outputs) of a head on states 0 and 2, window after window."""
    found = []
    for w in range(len(windows)):
        tokens = collate(windows, np.array([w]), pad_id=encoder.pad_id, device=encoder.device)
        with torch.no_grad():
            found.append(head(bare_batch(encoder.states(tokens)[[0, 2]], tokens.mask))[0].numpy())
    return np.concatenate(found)


def logits_in(folder: Path, split: Split) -> Logits:
    return Logits.load(folder / "dev" / "logits.safetensors", split.fingerprint)


def test_a_fitted_head_remembers_what_it_read(zoo: Path, encoder: Encoder, train: Split) -> None:
    """Its logits are those of the head on states cut by hand."""
    folders = sorted(p.parent for p in (zoo / "cut").glob("*/config.json"))
    assert len(folders) == len(HEADS)
    for folder in folders:
        head, config = load_head(folder)
        assert config["states"] == CUT
        assert config["geometry"]["states"] == 2
        logits = logits_in(folder, train)
        expected = by_hand(head, encoder, train.windows)
        if (found := logits.arrays.get("pairs")) is None:
            found = np.stack([logits["start"], logits["end"]], axis=1)
        np.testing.assert_allclose(found, expected, atol=1e-4)
    assert read_json(zoo / "cut" / "stage.json")["key"]["selection"] == CUT


def test_predict_answers_as_the_saved_logits_do(zoo: Path, train: Split) -> None:
    folder = zoo / "cut" / "adapter-4.seed0"
    model = load(folder)
    (system,) = model.systems.values()
    assert [one.selection for one in system.readers] == [Selection((0, 2))]
    (answers,) = model.answer(train.data).values()
    expected = decode(train.windows, logits_in(folder, train), train.data, system.tuning.decode)
    assert answers.predictions() == expected.predictions()
    np.testing.assert_allclose(answers.score_diff, expected.score_diff, atol=1e-3)


def test_heads_with_different_readings_are_joined(
    zoo: Path, train: Split, toy_squad: Path, tmp_path: Path
) -> None:
    """One reads everything, one two states."""
    parts = [zoo / "whole" / "adapter-4.seed0", zoo / "cut" / "learned-pooling.seed0"]
    out = tmp_path / "joined"
    done = bertvision("ensemble", *parts, "--data", toy_squad, "--how", "product", "--out", out, "--json")
    assert done.code == 0, done.err
    joined = combine([logits_in(part, train) for part in parts], train.windows, how="product")
    assert np.isfinite(joined["start"]).all()
    expected = decode(train.windows, joined, train.data, DecodeConfig())
    assert [one.selection for one in read_trained(out).readers] == [Selection(), Selection((0, 2))]
    (found,) = load(out).answer(train.data).values()
    np.testing.assert_allclose(found.score_diff, expected.score_diff, atol=1e-3)
    done = bertvision("eval", out, "--data", toy_squad, "--json")
    assert done.code == 0, done.err
    scores = read_json(out / "metrics.json")["scores"]["dev"]
    assert json.loads(done.out)[0]["scores"]["tuned_f1"] == pytest.approx(scores["tuned_f1"])


def test_another_reading_does_not_go_on_with_the_work(
    zoo: Path, tiny_bert: Path, toy_squad: Path, tmp_path: Path
) -> None:
    assert bertvision(*fit_words(tiny_bert, toy_squad, zoo / "cut", "0", "2")).code == 0, "the same states"
    other = bertvision(*fit_words(tiny_bert, toy_squad, zoo / "cut", "0", "1"))
    assert other.code != 0
    assert "selection" in other.err or "other settings" in other.err
    assert read_json(zoo / "cut" / "adapter-4.seed0" / "config.json")["states"] == CUT


def test_run_reads_a_part_and_its_snapshot_everything(
    tiny_bert: Path, toy_squad: Path, finished_run: Path, tmp_path: Path
) -> None:
    """The snapshot is the one of the whole run, and so are its own head's logits."""
    out = tmp_path / "run"
    words = ("run", "--encoder", tiny_bert, "--train", toy_squad, "--dev", toy_squad, "--out", out)
    done = bertvision(*words, *TINY, "--states.layers=-1,0")
    assert done.code == 0, done.err
    (fit,) = (out / "fit").iterdir()
    assert [read_json(path)["states"]["layers"] for path in fit.glob("*/config.json")] == [[2, 0]] * 3
    snapshot = Path("finetune") / fit.name / "head"
    assert "states" not in read_json(out / snapshot / "config.json")
    ours, theirs = (load_file(run / snapshot / "dev" / "logits.safetensors") for run in (out, finished_run))
    assert torch.equal(ours["start"], theirs["start"])
    assert torch.equal(ours["end"], theirs["end"])
    assert load(out).predict("Who built the mill?", "The mill was built by Ada.") is not None
