"""Some layers and some positions: windows against a loop, states against slicing, heads from fit to answer."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_runner import TINY, bertvision
from fit_helpers import WINDOWS, fixture_encoder, fixture_train  # noqa: F401  (fixtures)
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from span_cases import make_case, make_logits

from bertvision.artifacts import read_json
from bertvision.data.windows import Positions, Windows, keep_tokens, kept_tokens, pack_windows
from bertvision.encoder.batch import collate
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError
from bertvision.heads import Head, load_head
from bertvision.heads.base import bare_batch
from bertvision.model.load import load
from bertvision.model.trained import read_trained
from bertvision.states.base import LiveStates, MemoryStates, StateBatch
from bertvision.states.config import Selection, StatesConfig
from bertvision.tasks.logits import NOT_READ, Logits
from bertvision.tasks.settings import DecodeConfig
from bertvision.tasks.span_answers import best_threshold
from bertvision.tasks.span_decode import decode
from bertvision.tasks.span_logits import combine, span_logits
from bertvision.train.splits import Split

READINGS = [
    Selection((0, -1), "context"),
    Selection((2, 0)),
    Selection((), "context"),
    Selection((1,), "cls"),
]


# ---- windows


@st.composite
def any_windows(draw: st.DrawFn) -> Windows:
    """Windows of any lengths with the paragraph, the null token and the answer anywhere; some without a paragraph."""
    shapes = []
    for _ in range(draw(st.integers(1, 6))):
        length = draw(st.integers(1, 9))
        begin, end = sorted(draw(st.tuples(st.integers(0, length), st.integers(0, length))))
        null = draw(st.integers(0, length - 1))
        label = [null, null]
        if end > begin and draw(st.booleans()):
            label = sorted(draw(st.tuples(st.integers(begin, end - 1), st.integers(begin, end - 1))))
        shapes.append((length, (begin, end), label, null))
    lengths, context, labels, null = zip(*shapes, strict=True)
    total = sum(lengths)
    return Windows(
        ids=np.arange(total, dtype=np.int32),
        types=(np.arange(total) % 2).astype(np.uint8),
        chars=np.arange(2 * total, dtype=np.int32).reshape(-1, 2),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        example=np.arange(len(shapes), dtype=np.int32),
        context=np.array(context, np.int32).reshape(-1, 2),
        labels=np.array(labels, np.int32).reshape(-1, 2),
        null=np.array(null, np.int32),
        best=np.arange(total) % 3 == 0,
    )


def positions_of(windows: Windows, w: int, positions: Positions) -> list[int]:
    """The kept tokens of one window, as positions inside it."""
    begin, end = windows.context[w].tolist()
    tokens = range(int(windows.lengths[w]))
    if positions == "all":
        return list(tokens)
    return [t for t in tokens if t == windows.null[w] or (positions == "context" and begin <= t < end)]


@settings(max_examples=200, deadline=None)
@given(any_windows(), st.sampled_from(["all", "cls", "context"]))
def test_kept_windows_are_what_a_loop_keeps(windows: Windows, positions: Positions) -> None:
    mask = kept_tokens(windows, positions)
    kept = keep_tokens(windows, mask, spans=True)
    assert len(kept) == len(windows)
    for w in range(len(windows)):
        own = positions_of(windows, w, positions)
        at = windows.offsets[w] + np.array(own)
        assert np.flatnonzero(mask[windows.offsets[w] : windows.offsets[w + 1]]).tolist() == own
        part = slice(int(kept.offsets[w]), int(kept.offsets[w + 1]))
        for name in ("ids", "types", "chars", "best"):
            assert np.array_equal(getattr(kept, name)[part], getattr(windows, name)[at])
        null = own.index(int(windows.null[w]))
        assert kept.null[w] == null
        assert kept.example[w] == windows.example[w]
        begin, end = windows.context[w].tolist()
        assert kept.context[w].tolist() == [sum(t < begin for t in own), sum(t < end for t in own)]
        label = windows.labels[w].tolist()
        there = all(t in own for t in label)
        assert kept.labels[w].tolist() == ([own.index(t) for t in label] if there else [null, null])
    for name in ("context", "labels", "null", "offsets", "ids", "best"):
        assert getattr(kept, name).dtype == getattr(windows, name).dtype
    if positions == "all":
        assert pack_windows(kept) == pack_windows(windows)


# ---- readings


def test_layers_are_counted_from_either_end_in_the_order_given() -> None:
    assert Selection().numbers(3) == (0, 1, 2)
    assert Selection((2, 0, -2)).numbers(3) == (2, 0, 1)
    assert Selection((-1,)).numbers(13) == (12,)
    assert Selection((0, 1, -1)).whole(3)
    assert Selection((0, 1, -1)).resolved(3) == Selection()
    assert not Selection((2, 1, 0)).whole(3)
    assert not Selection(positions="context").whole(3)
    assert Selection(positions="context").resolved(3) == Selection((0, 1, 2), "context")


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
        batch.states[layers, row][:, positions_of(windows, int(w), selection.positions)]
        for row, w in enumerate(batch.windows)
    ]


def own(batch: StateBatch) -> list[torch.Tensor]:
    return [batch.states[:, row, mask] for row, mask in enumerate(batch.mask)]


@pytest.mark.parametrize("selection", READINGS, ids=str)
def test_states_are_what_slicing_gives(encoder: Encoder, train: Split, selection: Selection) -> None:
    """Bit by bit: the encoder sees the same calls, whatever is read."""
    windows = train.windows
    for kind in (LiveStates, MemoryStates):
        whole = kind(encoder, windows, tokens_per_call=700)
        part = kind(encoder, windows, tokens_per_call=700, selection=selection)
        assert part.layers == selection.numbers(3)
        if isinstance(part, MemoryStates):
            assert part.store.shape == (len(part.layers), part.kept.num_tokens, 32), (
                "only what is read is kept"
            )
        assert (part.kept is windows) == (selection.positions == "all")
        assert part.num_batches(4) == whole.num_batches(4)
        walks = (lambda states: states.walk()), (lambda states: states.epoch(1, batch_size=4, seed=3))
        for walk in walks:
            seen = 0
            for a, b in zip(walk(whole), walk(part), strict=True):
                assert np.array_equal(a.windows, b.windows), "batches do not depend on the reading"
                for expected, found in zip(cut(a, windows, selection), own(b), strict=True):
                    assert torch.equal(expected, found)
                assert b.mask.shape[1] == part.kept.lengths[b.windows].max()
                assert b.states.shape == (len(part.layers), *b.mask.shape, 32)
                assert b.targets.tolist() == part.kept.labels[b.windows].tolist()
                assert b.bounds.tolist() == part.kept.context[b.windows].tolist()
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

    plain = list(states.epoch(0, batch_size=4, seed=0))
    for a, b in zip(states.epoch(0, batch_size=4, seed=0, place=place), plain, strict=True):
        assert a.states.data_ptr() == buffer.data_ptr()
        assert asked[-1] == tuple(b.states.shape)
        assert torch.equal(a.states, b.states)


# ---- logits of tokens that were not read


def on_kept(logits: Logits, mask: np.ndarray) -> Logits:
    return Logits({name: values[mask] for name, values in logits.arrays.items()}, logits.log_probs)


def not_read(logits: Logits, mask: np.ndarray) -> Logits:
    """The logits as evaluation gives them for a head that reads `mask`."""
    made = {name: np.where(mask, logits[name], np.float32(NOT_READ)) for name in ("start", "end")}
    if (pairs := logits.arrays.get("pairs")) is not None:
        made["pairs"] = np.where(mask[:, None], pairs, np.float32(0))
        made["pairs"][~mask, :2] = NOT_READ
    return Logits(made, logits.log_probs)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["google", "nbest", "bertvision"]),
    st.sampled_from(["one", "joint", "max", "mean", "product"]),
    st.booleans(),
)
def test_whole_windows_decode_like_the_kept_tokens_alone(
    seed: int, decoding: Any, kind: str, null_inside: bool
) -> None:
    """Whatever decodes or joins them, tokens that were not read change nothing."""
    data, windows = make_case(seed, null_inside=null_inside)
    mask = kept_tokens(windows, "context")
    kept = keep_tokens(windows, mask, spans=True)
    models = [make_logits(seed + i, windows) for i in range(1 if kind in ("one", "joint") else 5)]
    if kind == "joint":
        pairs = np.random.default_rng(seed).normal(0, 2, (windows.num_tokens, 6)).astype(np.float32)
        models = [span_logits(models[0]["start"], models[0]["end"], pairs)]
    whole, part = [not_read(m, mask) for m in models], [on_kept(m, mask) for m in models]
    if len(models) > 1:
        how: Any = kind
        whole, part = [combine(whole, windows, how=how)], [combine(part, kept, how=how)]
        assert np.exp(whole[0]["start"][~mask].astype(np.float64)).max(initial=0) == 0
    config = DecodeConfig(decoding=decoding)
    a, b = decode(windows, whole[0], data, config), decode(kept, part[0], data, config)
    assert a.best == b.best
    # Sums over more numbers, of which some are zero, may round otherwise in the last digit.
    for name in ("score_diff", "null_score", "nbest_score", "probabilities"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-5, atol=1e-5)
    assert best_threshold(a) == pytest.approx(best_threshold(b), abs=1e-4)


# ---- from the command line


HEADS = ("adapter:size=4", "learned_pooling", "biaffine:size=4,rank=4")
WINDOW_FLAGS = ("--max-seq-length", "64", "--max-query-length", "16", "--doc-stride", "24")
CUT = {"layers": [0, 2], "positions": "context"}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, toy_squad: Path) -> Path:
    """`fit` on the first and the last state of the paragraph's tokens."""
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
    return (
        *words,
        "--epochs",
        "2",
        "--lr",
        "3e-3",
        "--states.positions",
        "context",
        "--states.layers",
        *layers,
    )


