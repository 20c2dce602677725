"""`bv.fit`: heads on an encoder's states, in one call from Python."""

from collections.abc import Sequence
from pathlib import Path

from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.states.config import StatesConfig
from bertvision.train.fit import FitConfig
from bertvision.train.splits import TextConfig, load_split
from bertvision.train.zoo import encoder_reference, fit_zoo

__all__ = ["fit"]


def fit(
    train: str,
    *,
    out: str | Path,
    encoder: str | Encoder = "embedded",
    heads: Sequence[str] = ("default",),
    dev: str | None = None,
    epochs: int = 1,
    lr: float = 1e-3,
    batch_size: int = 16,
    max_seq_length: int = 384,
    seed: int = 0,
    states: StatesConfig | None = None,
    text: TextConfig | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Fit `heads` on the states of a frozen encoder and return their folders, ready for `bv.load`.

    `states` says where the states come from and which of them heads read (layers, positions), `text` how texts with
    labels or scores are read.

    Example:
        >>> bv.fit("train.json", out="heads", encoder="my-encoder", heads=["adapter:size=64", "learned_pooling"])
    """
    if isinstance(encoder, str):
        place, about = encoder_reference(encoder)
        source = Encoder.load(place)
    else:
        source, about = encoder, {"name": encoder.name}
    windows = WindowConfig(max_seq_length=max_seq_length)
    config = FitConfig(
        heads=tuple(heads), seeds=(seed,), epochs=epochs, lr=lr, batch_size=batch_size, seed=seed,
        keep="best" if dev else "last",
    )  # fmt: skip
    split = load_split(train, source, windows, text=text or TextConfig())
    stage = fit_zoo(
        source,
        split,
        folder=Path(out),
        config=config,
        encoder_about=about,
        states=states or StatesConfig(),
        dev=load_split(dev, source, windows, like=split) if dev else None,
        overwrite=overwrite,
    )
    return [stage.folder / name for name in stage.results["heads"]]
