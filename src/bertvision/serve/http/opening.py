"""Whatever `bv.load` makes of a folder, as a bundle: one system is a bundle of one."""

from typing import Any

from bertvision.encoder.encoder import Precision
from bertvision.serve.bundle import Bundle
from bertvision.serve.http.limits import Backend
from bertvision.serve.load import load

__all__ = ["open_bundle"]


def open_bundle(
    folder: str,
    *,
    encoder: str | None = None,
    device: str = "auto",
    precision: Precision = "auto",
    backend: Backend = "torch",
) -> Bundle:
    """Load what is to be served."""
    options: dict[str, Any] = {} if backend == "torch" else {"backend": backend}
    model = load(folder, encoder=encoder, device=device, precision=precision, **options)
    if isinstance(model, Bundle):
        return model
    return Bundle([model.trained], model.encoder, names=[model.trained.name])