def by_hand(head: Head, encoder: Encoder, windows: Windows) -> np.ndarray:
    """(N, outputs) of a head on states 0 and 2 of the kept tokens, window after window; NaN elsewhere."""
    rows = []
    for w in range(len(windows)):
        tokens = collate(windows, np.array([w]), pad_id=encoder.pad_id, device=encoder.device)
        states = encoder.states(tokens)[[0, 2]][:, :, positions_of(windows, w, "context")]
        with torch.no_grad():
            rows.append(head(bare_batch(states, torch.ones(1, states.shape[2], dtype=torch.bool)))[0].numpy())
    found = np.full((windows.num_tokens, rows[0].shape[1]), np.nan)
    found[kept_tokens(windows, "context")] = np.concatenate(rows)
    return found


def logits_in(folder: Path, split: Split) -> Logits:
    return Logits.load(folder / "dev" / "logits.safetensors", split.fingerprint)


def test_a_fitted_head_remembers_what_it_read(zoo: Path, encoder: Encoder, train: Split) -> None:
    """Its logits are those of the head on states cut by hand, and none elsewhere."""
    folders = sorted(p.parent for p in (zoo / "cut").glob("*/config.json"))
    assert len(folders) == len(HEADS)
    mask = kept_tokens(train.windows, "context")
    for folder in folders:
        head, config = load_head(folder)
        assert config["states"] == CUT
        assert config["geometry"]["states"] == 2
        logits = logits_in(folder, train)
        expected = by_hand(head, encoder, train.windows)
        if (found := logits.arrays.get("pairs")) is None:
            found = np.stack([logits["start"], logits["end"]], axis=1)
        else:
            assert (found[~mask, :2] == np.float32(NOT_READ)).all()
            assert (found[~mask, 2:] == 0).all()
        np.testing.assert_allclose(found[mask], expected[mask], atol=1e-4)
        assert (logits["start"][~mask] == np.float32(NOT_READ)).all()
        assert (logits["end"][~mask] == np.float32(NOT_READ)).all()
    assert read_json(zoo / "cut" / "stage.json")["key"]["selection"] == CUT


