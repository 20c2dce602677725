"""A part of the data with its windows: train, dev or test."""

from dataclasses import dataclass
from pathlib import Path

from bertvision.config import from_mapping, to_mapping
from bertvision.data.examples import SpanData
from bertvision.data.load import load_span_data
from bertvision.data.window_store import default_cache_dir, windows_fingerprint, windows_for
from bertvision.data.windows import WindowConfig, Windows
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.load import tokenizer_fingerprint
from bertvision.errors import ArtifactError, ConfigError
from bertvision.feed import FeedConfig, Reading
from bertvision.store.catalogue import default_root, find_entry
from bertvision.store.identity import Origin
from bertvision.store.store import Store, open_store

__all__ = ["Split", "load_split", "window_split"]


@dataclass(frozen=True)
class Split:
    data: SpanData
    windows: Windows
    fingerprint: str
    """Of the windows: data, tokenizer and window settings."""
    config: WindowConfig
    """The window settings."""
    store: Store | None = None
    """Where its states are, if it was named by them; its data is then not known."""

    def feed(self, config: FeedConfig) -> FeedConfig:
        """`config`, but with what its store holds where it was named by that."""
        if self.store is None:
            return config
        identity = self.store.identity
        return FeedConfig.of(config, Reading(identity.layers, identity.positions))

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
    source: str,
    encoder: Encoder,
    config: WindowConfig,
    *,
    max_examples: int | None = None,
    stores: str = "",
) -> Split:
    """Load a data set as the user names it and cut it into windows; store:KEY is one of `stores`."""
    if source.startswith("store:"):
        if max_examples is not None:
            raise ConfigError(f"--train {source} is read as a whole: leave out --max-train-examples")
        return _stored_split(source.removeprefix("store:"), encoder, stores or default_root())
    return window_split(load_span_data(source, max_examples=max_examples), encoder, config)


def _stored_split(name: str, encoder: Encoder, root: str | Path) -> Split:
    """The windows of a store. Their states are there, so neither texts nor tokenizer are needed."""
    entry = find_entry(root, name)
    store = open_store(entry.folder, entry.key)
    identity = store.identity
    if (identity.encoder, identity.configuration) != (encoder.fingerprint, encoder.configuration):
        raise ArtifactError(
            f"{store.folder.address} holds states of {store.about['encoder']} (fingerprint {identity.encoder[:12]}), "
            f"not of {encoder.name} ({encoder.fingerprint[:12]}): name the encoder it was made with"
        )
    config = from_mapping(WindowConfig, identity.preprocessing, source=store.folder.address)
    data = SpanData([], [], store.about["data"])
    return Split(data, store.windows, identity.windows, config, store)
