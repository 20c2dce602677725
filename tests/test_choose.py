"""Where states come from: what is measured, what follows from it, and that a fit keeps to its choice."""

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import bertvision
from fit_helpers import WINDOWS, fixture_encoder, fixture_train  # noqa: F401
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError, OutputError
from bertvision.states import source as open_module
from bertvision.states.choose import Case, Measured, choose
from bertvision.states.config import Selection, StatesConfig
from bertvision.states.live import LiveStates
from bertvision.states.measure import measure
from bertvision.states.memory import MemoryStates
from bertvision.states.source import open_states, states_store
from bertvision.states.stored import StoredStates
from bertvision.train import states as states_module
from bertvision.train import zoo as zoo_module
from bertvision.train.splits import Split

RATES = Measured(
    tokens=1000, encode=1000.0, memory=200_000.0, read_warm=100_000.0, read_cold=20_000.0, write=50_000.0
)
CASE = Case(
    label="states of train", tokens=1_000_000, stored_bytes=10**10, memory_bytes=10**10, memory_limit=6e9,
    memory_free=10**11, disk_free=10**12, cache_free=10**11, passes=5,
)  # fmt: skip


# ---- arithmetic


def test_what_each_source_is_expected_to_cost() -> None:
    costs = replace(CASE, memory_limit=1e11).seconds(RATES)
    assert costs["live"] == pytest.approx(5 * 1000)
    assert costs["memory"] == pytest.approx(1000 + 4 * 5)
    assert costs["stored"] == pytest.approx(1000 + 20 + 5 * 10)


def test_a_store_that_memory_cannot_hold_is_read_from_the_disk() -> None:
    assert replace(CASE, cache_free=10**9).seconds(RATES)["stored"] == pytest.approx(1000 + 20 + 5 * 50)


def test_a_finished_store_costs_its_reading() -> None:
    there = replace(CASE, finished=True, disk_free=0)
    assert there.seconds(replace(RATES, write=0.0))["stored"] == pytest.approx(5 * 10)


def test_what_has_no_room_is_not_considered() -> None:
    assert set(CASE.seconds(RATES)) == {"live", "stored"}
    assert set(replace(CASE, disk_free=10**10).seconds(RATES)) == {"live"}, (
        "a disk is not filled to the last byte"
    )
    assert set(replace(CASE, disk_free=None).seconds(RATES)) == {"live", "stored"}
    assert set(CASE.seconds(replace(RATES, write=0.0))) == {"live"}
    roomy = replace(CASE, memory_limit=1e12)
    assert set(roomy.seconds(RATES)) == {"live", "memory", "stored"}
    assert set(replace(roomy, memory_free=10**10).seconds(RATES)) == {"live", "stored"}, (
        "not all memory is ours"
    )
    assert set(roomy.seconds(replace(RATES, memory=0.0))) == {"live", "stored"}


@given(
    st.integers(1, 20),
    *[st.floats(1.0, 1e7) for _ in range(5)],
    st.sampled_from([0.0, 1e12]),
    st.sampled_from([0, 10**12]),
)
def test_the_cheapest_is_chosen(
    passes: int, encode: float, kept: float, warm: float, cold: float, write: float, memory: float, disk: int
) -> None:
    case = replace(CASE, passes=passes, memory_limit=memory, disk_free=disk)
    measured = Measured(1000, encode, kept, warm, cold, write)
    costs = case.seconds(measured)
    assert costs[choose(case, measured)] == min(costs.values())


def test_slow_disks_and_fast_encoders_stay_live() -> None:
    slow = replace(RATES, read_cold=100.0, read_warm=100.0)
    assert choose(CASE, slow) == "live"
    assert choose(CASE, RATES) == "stored"


def test_the_reasons_are_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "bertvision"):
        choose(CASE, RATES)
    said = "\n".join(caplog.messages)
    for fact in (
        "1,000,000 tokens", "10.0 GB to store", "1.00 TB free", "encoding 1,000", "from the disk 20,000",
        "reading from memory 200,000", "from a store 100,000", "5 epochs", "live 83.3 min", "stored 17.8 min",
        "chosen: stored",
    ):  # fmt: skip
        assert fact in said


# ---- measuring


def test_measuring_leaves_nothing_behind(encoder: Encoder, train: Split, tmp_path: Path) -> None:
    measured = measure(encoder, train.windows, Selection(), "fp16", root=tmp_path)
    assert min(vars(measured).values()) > 0
    assert 0 < measured.tokens <= train.windows.num_tokens
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_every_dtype_and_a_remote_place_are_measured(encoder: Encoder, train: Split, dtype: Any) -> None:
    from bertvision.states.folder import open_folder

    measured = measure(encoder, train.windows, Selection((0, -1), "context"), dtype, root="memory://measured")
    assert measured.read_warm > 0
    assert open_folder("memory://measured").names() == []


