"""Packages: what is copied answers as before, from anywhere, without what it was copied from; and what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runner import bertvision, tree
from serve_cases import ALIKE, MOOD, SAME, save_span, save_system
from toy import save_encoder

import bertvision as bv
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError, EncoderError
from bertvision.model.load import gather, open_model, read, read_package
from bertvision.states.config import Selection

QUESTION, MILL = "Who built the mill?", "The mill in Arden was built by Ada Holt in 1871."
CUT = ("--max-seq-length", "64", "--max-query-length", "16", "--doc-stride", "24")


@pytest.fixture
def fit(tmp_path: Path, encoder: Encoder) -> Path:
    """As `fit` leaves it: two heads and a reader of every layer, one of them with two seeds."""
    folder = tmp_path / "fit"
    save_span(folder / "adapter-4.seed0", encoder, "adapter:size=4")
    save_span(folder / "last-state.seed0", encoder)
    for layer in range(encoder.num_states):
        save_span(folder / f"layer-reader-layer={layer}.seed0", encoder, f"layer_reader:layer={layer}")
    save_span(folder / "layer-reader-layer=1.seed1", encoder, "layer_reader:layer=1")
    return folder


def package(out: Path, *folders: Path, layers: tuple[Path, ...] = (), **how: Any) -> Path:
    open_model(gather([("", folder) for folder in folders], layers=layers)).save(out, **how)
    return out


def layers_of(pkg: Path) -> dict[str, list[int]]:
    return read_package(pkg)["layers"]


def refused(sentence: str, *words: Any) -> None:
    outcome = bertvision(*words)
    assert outcome.code == 2
    assert sentence in outcome.err


# ---- what goes in


def test_a_run_becomes_its_best_head_and_needs_nothing_else(finished_run: Path, tmp_path: Path) -> None:
    """The run is gone and the package elsewhere; no file of it knows where anything was."""
    run = tmp_path / "there" / "run"
    shutil.copytree(finished_run, run)
    before = bv.load(run).predict(QUESTION, MILL)
    outcome = bertvision("export", run, "--out", tmp_path / "pkg", "--json")
    assert outcome.code == 0, outcome.err
    told = json.loads(outcome.out)
    systems = json.loads((run / "results.json").read_text())["systems"]
    (best,) = [system["folder"] for system in systems if system["best"]]
    assert list(told["tasks"]) == [Path(best).name.removesuffix(".seed0")]
    assert told["encoder"]["bundled"]
    shutil.rmtree(tmp_path / "there")
    moved = Path(shutil.move(tmp_path / "pkg", tmp_path / "elsewhere"))
    assert bv.load(moved).predict(QUESTION, MILL) == before
    for name, content in tree(moved).items():
        assert content is None or str(tmp_path).encode() not in content, name
        assert content is None or str(finished_run.parent).encode() not in content, name


def test_heads_of_spans_stand_side_by_side(fit: Path, tmp_path: Path) -> None:
    """Each under its name, and each says what it says alone; the readers of layers are no tasks."""
    with pytest.raises(ArtifactError, match="holds several heads"):
        bv.load(fit)
    places = {name: fit / f"{name}.seed0" for name in ("adapter-4", "last-state")}
    for folder in (package(tmp_path / "pkg", fit), places):
        found = bv.load(folder).predict(QUESTION, MILL)
        assert list(found) == list(places)
        for name, prediction in found.items():
            alone = bv.load(places[name]).predict(QUESTION, MILL)
            assert (prediction.text, prediction.start, prediction.end) == (alone.text, alone.start, alone.end)
            assert prediction.probability == pytest.approx(alone.probability, abs=1e-6)


def test_heads_are_chosen_and_named(fit: Path, tmp_path: Path) -> None:
    last, out = fit / "last-state.seed0", ("--out", tmp_path / "pkg")
    other = Encoder.load(str(save_encoder(tmp_path / "encoder", "bert", seed=5)))
    theirs = save_span(tmp_path / "theirs", other)
    outcome = bertvision("export", f"qa={last}", *out, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["tasks"] == {"qa": {"kind": "span", "label": "last_state.v1", "layers": 3}}
    assert list(read(tmp_path / "pkg")) == ["qa"]
    for words, sentence in (
        ((f"one={fit}",), "several heads (adapter-4.seed0, last-state.seed0), which cannot all be one"),
        ((f"a={last}", f"a={fit}/adapter-4.seed0"), "two heads would be called a: name them as NAME=FOLDER"),
        ((f"..={last}",), "a task cannot be called '..'"),
        ((f"head={last}",), "a task cannot be called 'head'"),
        ((fit, "--bundle-encoder", "--reference"), "--bundle-encoder and --reference exclude each other"),
        ((fit, "--layers", "a", "--layers", "b"), "--layers is given twice, and the last would count"),
        ((fit, "--private"), "--private goes with --push"),
        ((fit, "--license", "do what you want"), "is no name of a licence"),
        ((fit, "--layers", last), "holds no reader of a layer"),
        ((last, theirs), f"{theirs} reads another encoder (fingerprint {other.fingerprint[:12]})"),
    ):
        refused(sentence, "export", *words, "--out", tmp_path / "other")
        assert not (tmp_path / "other").exists(), "nothing is written"


def test_several_tasks_keep_their_names(encoder: Encoder, tiny_bert: Path, tmp_path: Path) -> None:
    """A snapshot of several tasks, a head from somewhere else, and a package of packages."""
    snapshot = tmp_path / "snapshot-1"
    shutil.copytree(tiny_bert, snapshot / "encoder")
    save_system(snapshot / "heads" / "mood", encoder, "mean_pooler", MOOD, temperature=2.0)
    save_system(snapshot / "heads" / "same", encoder, "cls_linear", SAME, seed=1)
    first = package(tmp_path / "first", snapshot)
    assert read_package(first)["tasks"] == ["mood", "same"]
    alike = save_system(tmp_path / "alike", encoder, "attention_pooler", ALIKE, seed=2)
    second = package(tmp_path / "second", first, alike)
    shutil.rmtree(first)
    model = bv.load(second)
    one, two = model.predict(MILL), model.predict(MILL, QUESTION)
    assert (list(one), list(two)) == (["mood", "alike"], ["same"])
    expected = bv.load(snapshot).predict(MILL)["mood"]
    assert one["mood"].probabilities == pytest.approx(expected.probabilities, abs=1e-6)
    assert one["alike"].score == pytest.approx(bv.load(alike).predict(MILL).score, abs=1e-6)


def test_an_ensemble_brings_its_members(fit: Path, toy_squad: Path, tmp_path: Path) -> None:
    both = (fit / "adapter-4.seed0", fit / "last-state.seed0")
    outcome = bertvision("ensemble", *both, "--data", toy_squad, "--out", tmp_path / "joined")
    assert outcome.code == 0, outcome.err
    before = bv.load(tmp_path / "joined").predict(QUESTION, MILL)
    tuning = json.loads((tmp_path / "joined" / "metrics.json").read_text())["tuning"]
    assert tuning["on"] == str(toy_squad)
    assert tuning["no_answer"]["temperature"] > 0, "calibrated on the data that its threshold was tuned on"
    pkg = package(package(tmp_path / "pkg", tmp_path / "joined").parent / "again", tmp_path / "pkg")
    assert read_package(pkg)["tasks"] == ["joined"]
    shutil.rmtree(fit)
    shutil.rmtree(tmp_path / "pkg")
    assert bv.load(pkg).predict(QUESTION, MILL) == before


def test_an_older_package_inside_is_passed_over(fit: Path) -> None:
    before = list(read(fit, rivals=True))
    package(fit / "pkg", fit)
    assert list(read(fit, rivals=True)) == before


# ---- readers of layers


def test_readers_of_layers_are_sorted_by_state(fit: Path, encoder: Encoder, tmp_path: Path) -> None:
    """One for each state, and of several seeds the first; given to the first head beside which they were fitted."""
    pkg = package(tmp_path / "pkg", fit)
    assert layers_of(pkg) == {"adapter-4": [0, 1, 2]}
    systems = read(pkg)
    assert [one.heads[0].config.layer for one in systems["adapter-4"].layers] == [0, 1, 2]
    told = open_model(systems).explain(QUESTION, MILL)
    assert [row["layer"] for row in told["layers"]["adapter-4"]] == [0, 1, 2]
    assert not any(one.layers for one in read(fit, rivals=True).values()), "a fit is no package"
    # Fitted on states 0 and 2 alone, where the option counts among those two.
    few = Selection((0, 2))
    save_span(tmp_path / "few" / "a-head", encoder, selection=few)
    for layer in (0, 1):
        save_span(tmp_path / "few" / f"r{layer}", encoder, f"layer_reader:layer={layer}", selection=few)
    save_span(tmp_path / "few" / "last", encoder, "layer_reader", selection=few)
    assert layers_of(package(tmp_path / "cut", tmp_path / "few")) == {"a-head": [0, 2]}


def test_readers_are_given_to_the_task_they_were_fitted_for(
    fit: Path, encoder: Encoder, tmp_path: Path
) -> None:
    mood = save_system(tmp_path / "mood", encoder, "mean_pooler", MOOD)
    for layer in (2, 0):
        save_system(tmp_path / "readers" / f"r{layer}", encoder, f"layer_reader:layer={layer}", MOOD)
    lone = save_span(tmp_path / "qa", encoder)
    package(tmp_path / "pkg", lone, mood, layers=(fit, tmp_path / "readers"))
    assert layers_of(tmp_path / "pkg") == {"qa": [0, 1, 2], "mood": [0, 2]}
    with pytest.raises(ConfigError, match="were fitted for another task, encoder or other windows than mood"):
        gather([("", mood)], layers=[fit])
    assert list(read(tmp_path / "readers")) == ["r0", "r2"], "by themselves they can be looked at"


# ---- as one graph


def test_a_package_brings_its_graph(fit: Path, encoder: Encoder, tmp_path: Path) -> None:
    """Written with the package, found by its folder, and refused where there is none."""
    pytest.importorskip("onnxruntime")
    outcome = bertvision("export", fit / "last-state.seed0", "--onnx", "--out", tmp_path / "qa", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["onnx"]["max_difference"] < 1e-3
    assert "`onnx/model.onnx` is the whole as one graph" in (tmp_path / "qa" / "README.md").read_text()
    with pytest.raises(ConfigError, match="holds no ONNX graph"):
        bv.load(fit / "last-state.seed0", backend="onnx")
    shutil.rmtree(fit)
    moved = Path(shutil.move(tmp_path / "qa", tmp_path / "moved"))
    graph, torch = (bv.load(moved, backend=backend) for backend in ("onnx", "torch"))
    ours, theirs = graph.predict(QUESTION, MILL), torch.predict(QUESTION, MILL)
    assert (ours.text, ours.start, ours.end) == (theirs.text, theirs.start, theirs.end)
    assert ours.probability == pytest.approx(theirs.probability, abs=1e-4)
    assert graph.walk is not torch.walk
    assert [row["layer"] for row in graph.explain(QUESTION, MILL)["layers"]["last-state"]] == [0, 1, 2]


# ---- encoders


@pytest.mark.parametrize("policy", ["houlsby-4", "lora-2"])
def test_a_delta_brings_its_base(policy: str, tiny_bert: Path, toy_squad: Path, tmp_path: Path) -> None:
    """Of a base that only this machine has; both are gone when the package answers, and it can be exported again."""
    base = tmp_path / "base"
    shutil.copytree(tiny_bert, base)
    tuned = tmp_path / "tuned"
    outcome = bertvision(
        "finetune", "--train", toy_squad, *CUT, "--encoder", base, "--out", tuned, "--policy", policy
    )
    assert outcome.code == 0, outcome.err
    before = bv.load(tuned / "snapshot-1").predict(QUESTION, MILL)
    first = package(tmp_path / "first", tuned)
    assert (first / "encoder" / "delta.json").is_file()
    assert f"policy {policy}" in (first / "README.md").read_text()
    shutil.rmtree(base)
    shutil.rmtree(tuned)
    again = package(tmp_path / "again", first)
    shutil.rmtree(first)
    moved = Path(shutil.move(again, tmp_path / "moved"))
    assert bv.load(moved).predict(QUESTION, MILL) == before
    about = moved / "encoder" / "delta.json"
    whole = about.read_text()
    for elsewhere in (str(tiny_bert), "../elsewhere", "~/elsewhere"):
        about.write_text(json.dumps(json.loads(whole) | {"base": elsewhere}))
        with pytest.raises(ArtifactError, match=f"the base {elsewhere} of .* leads out of the package"):
            bv.load(moved)
    about.write_text(whole)
    weights = moved / "encoder" / "base" / "model.safetensors"
    other = save_encoder(tmp_path / "other", "bert", seed=5)
    shutil.copyfile(other / "model.safetensors", weights)
    with pytest.raises(ArtifactError, match="is a delta of an encoder with fingerprint"):
        bv.load(moved)


def test_an_encoder_by_reference_may_move(tiny_bert: Path, tmp_path: Path) -> None:
    place = tmp_path / "encoder-of-mine"
    shutil.copytree(tiny_bert, place)
    head = save_span(tmp_path / "qa", Encoder.load(str(place)))
    pkg = package(tmp_path / "pkg", head, keep="reference")
    assert not (pkg / "encoder").exists()
    before = bv.load(pkg).predict(QUESTION, MILL)
    moved = Path(shutil.move(place, tmp_path / "now-here"))
    with pytest.raises(EncoderError, match=r"is not at .*encoder-of-mine any more: name it with --encoder"):
        bv.load(pkg)
    assert bv.load(pkg, encoder=str(moved)).predict(QUESTION, MILL) == before
    other = save_encoder(tmp_path / "other", "bert", seed=5)
    with pytest.raises(ArtifactError, match="was fitted on another encoder"):
        bv.load(pkg, encoder=str(other))
    outcome = bertvision("export", pkg, "--out", tmp_path / "new", "--encoder", moved)
    assert outcome.code == 0, outcome.err
    shutil.rmtree(moved)
    assert bv.load(tmp_path / "new").predict(QUESTION, MILL) == before


def test_an_encoder_that_the_new_package_would_replace_is_not_named(
    packaged: Path, toy_squad: Path, tmp_path: Path
) -> None:
    """The encoder itself, and one that lies elsewhere but is a delta of it; copying it is no harm."""
    pkg = tmp_path / "pkg"
    shutil.copytree(packaged, pkg)
    head = save_span(tmp_path / "qa", Encoder.load(str(pkg / "encoder")))
    tuned = tmp_path / "tuned"
    words = ("--train", toy_squad, *CUT, "--encoder", pkg / "encoder", "--out", tuned, "--policy", "lora-2")
    made = bertvision("finetune", *words)
    assert made.code == 0, made.err
    before = tree(pkg)
    for source in (head, tuned):
        sentence = f"would replace {pkg / 'encoder'}, which lies in it"
        refused(sentence, "export", source, "--reference", "--out", pkg)
        assert tree(pkg) == before
    expected = bv.load(head).predict(QUESTION, MILL)
    assert bertvision("export", head, "--out", pkg).code == 0
    assert bv.load(pkg).predict(QUESTION, MILL) == expected


def test_the_package_says_where_its_encoder_is(packaged: Path, tmp_path: Path) -> None:
    """And not the files of its heads: they come from somebody else."""
    pkg = tmp_path / "pkg"
    shutil.copytree(packaged, pkg)
    path = pkg / "heads" / "qa" / "config.json"
    config = json.loads(path.read_text())
    config["encoder"]["path"] = str(tmp_path / "elsewhere")
    path.write_text(json.dumps(config))
    assert bv.load(pkg).predict(QUESTION, MILL) == bv.load(packaged).predict(QUESTION, MILL)


# ---- bad input


def _edit(**changes: Any) -> Callable[[Path], Any]:
    def edit(pkg: Path) -> None:
        path = pkg / "package.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


def _cut(name: str) -> Callable[[Path], Any]:
    return lambda pkg: (pkg / name).write_bytes((pkg / name).read_bytes()[:40])


def _write(name: str, words: Any) -> Callable[[Path], Any]:
    return lambda pkg: (pkg / name).write_text(json.dumps(words))


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "half of it": (_cut("package.json"), "package.json is not valid JSON"),
    "a list": (_write("package.json", []), "does not describe a package"),
    "another format": (_edit(format=7), "a package of format 7 by bertvision"),
    "no encoder": (_edit(encoder=None), "package.json is incomplete or damaged"),
    "no task": (_edit(tasks=[]), "incomplete or damaged"),
    "out of it": (_edit(tasks=["../fit"]), "incomplete or damaged"),
    "layers elsewhere": (_edit(layers={"qa": ["../../fit"]}), "incomplete or damaged"),
    "another layer": (
        lambda pkg: (_edit(layers={"qa": [0]})(pkg), (pkg / "layers/qa/1").rename(pkg / "layers/qa/0")),
        "read other layers",
    ),
    "no head": (lambda pkg: shutil.rmtree(pkg / "heads" / "qa"), "lacks heads/qa/config.json"),
    "half a head": (_cut("heads/qa/model.safetensors"), "model.safetensors is damaged"),
    "half an encoder": (_cut("encoder/model.safetensors"), "are damaged"),
    "the encoder gone": (lambda pkg: shutil.rmtree(pkg / "encoder"), "the package .* lacks encoder"),
    "a config": (_cut("heads/qa/config.json"), "config.json is not valid JSON"),
    "metrics": (_write("heads/qa/metrics.json", []), "metrics.json is damaged"),
    "a threshold": (_write("heads/qa/metrics.json", {"tuning": {"threshold": "x"}}), "no usable tuning"),
    "a decoding": (_write("heads/qa/metrics.json", {"tuning": {"decode": 7}}), "no usable tuning"),
    "no reader": (
        lambda pkg: shutil.copyfile(pkg / "heads/qa/config.json", pkg / "layers/qa/1/config.json"),
        "belong to different heads|read other layers",
    ),
    "no members": (
        _write("heads/qa/config.json", {"ensemble": {"members": [7]}}),
        "does not name the members of an ensemble",
    ),
    "a member elsewhere": (
        _write("heads/qa/config.json", {"ensemble": {"how": "max", "members": ["../../../other"]}}),
        "names a head that leads out of the package",
    ),
    "another encoder's": (
        _edit(encoder={"name": "x", "fingerprint": "f" * 32, "bundled": True}),
        "is a head of another encoder",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_package_is_one_sentence(damage: str, packaged: Path, tmp_path: Path) -> None:
    pkg = tmp_path / "pkg"
    shutil.copytree(packaged, pkg)
    shutil.copytree(packaged / "heads" / "qa", tmp_path / "other")  # a head that could be read
    harm, sentence = DAMAGE[damage]
    harm(pkg)
    with pytest.raises((ArtifactError, EncoderError), match=sentence) as caught:
        bv.load(pkg)
    assert len(str(caught.value).splitlines()) == 1


@pytest.fixture(scope="module")
def packaged(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packaged")
    save_span(folder / "fit" / "qa", encoder)
    save_span(folder / "fit" / "reader", encoder, "layer_reader:layer=1")
    return package(folder / "pkg", folder / "fit")


def test_results_beside_a_packaged_head_are_not_followed(packaged: Path, tmp_path: Path) -> None:
    """Somebody else's package could name any folder there."""
    shutil.copytree(packaged, tmp_path / "pkg")
    _write("heads/qa/results.json", {"systems": [{"best": True, "folder": "../../../other"}]})(
        tmp_path / "pkg"
    )
    assert bv.load(tmp_path / "pkg").predict(QUESTION, MILL) == bv.load(packaged).predict(QUESTION, MILL)


def test_what_stands_at_out_is_kept_unless_it_is_a_package(
    fit: Path, encoder: Encoder, tmp_path: Path
) -> None:
    last = fit / "last-state.seed0"
    for out in (fit, fit / "adapter-4.seed0" / "config.json", tmp_path):
        before = tree(tmp_path)
        refused("is not a package: choose another folder", "export", last, "--out", out)
        assert tree(tmp_path) == before
    pkg = package(tmp_path / "pkg", fit)
    inside = save_span(pkg / "mine", encoder)
    refused("which lies in it: choose another folder", "export", inside, "--out", pkg)
    assert inside.is_dir()
    assert bertvision("export", last, "--out", pkg).code == 0
    assert read_package(pkg)["tasks"] == ["last-state"], "a package is replaced as a whole"
    (tmp_path / "empty").mkdir()
    for missing in (tmp_path / "nowhere", tmp_path / "empty"):
        refused(
            "give what fit, finetune, multitask, ensemble, run", "export", missing, "--out", tmp_path / "new"
        )