def test_a_head_that_reads_everything_says_nothing_of_it(zoo: Path, finished_run: Path) -> None:
    folders = [zoo / "whole" / "adapter-4.seed0", *(finished_run / "fit").glob("*/*.seed0")]
    assert len(folders) == 4
    for folder in folders:
        assert "states" not in read_json(folder / "config.json")


def test_eval_reads_what_fit_read(zoo: Path, toy_squad: Path) -> None:
    done = bertvision("eval", zoo / "cut", zoo / "whole", "--data", toy_squad, "--json")
    assert done.code == 0, done.err
    rows = {row["system"]: row for row in json.loads(done.out)}
    assert len(rows) == len(HEADS) + 1
    for folder in (zoo / "cut").glob("*/metrics.json"):
        name = folder.parent.name
        row = rows[name] if name in rows else rows[f"cut.{name}"]
        metrics = read_json(folder)
        for metric, value in metrics["scores"]["dev"].items():
            assert row["scores"][metric] == pytest.approx(value)


def test_predict_answers_as_the_saved_logits_do(zoo: Path, train: Split) -> None:
    folder = zoo / "cut" / "adapter-4.seed0"
    model = load(folder)
    (system,) = model.systems.values()
    assert system.selections == [Selection((0, 2), "context")]
    (answers,) = model.answer(train.data).values()
    expected = decode(train.windows, logits_in(folder, train), train.data, system.tuning.decode)
    assert answers.predictions() == expected.predictions()
    np.testing.assert_allclose(answers.score_diff, expected.score_diff, atol=1e-3)


