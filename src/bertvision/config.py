"""Settings: frozen dataclasses in Python, YAML in recipes, flags on the command line.

A recipe maps field names of a dataclass to values (nested for nested dataclasses). An unknown name or a value of the
wrong type is a `ConfigError` that names the recipe and the key.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from bertvision.errors import ConfigError, nearest

T = TypeVar("T")

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Path: "a path"}


def recipes() -> dict[str, Path]:
    """The shipped recipes by name: inside the wheel, or beside `src` in a checkout."""
    package = Path(__file__).parent
    folder = package / "recipes" if (package / "recipes").is_dir() else package.parents[1] / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def recipe_path(name: str) -> Path:
    """A file as given, or a shipped recipe by its name."""
    if Path(name).is_file():
        return Path(name)
    shipped = recipes()
    if name not in shipped:
        raise ConfigError(
            f"there is no recipe {name!r}: {nearest(name, shipped)} (`bertvision recipes` lists them; or give a file)"
        )
    return shipped[name]


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a recipe file."""
    import yaml

    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the recipe {path} ({error}): check the file") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise ConfigError(f"the recipe {path} is not valid YAML{where} ({problem}): correct it") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(
            f"the recipe {path} must hold lines of the form `name: value`, not a {type(value).__name__}"
        )
    return value


def from_mapping(
    cls: type[T],
    values: Mapping[str, Any],
    *,
    source: str,
    prefix: str = "",
    missing: Any = dataclasses.MISSING,
) -> T:
    """Build the dataclass `cls` from plain values. Absent fields get their default, or `missing` if they have none."""
    hints = get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType]
    chosen: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in fields:
            raise ConfigError(f"{source} sets {prefix}{key}, which does not exist: {nearest(name, fields)}")
        chosen[name] = _convert(value, hints[name], source=source, where=f"{prefix}{name}")
    if missing is not dataclasses.MISSING:
        for name, field in fields.items():
            if field.default is field.default_factory is dataclasses.MISSING:
                chosen.setdefault(name, missing)
    return cls(**chosen)


def _convert(value: Any, kind: Any, *, source: str, where: str) -> Any:
    """Convert a value from YAML to the type of its field."""
    if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        return from_mapping(kind, value, source=source, prefix=f"{where}.")  # pyright: ignore[reportArgumentType]
    origin = get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        kind = next(arg for arg in get_args(kind) if arg is not type(None))
        return _convert(value, kind, source=source, where=where)
    if origin is tuple and isinstance(value, (list, tuple)):
        item = get_args(kind)[0]
        return tuple(_convert(v, item, source=source, where=where) for v in value)
    if origin is Literal and value in get_args(kind):
        return value
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 5e-5 as a string
        except ValueError:
            pass
    elif isinstance(kind, type) and isinstance(value, kind) and (kind is bool) == isinstance(value, bool):
        return value
    raise ConfigError(f"{source} sets {where} to {value!r}: it must be {_wanted(kind)}")


def _wanted(kind: Any) -> str:
    """Describe the values that a type allows."""
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"a list, each item {_wanted(get_args(kind)[0])}"
    if dataclasses.is_dataclass(kind):
        return "a mapping of " + ", ".join(field.name for field in dataclasses.fields(kind))
    return _WORDS.get(kind, str(kind))


def part_of(cls: type[T], config: Any) -> T:
    """The fields of `cls` that `config`, an instance of a wider class, has."""
    return cls(**{field.name: getattr(config, field.name) for field in dataclasses.fields(cls)})  # pyright: ignore


def to_mapping(config: Any) -> dict[str, Any]:
    """Plain values of a dataclass, as they go into YAML or JSON."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return str(value) if isinstance(value, Path) else value

    return plain(dataclasses.asdict(config))


def dump_yaml(config: Any, *, heading: str) -> str:
    """A recipe that repeats `config` exactly, with `heading` as a comment."""
    import yaml

    lines = "".join(f"# {line}\n" for line in heading.splitlines())
    return lines + yaml.safe_dump(to_mapping(config), sort_keys=False, allow_unicode=True)
