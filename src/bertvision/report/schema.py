"""The results of a run on questions, as `results.json` holds them: checked, gaps filled.

A report is only as good as what it is given, so a file of another version or with a part missing is
refused in one sentence that names the key. What a run may leave out (fine-tuning, curves, layer weights,
examples, the test part) is filled in empty here, so that no later stage asks twice.

Required             schema, bertvision, created, environment, encoder, data, systems
Per system           name (unique), kind, label, scores: {split: {"zero": {...}, "tuned": {...}}}
Scores               percent; "zero" is threshold 0, "tuned" the threshold tuned on dev; null, NaN: not known
Per seed (optional)  scores.<split>.per_seed: [{"seed", "exact", "f1" (at 0), "tuned_exact", "tuned_f1"}]
"""

from collections.abc import Callable, Mapping
from typing import Any

from bertvision.errors import ArtifactError

__all__ = ["KINDS", "RESULTS_FILE", "SCHEMA", "CheckScores", "check_results", "validate"]

SCHEMA = 1
RESULTS_FILE = "results.json"
KINDS = ("snapshot", "control", "head", "ensemble", "baseline")
"""In the order in which tables and legends show them."""

_REQUIRED: dict[str, type] = {
    "bertvision": str,
    "created": str,
    "environment": dict,
    "encoder": dict,
    "data": dict,
    "systems": list,
}
_OPTIONAL: dict[str, type] = {
    "finetune": dict,
    "fit": dict,
    "curves": dict,
    "layer_weights": dict,
    "examples": list,
}
_SYSTEM_GAPS: dict[str, Any] = {
    "snapshot": None,
    "head": None,
    "parameters": None,
    "total": None,
    "percent": None,
    "flops_per_token": None,
    "seconds": None,
    "seeds": None,
    "members": None,
    "best": False,
    "versus": None,
}
_JSON_NAMES = {dict: "an object", list: "a list", str: "a text"}

CheckScores = Callable[[Mapping[str, Any], str], None]
"""Refuses one system's scores on one part of the data; the text says where they stand."""


def validate(results: Any, source: str = RESULTS_FILE) -> dict[str, Any]:
    """A copy of `results` with every optional part present; `source` names the file in messages."""
    return check_results(results, source, _check_scores)


def check_results(results: Any, source: str, check_scores: CheckScores) -> dict[str, Any]:
    """The same for results of any kind of task, whose scores `check_scores` knows."""
    if not isinstance(results, Mapping):
        raise ArtifactError(f"{source}: holds no JSON object; give the results.json of a run")
    version = results.get("schema")
    if version != SCHEMA:
        raise ArtifactError(
            f"{source}: key schema is {version!r}, this version of bertvision reads {SCHEMA}; "
            "repeat the run, or use the version that wrote it"
        )
    checked = dict(results)
    for key, kind in _REQUIRED.items():
        _expect(results, key, kind, f"{source}: key {key}")
    for key, kind in _OPTIONAL.items():
        if results.get(key) is None:
            checked[key] = None if key == "finetune" else kind()
        else:
            _expect(results, key, kind, f"{source}: key {key}")
    checked["curves"] = {"finetune": [], "fit": {}} | checked["curves"]
    checked["command"] = results.get("command") or ""
    checked["commit"] = results.get("commit") or ""
    checked["systems"] = _systems(results["systems"], source, check_scores)
    return checked


def _expect(holder: Mapping[str, Any], key: str, kind: type, where: str) -> None:
    if key not in holder:
        raise ArtifactError(f"{where} is missing; repeat the run to write it again")
    if not isinstance(holder[key], kind):
        raise ArtifactError(f"{where} should be {_JSON_NAMES[kind]}, not {type(holder[key]).__name__}")


def _systems(systems: list[Any], source: str, check_scores: CheckScores) -> list[dict[str, Any]]:
    if not systems:
        raise ArtifactError(f"{source}: key systems is empty; a report needs at least one scored system")
    checked: list[dict[str, Any]] = []
    names: set[str] = set()
    for i, system in enumerate(systems):
        where = f"{source}: key systems[{i}]"
        if not isinstance(system, Mapping):
            raise ArtifactError(f"{where} should be an object, not {type(system).__name__}")
        for key, kind in (("name", str), ("kind", str), ("scores", dict)):
            _expect(system, key, kind, f"{where}.{key}")
        if system["kind"] not in KINDS:
            raise ArtifactError(f"{where}.kind is {system['kind']!r}; known kinds are {', '.join(KINDS)}")
        if system["name"] in names:
            raise ArtifactError(f"{where}.name {system['name']!r} occurs twice; names of systems must differ")
        names.add(system["name"])
        if not system["scores"]:
            raise ArtifactError(f"{where}.scores is empty; every system needs scores on dev or test")
        for split, parts in system["scores"].items():
            if not isinstance(parts, Mapping):
                kind = type(parts).__name__
                raise ArtifactError(f"{where}.scores.{split} should be an object, not {kind}")
            check_scores(parts, f"{where}.scores.{split}")
        label = system.get("label") or system["name"]
        checked.append(_SYSTEM_GAPS | dict(system) | {"label": str(label)})
    return checked


def _check_scores(parts: Mapping[str, Any], where: str) -> None:
    """Scores of spans on one part of the data."""
    for threshold in ("zero", "tuned"):
        _expect(parts, threshold, dict, f"{where}.{threshold}")
        for metric in ("exact", "f1"):
            if metric not in parts[threshold]:
                raise ArtifactError(f"{where}.{threshold}.{metric} is missing; repeat the run")
