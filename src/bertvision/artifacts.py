"""Atomic files and folders: a reader finds the old content or the new, whatever was killed in between.

Files are written to a temporary name in the same folder, flushed to disk and renamed; folders likewise. Replacing a
folder takes two renames; `restore` brings the old one back if a kill fell between them.
"""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertvision.errors import ArtifactError, OutputError

if TYPE_CHECKING:
    from torch import Tensor


_SAFETENSORS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint32": "U32", "uint8": "U8",
    "bool": "BOOL",
}  # fmt: skip
"""Torch types to their names in a safetensors file."""


@contextmanager
def disk_trouble(path: Path) -> Iterator[None]:
    """Turn an error of the operating system while writing into one sentence about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OutputError(
            f"cannot write {path}: {os.strerror(error.errno).lower()}; choose another folder or make room, then run "
            "the same command again"
        ) from error


def check_output(path: Path) -> None:
    """Prove that `path` can be written, without leaving a trace: a mistyped --out should not cost an hour."""
    with disk_trouble(path):
        nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        if not nearest.is_dir():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(nearest))
        if nearest == path:
            sweep(path)
        probe = nearest / f".probe.tmp-{os.getpid()}"
        probe.touch()
        probe.unlink()


def output_folder(path: Path) -> Path:
    """Create `path` and prove that files can be written into it."""
    with disk_trouble(path):
        path.mkdir(parents=True, exist_ok=True)
    check_output(path)
    return path


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; on success it becomes `path`, on failure it vanishes."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with disk_trouble(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            with temporary.open("rb") as handle:
                os.fsync(handle.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success it takes the place of `path`."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with disk_trouble(path):
        restore(path)
        remove(temporary)
        temporary.mkdir(parents=True)
        try:
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    with file.open("rb") as handle:
                        os.fsync(handle.fileno())
            old = _aside(path)
            remove(old)
            if path.exists():
                path.rename(old)
            temporary.rename(path)
            remove(old)
        finally:
            remove(temporary)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def restore(path: Path) -> None:
    """Bring back a folder that a killed process had moved aside without putting the new one in place."""
    if not path.exists() and _aside(path).is_dir():
        _aside(path).rename(path)


def sweep(folder: Path, *, depth: int = 0) -> None:
    """Delete half-written files of killed processes in `folder` and `depth` levels below it.

    Files of living processes stay. The depth is bounded because the folder may be a user's own.
    """
    patterns = ["*/" * level + ".*.tmp-*" for level in range(depth + 1)]
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        number = path.name.rpartition("-")[2]
        if number.isdigit() and int(number) != os.getpid() and not alive(int(number)):
            remove(path)


def alive(process: int) -> bool:
    """Whether a process with this id runs on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # it belongs to another user, or the system does not know
    return True


def write_text(path: Path, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_json_rows(path: Path, rows: Mapping[str, Any]) -> None:
    """Write a JSON object with one line per key: several times faster than indenting large values."""
    lines = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in rows.items())
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def read_json(path: Path) -> Any:
    """Read a JSON file of an artifact; a missing or broken one is an `ArtifactError`."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArtifactError(f"{path} is missing: is {path.parent} a folder that bertvision wrote?") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(
            f"{path} is not valid JSON ({error}): delete its folder and make it again"
        ) from error


def write_tensors(
    path: Path, tensors: Mapping[str, "Tensor"], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors as safetensors one after another, so that writing needs the memory of one tensor only.

    safetensors' own functions copy all tensors first, and report a full disk as an error of their own.
    """
    import torch

    # Wide types first: then every tensor begins at a multiple of its item's size.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        kind = _SAFETENSORS[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic_file(path) as temporary, temporary.open("wb") as handle:
        handle.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            handle.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def read_tensors(path: Path) -> tuple[dict[str, "Tensor"], dict[str, str]]:
    """Tensors and metadata of a safetensors file; a missing or truncated one is an `ArtifactError`."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise ArtifactError(f"{path} is missing: is {path.parent} a folder that bertvision wrote?")
    try:
        with safe_open(path, framework="pt") as handle:
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (not a dict)
            return tensors, handle.metadata() or {}
    except SafetensorError as error:
        raise ArtifactError(f"{path} is damaged ({error}): delete its folder and make it again") from error


def remove(path: Path) -> None:
    """Delete a file or folder that may not exist."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