def test_heads_with_different_readings_are_joined(
    zoo: Path, train: Split, toy_squad: Path, tmp_path: Path
) -> None:
    """One reads everything, one the paragraph at two states: their logits stand on the same tokens."""
    parts = [zoo / "whole" / "adapter-4.seed0", zoo / "cut" / "learned-pooling.seed0"]
    out = tmp_path / "joined"
    done = bertvision("ensemble", *parts, "--data", toy_squad, "--how", "product", "--out", out, "--json")
    assert done.code == 0, done.err
    joined = combine([logits_in(part, train) for part in parts], train.windows, how="product")
    assert np.isfinite(joined["start"]).all()
    expected = decode(train.windows, joined, train.data, DecodeConfig())
    assert read_trained(out).selections == [Selection(), Selection((0, 2), "context")]
    (found,) = load(out).answer(train.data).values()
    np.testing.assert_allclose(found.score_diff, expected.score_diff, atol=1e-3)
    done = bertvision("eval", out, "--data", toy_squad, "--json")
    assert done.code == 0, done.err
    scores = read_json(out / "metrics.json")["scores"]["dev"]
    assert json.loads(done.out)[0]["scores"]["tuned_f1"] == pytest.approx(scores["tuned_f1"])


def test_another_reading_does_not_go_on_with_the_work(
    zoo: Path, tiny_bert: Path, toy_squad: Path, tmp_path: Path
) -> None:
    same = bertvision(*fit_words(tiny_bert, toy_squad, zoo / "cut", "0", "2"))
    assert same.code == 0, "the same states in other words: nothing to do"
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
    done = bertvision(*words, *TINY, "--states.layers=-1,0", "--states.positions", "context")
    assert done.code == 0, done.err
    (fit,) = (out / "fit").iterdir()
    heads = sorted(fit.glob("*/config.json"))
    assert len(heads) == 3
    for path in heads:
        assert read_json(path)["states"] == {"layers": [2, 0], "positions": "context"}
    snapshot = Path("finetune") / fit.name / "head"
    assert "states" not in read_json(out / snapshot / "config.json")
    ours, theirs = (load_file(run / snapshot / "dev" / "logits.safetensors") for run in (out, finished_run))
    assert torch.equal(ours["start"], theirs["start"])
    assert torch.equal(ours["end"], theirs["end"])
    assert load(out).predict("Who built the mill?", "The mill was built by Ada.") is not None


# ---- mistakes


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ({"layers": [0], "positions": "context"}, "names 1 states for a head of 2"),
        ({"layers": [0, 2], "positions": "somewhere"}, "does not say which states"),
        ([0, 2], "does not say which states"),
    ],
)
def test_a_damaged_memory_of_what_was_read_is_one_sentence(
    zoo: Path, tmp_path: Path, states: Any, words: str
) -> None:
    folder = Path(shutil.copytree(zoo / "cut" / "adapter-4.seed0", tmp_path / "head"))
    (folder / "config.json").write_text(json.dumps(read_json(folder / "config.json") | {"states": states}))
    with pytest.raises(ArtifactError, match=words):
        read_trained(folder)
