"""A part of the data with its windows: train, dev or test."""

from dataclasses import dataclass

from bertvision.config import to_mapping
from bertvision.data.examples import SpanData
from bertvision.data.load import load_span_data
from bertvision.data.window_store import default_cache_dir, windows_fingerprint, windows_for
from bertvision.data.windows import WindowConfig, Windows
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.load import tokenizer_fingerprint
from bertvision.store.identity import Origin

__all__ = ["Split", "load_split", "window_split"]


@dataclass(frozen=True)
class Split:
    data: SpanData
    windows: Windows
    fingerprint: str
    """Of the windows: data, tokenizer and window settings."""
    config: WindowConfig
    """The window settings."""

    @property
    def origin(self) -> Origin:
        """What a store of its states is called by."""
        return Origin(self.fingerprint, to_mapping(self.config), self.data.name)

    def describe(self) -> dict[str, int | str]:
        """Its row in the report."""
        return {
            "name": self.data.name,
            "examples": len(self.data),
            "unanswerable": sum(not example.answerable for example in self.data.examples),
            "windows": len(self.windows),
            "tokens": self.windows.num_tokens,
        }


def window_split(data: SpanData, encoder: Encoder, config: WindowConfig, *, keep: bool = True) -> Split:
    """Cut `data` into windows for `encoder`; `keep` stores them on disk for the next run."""
    encoder.check_length(config.max_seq_length)
    tokenizer, identity = encoder.tokenizer, tokenizer_fingerprint(encoder.tokenizer)
    windows = windows_for(
        data,
        tokenizer,
        config,
        tokenizer_fingerprint=identity,
        cache_dir=default_cache_dir() if keep else None,
    )
    fingerprint = windows_fingerprint(data, tokenizer, config, tokenizer_fingerprint=identity)
    return Split(data, windows, fingerprint, config)


def load_split(
    source: str, encoder: Encoder, config: WindowConfig, *, max_examples: int | None = None
) -> Split:
    """Load a data set as the user names it and cut it into windows."""
    return window_split(load_span_data(source, max_examples=max_examples), encoder, config)
