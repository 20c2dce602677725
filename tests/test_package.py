"""Packages: what is copied answers as before, from anywhere, without what it was copied from; what is refused; and an
export that is killed or has no room leaves no half of one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runner import bertvision, tree
from killing import finish
from serve_cases import ALIKE, MOOD, SAME, save_span, save_system

import bertvision as bv
from bertvision.artifacts import remove
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ArtifactError, ConfigError, EncoderError
from bertvision.model.load import gather, open_model, read, read_package
from bertvision.model.trained import is_package
from bertvision.states.config import Selection
from bertvision.tasks.span import SPAN

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


def package(out: Path, *folders: Path, **how: Any) -> Path:
    open_model(gather([("", folder) for folder in folders])).save(out, **how)
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


def test_heads_are_chosen_and_named(fit: Path, tmp_path: Path) -> None:
    last, out = fit / "last-state.seed0", ("--out", tmp_path / "pkg")
    outcome = bertvision("export", f"qa={last}", *out, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["tasks"] == {"qa": {"kind": "span", "label": "last_state.v1", "layers": 3}}
    assert list(read(tmp_path / "pkg")) == ["qa"]
    for words, sentence in (
        ((f"one={fit}",), "several heads (adapter-4.seed0, last-state.seed0), which cannot all be one"),
        ((f"a={last}", f"a={fit}/adapter-4.seed0"), "two heads would be called a: name them as NAME=FOLDER"),
        ((f"..={last}",), "a task cannot be called '..'"),
        ((fit, "--bundle-encoder", "--reference"), "--bundle-encoder and --reference exclude each other"),
        ((fit, "--license", "do what you want"), "is no name of a licence"),
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


# ---- readers of layers


def test_readers_of_layers_are_sorted_by_state(fit: Path, encoder: Encoder, tmp_path: Path) -> None:
    """One for each state, and of several seeds the first; given to the first head beside which they were fitted."""
    before = list(read(fit, rivals=True))
    pkg = package(fit / "pkg", fit)
    assert list(read(fit, rivals=True)) == before, "the package inside is passed over"
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


def test_readers_are_given_to_the_task_they_were_fitted_for(encoder: Encoder, tmp_path: Path) -> None:
    for name, task in (("mood", MOOD), ("qa", SPAN)):
        for layer in (2, 0):
            save_system(tmp_path / f"{name}-{layer}", encoder, f"layer_reader:layer={layer}", task)
    alone = read(tmp_path, rivals=True)
    assert list(alone) == ["mood-0", "mood-2", "qa-0", "qa-2"], "by themselves they can be looked at"
    for name, head, task in (("a-head", "mean_pooler", MOOD), ("b-head", "last_state", SPAN)):
        save_system(tmp_path / name, encoder, head, task)
    assert layers_of(package(tmp_path / "pkg", tmp_path)) == {"a-head": [0, 2], "b-head": [0, 2]}


# ---- as one graph


def test_a_package_brings_its_graph(fit: Path, encoder: Encoder, tmp_path: Path) -> None:
    """Written with the package, found by its folder, and refused where there is none."""
    pytest.importorskip("onnxruntime")
    outcome = bertvision("export", fit / "last-state.seed0", "--onnx", "--out", tmp_path / "qa", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["onnx"]["max_difference"] < 1e-3
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
    shutil.rmtree(base)
    shutil.rmtree(tuned)
    again = package(tmp_path / "again", first)
    shutil.rmtree(first)
    moved = Path(shutil.move(again, tmp_path / "moved"))
    assert bv.load(moved).predict(QUESTION, MILL) == before
    about = moved / "encoder" / "delta.json"
    for elsewhere in (str(tiny_bert), "../elsewhere", "~/elsewhere"):
        about.write_text(json.dumps(json.loads(about.read_text()) | {"base": elsewhere}))
        with pytest.raises(ArtifactError, match="leads out of the package"):
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
    """And not the files of its heads: they come from somebody else. Nor are results beside a head followed."""
    pkg = tmp_path / "pkg"
    shutil.copytree(packaged, pkg)
    path = pkg / "heads" / "qa" / "config.json"
    config = json.loads(path.read_text())
    config["encoder"]["path"] = str(tmp_path / "elsewhere")
    path.write_text(json.dumps(config))
    _write("heads/qa/results.json", {"systems": [{"best": True, "folder": "../../../other"}]})(pkg)
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
    "another format": (_edit(format=7), "does not describe a package of format 1"),
    "out of it": (_edit(tasks=["../../other"]), "leads out of the package"),
    "layers elsewhere": (_edit(layers={"qa": ["../../../other"]}), "leads out of the package"),
    "no head": (lambda pkg: shutil.rmtree(pkg / "heads" / "qa"), "lacks heads/qa/config.json"),
    "half a head": (_cut("heads/qa/model.safetensors"), "model.safetensors is damaged"),
    "the encoder gone": (lambda pkg: shutil.rmtree(pkg / "encoder"), "the package .* lacks encoder"),
    "a threshold": (_write("heads/qa/metrics.json", {"tuning": {"threshold": "x"}}), "no usable tuning"),
    "a member elsewhere": (
        _write("heads/qa/config.json", {"ensemble": {"how": "max", "members": ["../../../other"]}}),
        "leads out of the package",
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


# ---- killed, or without room


@pytest.fixture(scope="module")
def lone(packaged: Path) -> Path:
    return packaged.parent / "fit" / "qa"


def operations(log: Path) -> int:
    return int(log.with_name(f"{log.name}.count").read_text())


def test_a_killed_export_leaves_nothing_that_loads(lone: Path, tmp_path: Path) -> None:
    """Killed in the middle, in the midst of package.json, and when all is written but not yet in its place."""
    home, log = tmp_path / "home", tmp_path / "log"
    home.mkdir()
    command = ["export", str(lone), "--out", str(home / "pkg")]
    assert finish(command, log) == 0, log.read_text()
    whole, count = tree(home), operations(log)
    remove(home / "pkg")
    # At the end: package.json written, renamed, tidied up; nothing older removed; the folder renamed; tidied up twice.
    written = []
    for moment in (count // 2, count - 6, count - 2):
        assert finish(command, log, die_at=moment) == -9, log.read_text()
        (left,) = home.iterdir()  # each sweeps up what the one before it left
        written.append(is_package(left))
        for reads in (read_package, read, lambda folder: gather([("", folder)])):
            with pytest.raises(ArtifactError, match="was left by a command that was killed: run that"):
                reads(left)
    assert written == [False, False, True]
    assert finish(command, log) == 0, log.read_text()
    assert tree(home) == whole


def test_a_killed_replacement_keeps_the_old_package(lone: Path, tmp_path: Path) -> None:
    """Killed between the two renames that exchange them, the one moment when nothing stands at --out."""
    out, log = tmp_path / "pkg", tmp_path / "log"

    def command(name: str) -> list[str]:
        return ["export", f"{name}={lone}", "--out", str(out)]

    assert bertvision(*command("first")).code == 0
    assert finish(command("second"), log) == 0, log.read_text()
    assert finish(command("third"), log, die_at=operations(log) - 2) == -9
    assert not out.exists()
    assert read_package(out)["tasks"] == ["second"]
    assert bertvision(*command("third")).code == 0
    assert read_package(out)["tasks"] == ["third"]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["pkg"]


def test_no_room_is_one_sentence(lone: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk."""
    resource = pytest.importorskip("resource")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    for _ in ("nothing there", "an older package"):
        before = tree(tmp_path)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limit[1]))
            refused("cannot write the encoder", "export", lone, "--out", tmp_path / "pkg")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert tree(tmp_path) == before, "neither half a package nor the older one gone"
        assert bertvision("export", lone, "--out", tmp_path / "pkg").code == 0
