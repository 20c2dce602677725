"""An encoder that hands out the hidden states of all its layers.

    encoder = Encoder.load("embedded")
    states = encoder.states(batch)      # (L, B, T, H): embedding output first, then every layer

States are frozen: evaluation mode, no gradients. Training reads the model itself (`train/`), after `tune` has frozen
what a policy leaves alone. The fingerprint hashes weights and tokenizer, never the name.
"""

import contextlib
import copy
import hashlib
import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from bertvision.encoder.batch import CapturedForward, TokenBatch, in_bf16, pooled_by, read_tokens
from bertvision.encoder.device import Precision, choose_device, choose_precision
from bertvision.encoder.freeze import adapters_of, apply_policy, merge_lora
from bertvision.encoder.load import (
    Delta,
    fingerprint_of,
    lasting_name,
    load_config,
    load_tokenizer,
    load_weights,
    silence,
    write_delta,
)  # fmt: skip
from bertvision.encoder.policy import Policy
from bertvision.errors import EncoderError, OutputError
from bertvision.shapes import Float, Int


class Encoder:
    """A Hugging Face encoder, its tokenizer and the device it lives on."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        device: torch.device,
        precision: Precision,
    ) -> None:
        self.model = model.to(device)
        self.tokenizer = tokenizer
        self.name = name
        self.device = device
        self.precision: Literal["fp32", "bf16"] = choose_precision(precision, device)
        self.policy: Policy | None = None  # what `tune` was called with
        self.num_states: int = model.config.num_hidden_layers + 1  # L, the embedding output first
        self.hidden: int = model.config.hidden_size
        self.pad_id: int = tokenizer.pad_token_id or 0
        self._delta: Delta | None = None  # None: the weights stand for themselves
        self._forget()
        has_types = (getattr(model.config, "type_vocab_size", 0) or 0) > 1
        self.passes_types = has_types and "token_type_ids" in inspect.signature(model.forward).parameters

    @classmethod
    def load(cls, name: str, *, device: str = "auto", precision: Precision = "auto") -> "Encoder":
        """Load `embedded`, a local folder (a delta's too) or a Hub name."""
        place = choose_device(device)
        load_config(name)  # the wrong kind of model is refused as such, not for its missing tokenizer
        tokenizer = load_tokenizer(name)
        model, delta = load_weights(name, tokenizer)
        encoder = cls(model, tokenizer, name=name, device=place, precision=precision)
        encoder._delta = delta
        return encoder

    def _forget(self) -> None:
        self._fingerprint: str | None = None
        self._frozen: CapturedForward | None = None
        self._frozen_model: Any = None

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    @property
    def max_tokens(self) -> int | None:
        """The longest window the positions allow; None where nothing limits it."""
        positions = getattr(getattr(self.model, "embeddings", None), "position_embeddings", None)
        if isinstance(positions, torch.nn.Embedding):
            # RoBERTa and MPNet count positions from the pad index on.
            reserved = 0 if positions.padding_idx is None else positions.padding_idx + 1
            return positions.num_embeddings - reserved
        return getattr(self.model.config, "max_position_embeddings", None)

    def check_length(self, max_seq_length: int) -> None:
        if self.max_tokens is not None and max_seq_length > self.max_tokens:
            raise EncoderError(
                f"--max-seq-length {max_seq_length} is more than the {self.max_tokens} positions of {self.name}"
            )

    @property
    def fingerprint(self) -> str:
        """Hash of the weights and the tokenizer, the same after save and load; computed until `changed()`."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint_of(self.model, self.tokenizer, self._delta)
        return self._fingerprint

    @property
    def configuration(self) -> str:
        """Hash of the model's settings, such as its activation; names and versions are left out."""
        settings = self.model.config.to_dict()
        for name in ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"):
            settings.pop(name, None)
        text = json.dumps(settings, sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    # ---- training

    def tune(self, policy: Policy, *, seed: int) -> None:
        """Let what the policy names train, and nothing else; adapters and LoRA start from `seed`. Once.

        Tuned again without new ones, an encoder with adapters becomes a delta of itself as it was loaded.
        """
        if self.policy is not None:
            raise EncoderError(
                f"{self.name} is being tuned with --policy {self.policy}: load it again for {policy}"
            )
        apart = policy.saves_delta or bool(adapters_of(self.model))
        base = self.fingerprint if apart else ""  # hashing takes a while, and must come before any change
        apply_policy(self.model, policy, seed=seed, name=self.name)
        self.policy = policy
        if not apart and self._delta is None:
            return
        self._forget()
        names = tuple(name for name, p in self.model.named_parameters() if p.requires_grad)
        self._delta = Delta(policy, lasting_name(self.name), base, names) if apart else None

    def changed(self) -> None:
        """Forget what was computed from the weights: they were trained."""
        self._forget()
        if self._delta is not None and self._delta.merged is not None:
            self._delta = None  # its matrices are no longer the whole difference

    def check_checkpointing(self) -> None:
        if not getattr(self.model, "supports_gradient_checkpointing", False):
            raise EncoderError(
                f"{self.name} ({self.model.config.model_type}) cannot compute its layers again: "
                "leave out --checkpointing, or use a smaller batch with --accumulate"
            )

    def checkpoint_gradients(self) -> None:
        """Keep only the layers' inputs for the backward pass and compute the rest again: less memory, more time."""
        self.check_checkpointing()
        # The name since transformers 5.23, or the one before.
        enable = getattr(self.model, "activation_checkpointing_enable", None)
        (enable or self.model.gradient_checkpointing_enable)({"use_reentrant": False})
        # It makes the embeddings' output ask for gradients, which would carry them below frozen layers.
        self.model.disable_input_require_grads()
        if "use_cache" in inspect.signature(self.model.forward).parameters:
            # An encoder has no use for it; else transformers says in every run that it goes without.
            self.model.register_forward_pre_hook(
                lambda _, args, words: (args, words | {"use_cache": False}), with_kwargs=True
            )

    def copy(self) -> "Encoder":
        """A frozen copy that shares nothing with this encoder, which is neither moved nor touched."""
        twin = copy.copy(self)
        twin.model = self._plain_model().to(self.device)
        twin._forget()
        if self._delta is not None and self._delta.policy.rule == "lora":
            tensors = self._delta.tensors(self.model)
            twin._delta = replace(self._delta, merged={n: t.detach().clone() for n, t in tensors.items()})
        return twin

    def _plain_model(self) -> Any:
        model = copy.deepcopy(self.model)
        merge_lora(model)
        return model.eval().requires_grad_(False)

    # ---- use

    @property
    def state_dtype(self) -> torch.dtype:
        """Of frozen states. On a CPU autocast leaves the norms' output, which states are, in float32."""
        return torch.bfloat16 if self.precision == "bf16" and self.device.type == "cuda" else torch.float32

    def autocast(self, *, cache: bool = True) -> contextlib.AbstractContextManager[Any]:
        """Without `cache` weights are cast at every use, as a CUDA graph needs it."""
        if self.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=cache)

    def _forward(self, model: Any, batch: TokenBatch) -> tuple[Float[Tensor, "B T H"], ...]:
        states = read_tokens(model, batch.ids, batch.mask, batch.types if self.passes_types else None)
        if len(states) != self.num_states or any(state.shape[:2] != batch.ids.shape for state in states):
            raise EncoderError(
                f"{self.name} ({model.config.model_type}) does not give one state a token for each of its "
                f"{self.num_states - 1} layers: choose an encoder such as BERT with --encoder"
            )
        return states

    @torch.no_grad()
    def check_states(self, batch: TokenBatch) -> None:
        """Refuse a model whose hidden states are not one a token and layer, as Funnel's are not."""
        place = next(self.model.parameters()).device  # a frozen one may be parked elsewhere
        ids, mask, types = (tensor.to(place) for tensor in (batch.ids, batch.mask, batch.types))
        self._forward(self.model.eval(), TokenBatch(ids, mask, types, batch.windows))

    @torch.no_grad()
    def layer_states(self, batch: TokenBatch) -> tuple[Float[Tensor, "B T H"], ...]:
        """All hidden states of a batch, one tensor each, frozen: evaluation mode, no gradients.

        On a GPU the next call may overwrite them; `states` gives a copy.
        """
        if self.state_dtype == torch.float32:
            with self.autocast():
                return self._forward(self.model.eval(), batch)
        model = self._frozen_copy()
        if self._frozen is None:
            self._frozen = CapturedForward(lambda tokens: self._forward(model, tokens))
        return self._frozen(batch)

    def _frozen_copy(self) -> Any:
        """Weights that do not change, cast to bf16 once instead of in every call."""
        if self._frozen_model is None:
            self._frozen_model = in_bf16(self._plain_model()).to(self.device)
            self.model.to("cpu")  # until somebody trains it
        return self._frozen_model

    @property
    def has_pooler(self) -> bool:
        """Whether it makes one vector of a window; one that its checkpoint does not hold is not loaded."""
        return getattr(self.model, "pooler", None) is not None

    @torch.no_grad()
    def pooled(
        self, last: Float[Tensor, "B T H"], cls: Int[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B H"] | None:
        if self.state_dtype == torch.float32:
            with self.autocast():
                return pooled_by(self.model.eval(), last, cls)
        return pooled_by(self._frozen_copy(), last.to(self.state_dtype), cls)

    def states(self, batch: TokenBatch) -> Float[Tensor, "L B T H"]:
        return torch.stack(self.layer_states(batch))

    def save(self, folder: Path) -> None:
        """Write a delta, or weights, config and tokenizer in Hugging Face format; the caller makes it atomic."""
        from safetensors import SafetensorError

        if self._delta is not None:
            write_delta(folder, self._delta, self._delta.tensors(self.model))
            return
        try:
            with silence():
                self.model.save_pretrained(folder)
        except SafetensorError as error:  # it hides the operating system's error, such as a full disk
            raise OutputError(
                f"cannot write the encoder ({error}): make room on the disk, then run the same command again"
            ) from error
        self.tokenizer.save_pretrained(folder)
        for file in folder.iterdir():
            file.chmod(0o644)  # the weights come out readable by their owner alone