def test_where_nothing_can_be_written_a_fit_goes_on_without_a_store(
    tiny_bert: Path, toy_squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    for number, place in enumerate((tmp_path / "file", "/proc/nowhere")):
        monkeypatch.setenv("BERTVISION_CACHE", str(place))
        words = ["fit", tiny_bert, "--train", toy_squad, "--out", tmp_path / str(number), "--heads", "last_state",
                 "--max-seq-length", "64", "--epochs", "2", "--json"]  # fmt: skip
        done = bertvision(*words)
        assert done.code == 0, done.err
        assert "states are not stored: cannot write" in done.err
        assert json.loads(done.out)["states"] in ("live", "memory")
        named = bertvision(*words, "--out", tmp_path / f"{number}-stored", "--states.source", "stored")
        assert named.code == 2
        assert named.err.splitlines()[-1].startswith(("error: cannot write", "error: the states need"))


# ---- opening


def opened(encoder: Encoder, train: Split, root: Path, **values: Any) -> Any:
    settings: dict[str, Any] = {
        name: values.pop(name) for name in ("source", "memory_gb", "dtype") if name in values
    }
    config = StatesConfig(store=str(root), **settings)
    values = {"origin": train.origin} | values
    return open_states(encoder, train.windows, config, label="x", **values)


def test_a_named_source_is_taken(encoder: Encoder, train: Split, tmp_path: Path) -> None:
    for source, kind in (("live", LiveStates), ("memory", MemoryStates), ("stored", StoredStates)):
        assert isinstance(opened(encoder, train, tmp_path, source=source), kind)


def test_one_pass_is_live_without_measuring(
    encoder: Encoder, train: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_module, "measure", None)
    assert isinstance(opened(encoder, train, tmp_path, passes=1), LiveStates)


@pytest.mark.parametrize(
    ("memory_gb", "rates", "kind"),
    [
        (6.0, RATES, MemoryStates),
        (0.0, RATES, StoredStates),
        (0.0, replace(RATES, read_cold=10.0, read_warm=10.0), LiveStates),
    ],
)
def test_auto_follows_what_was_measured(
    memory_gb: float, rates: Measured, kind: type, encoder: Encoder, train: Split, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(open_module, "measure", lambda *_, **__: rates)
    states = opened(encoder, train, tmp_path, memory_gb=memory_gb, passes=3)
    assert isinstance(states, kind)


def test_a_finished_store_is_used_without_measuring(
    encoder: Encoder, train: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(opened(encoder, train, tmp_path, source="stored").walk())
    monkeypatch.setattr(open_module, "measure", None)
    for passes, keep in ((1, False), (3, True)):
        states = opened(encoder, train, tmp_path, passes=passes, keep=keep)
        assert isinstance(states, StoredStates)
        list(states.walk())
        assert states.times.encode == 0


def test_a_store_that_was_begun_does_not_bind_auto(
    encoder: Encoder, train: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody gave it up, perhaps for want of room."""
    states_store(encoder, train.windows, StatesConfig(store=str(tmp_path)), train.origin)
    monkeypatch.setattr(open_module, "measure", lambda *_, **__: replace(RATES, write=0.0))
    assert isinstance(opened(encoder, train, tmp_path, passes=1), LiveStates)
    assert isinstance(opened(encoder, train, tmp_path, passes=3), MemoryStates)


def test_states_beyond_half_precision_are_live(tiny_bert: Path, train: Split, tmp_path: Path) -> None:
    """Neither memory nor an fp16 store can hold them, which is no reason to stop."""
    import torch

    huge = Encoder.load(str(tiny_bert))
    with torch.no_grad():
        huge.model.encoder.layer[-1].output.LayerNorm.weight.fill_(1e6)
    huge.changed()
    assert isinstance(opened(huge, train, tmp_path, passes=3), LiveStates)
    measured = measure(huge, train.windows, Selection(), "bf16", root=tmp_path)
    assert measured.memory == 0
    assert measured.write > 0


def test_a_store_without_room_is_refused_before_anything_is_encoded(
    encoder: Encoder, train: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertvision.states.folder import LocalFolder

    monkeypatch.setattr(LocalFolder, "free", lambda _: 10)
    with pytest.raises(OutputError, match=r"the states need .* kB and the disk of .* has 10 B free"):
        opened(encoder, train, tmp_path, source="stored")
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_is_not_made_in_another_precision(
    tiny_bert: Path, encoder: Encoder, train: Split, tmp_path: Path
) -> None:
    half = Encoder.load(str(tiny_bert), precision="bf16")
    store = opened(half, train, tmp_path, source="stored").store
    states = StoredStates(encoder, store)
    with pytest.raises(
        ArtifactError, match=r"computed in bf16 and is missing or damaged.*use --precision bf16"
    ):
        list(states.walk())
    list(StoredStates(half, store).walk())
    assert len(list(StoredStates(encoder, store).walk())) > 0, "reading is another matter"


def test_evaluation_begins_no_store(encoder: Encoder, train: Split, tmp_path: Path) -> None:
    states = opened(encoder, train, tmp_path, source="stored", passes=1, keep=False)
    assert isinstance(states, LiveStates)
    assert list(tmp_path.iterdir()) == []


def test_windows_of_unknown_origin_cannot_be_stored(encoder: Encoder, train: Split, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--states\.source stored needs windows"):
        opened(encoder, train, tmp_path, source="stored", origin=None)
    assert not isinstance(opened(encoder, train, tmp_path, origin=None, memory_gb=0.0), StoredStates)


def test_another_stride_or_dtype_is_another_store(encoder: Encoder, train: Split, tmp_path: Path) -> None:
    from bertvision.train.splits import window_split

    other = window_split(train.data, encoder, replace(WINDOWS, doc_stride=23), keep=False)
    config = StatesConfig(store=str(tmp_path))
    keys = {
        states_store(encoder, train.windows, config, train.origin).key,
        states_store(encoder, other.windows, config, other.origin).key,
        states_store(encoder, train.windows, replace(config, dtype="int8"), train.origin).key,
        states_store(encoder, train.windows, replace(config, layers=(0, 1)), train.origin).key,
    }
    assert len(keys) == 4
    assert {path.name for path in tmp_path.iterdir()} == keys


# ---- a fit and its choice


def test_a_fit_keeps_to_its_choice_when_it_goes_on(
    tiny_bert: Path, toy_squad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the first step; by then another source would be measured as the fastest."""
    words = ["fit", tiny_bert, "--train", toy_squad, "--out", tmp_path / "zoo", "--heads", "last_state",
             "--max-seq-length", "64", "--epochs", "2", "--states.store", tmp_path / "states"]  # fmt: skip
    real = zoo_module.fit

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(states_module, "choose_source", lambda *_, **__: "stored")
    monkeypatch.setattr(zoo_module, "fit", killed)
    assert bertvision(*words).code == 130
    assert json.loads((tmp_path / "zoo" / "stage.json").read_text())["choices"] == {"states": "stored"}
    monkeypatch.setattr(states_module, "choose_source", lambda *_, **__: "live")
    monkeypatch.setattr(zoo_module, "fit", real)
    done = bertvision(*words, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["states"] == "stored"


def test_the_fit_says_where_its_time_went(tiny_bert: Path, toy_squad: Path, tmp_path: Path) -> None:
    words = ["fit", tiny_bert, "--train", toy_squad, "--out", tmp_path / "zoo", "--heads", "last_state",
             "--max-seq-length", "64", "--epochs", "2", "--states.source", "stored",
             "--states.store", tmp_path / "s"]  # fmt: skip
    done = bertvision(*words)
    assert done.code == 0, done.err
    line = done.out.splitlines()[-1]
    for part in ("of fitting", "encoder", "heads", "waiting for states", "other", "reading"):
        assert part in line
    profile = json.loads((tmp_path / "zoo" / "stage.json").read_text())["results"]["profile"]
    spent = sum(profile[part] for part in ("encoder", "heads", "waiting", "writing", "other"))
    assert spent == pytest.approx(profile["total"], rel=0.05)
    assert min(profile.values()) >= 0
    assert profile["encoder"] > 0
    assert profile["reading"] > 0


@pytest.mark.parametrize("verb", ["run", "fit"])
def test_dev_is_scored_again_on_the_states_it_was_scored_on(
    verb: str, tiny_bert: Path, toy_squad: Path, tmp_path: Path
) -> None:
    """Killed between the fit and the scores: half precision would be missed in the null odds."""
    prefix = "--fit." if verb == "run" else "--"
    encoder = (
        ["run", "--encoder", tiny_bert, "--finetune.epochs", "0"] if verb == "run" else ["fit", tiny_bert]
    )
    words = [*encoder, "--train", toy_squad, "--dev", toy_squad, "--out", tmp_path, "--max-seq-length", "64",
             f"{prefix}heads", "adapter:size=4", f"{prefix}keep", "best", f"{prefix}epochs", "2",
             "--states.source", "memory"]  # fmt: skip
    assert bertvision(*words).code == 0
    (folder,) = tmp_path.rglob("dev/logits.safetensors")
    before = load_file(folder)  # safetensors writes its own header in any order
    shutil.rmtree(folder.parent)
    (tmp_path / "results.json").unlink(missing_ok=True)
    words = [word if word != "memory" else "auto" for word in words]
    stage = folder.parents[2] / "stage.json"
    content = json.loads(stage.read_text())
    content["key"]["states"]["source"] = "auto"  # as if auto had chosen memory
    stage.write_text(json.dumps(content))
    done = bertvision(*words)
    assert done.code == 0, done.err
    after = load_file(folder)
    assert after.keys() == before.keys()
    assert all(np.array_equal(after[name], before[name]) for name in before)


def test_a_report_counts_encoding_once_and_says_where_states_came_from(finished_run: Path) -> None:
    results = json.loads((finished_run / "results.json").read_text())
    stages = [json.loads(path.read_text()) for path in finished_run.glob("fit/*/stage.json")]
    whole = sum(stage["seconds"] for stage in stages)
    assert results["fit"]["seconds"] + results["fit"]["encode_seconds"] == pytest.approx(whole)
    assert results["fit"]["states"] == sorted({stage["results"]["states"] for stage in stages})
    assert f"states {results['fit']['states'][0]}" in (finished_run / "report.html").read_text()
