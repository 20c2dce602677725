"""`bertvision serve FOLDER`: answers over HTTP, and the page that looks inside."""

from dataclasses import dataclass, fields
from typing import Annotated

import tyro

from bertvision.cli.flags import OptionalPath, OptionalText
from bertvision.encoder.device import Precision
from bertvision.model.config import Backend
from bertvision.serve.config import ServeConfig

__all__ = ["ARGS", "ServeArgs", "main"]


@dataclass(frozen=True)
class ServeArgs(ServeConfig):
    """Answer over HTTP what `predict` answers, with a page at / that looks inside. Only this machine can ask, unless
    --host says otherwise; then give it a key."""

    folder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FOLDER")] = tyro.MISSING
    """A package of `export`, or what fit, finetune, multitask, ensemble or run wrote."""
    api_key_file: OptionalPath = None
    """A file with the key that requests must carry (Authorization: Bearer KEY); else BERTVISION_API_KEY, else none."""
    backend: Backend = "torch"
    """torch, or onnx: the graph that `export --onnx` put into the package."""
    encoder: OptionalText = None
    """Where the encoder lies now, if it moved."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Precision = "auto"
    """fp32, bf16, or auto: bf16 on GPUs that have it."""

    @property
    def config(self) -> ServeConfig:
        return ServeConfig(**{f.name: getattr(self, f.name) for f in fields(ServeConfig)})


ARGS = ServeArgs


def main(args: ServeArgs) -> None:
    from bertvision.serve.config import check_extra

    check_extra()
    _steady_memory()
    from bertvision.serve.server import stoppable

    with stoppable():
        _serve(args)


def _serve(args: ServeArgs) -> None:
    import contextlib
    import ipaddress
    import logging

    from bertvision import console
    from bertvision.model.load import load
    from bertvision.serve.app import create_app
    from bertvision.serve.config import read_key
    from bertvision.serve.server import listen, serve, url_of

    key, config = read_key(args.api_key_file), args.config
    with contextlib.closing(listen(config)) as listener:
        model = load(
            args.folder,
            encoder=args.encoder,
            device=args.device,
            precision=args.precision,
            backend=args.backend,
        )
        # Clients decide how long texts are; a warning for each text that is cut would let them fill the log.
        logging.getLogger("bertvision.data").setLevel(logging.ERROR)
        app = create_app(model, config, key=key)
        url = url_of(listener)
        if key is None and not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
            logging.getLogger("bertvision").warning(
                "anyone who reaches %s can ask: give a key with --api-key-file", url
            )
        serve(app, listener, config, lambda: console.emit(f"{', '.join(model.systems)} at {url}"))


def _steady_memory() -> None:
    """Give large tensors back to the system as soon as they are freed, have one heap for all threads, and keep few
    compiled shapes.

    The command line keeps freed memory, which makes training faster; batches of ever other sizes would leave it in
    pieces, and a server that runs for weeks would grow. Answers take as long either way.
    """
    import ctypes
    import os
    import sys

    # oneDNN keeps what it compiles for a shape, and torch keeps a thousand of these besides; batches have ever other
    # shapes. Both are read at the first of them. Compiling one anew takes less than can be measured.
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "32")
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None and hasattr(libc, "gnu_get_libc_version"):
        # M_MMAP_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD, M_ARENA_MAX of glibc's mallopt.
        for name, value in ((-4, 65_536), (-3, 1 << 20), (-1, 16 << 20), (-2, 1 << 20), (-8, 1)):
            libc.mallopt(name, value)
