"""Shells: a model with other layers in it, made without copying a weight and run by the model's own code.

A shell is a shallow copy of a model and of the module that holds its list of layers. What is put into that list says
what the shell is for: layers that are watched, a stop that ends the forward pass, only the upper layers. Masks,
position biases and rotary embeddings are made by the model's forward pass as ever.
"""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from bertvision.encoder.stack import embeddings_of, layer_list
from bertvision.shapes import Bool, Float

__all__ = [
    "Reached",
    "Shell",
    "Stop",
    "Watched",
    "as_buffers",
    "evaluating",
    "keep_as_buffers",
    "run_on_state",
]


# ---- what stands in the places of layers and embeddings


class _StandIn(nn.Module):
    """In a layer's place, with its plain settings: a forward pass may ask a layer for its kind of attention."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        plain = {name: value for name, value in vars(layer).items() if not name.startswith("_")}
        self.__dict__.update({name: value for name, value in plain.items() if not hasattr(self, name)})


class Watched(_StandIn):
    """A layer that writes down the state it is given.

    Around the layer and not a hook on it: the layer is shared with the whole model, and what happens inside may be
    recomputed in the backward pass. A deep copy of the shell has a list of its own.
    """

    def __init__(self, layer: nn.Module, seen: list[Tensor]) -> None:
        super().__init__(layer)
        self.layer = layer
        self.seen = seen

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.append(_given_state(args, kwargs))
        return self.layer(*args, **kwargs)


class Reached(Exception):
    """Ends a forward pass at the cut, with the states seen until then."""

    def __init__(self, states: tuple[Tensor, ...]) -> None:
        super().__init__("the cut is reached")
        self.states = states


class Stop(_StandIn):
    """The first layer above the cut: layers, norms and poolers behind it do not run."""

    def __init__(self, layer: nn.Module, seen: list[Tensor]) -> None:
        super().__init__(layer)
        self.seen = seen

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        states = (*self.seen, _given_state(args, kwargs))
        self.seen.clear()
        raise Reached(states)


class _Given(nn.Module):
    """In the place of the embeddings: the state that is given as `inputs_embeds`."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return _given_state(args, kwargs)


def _given_state(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The one argument that can be a state (B, T, H): models give it by place or by various names."""
    values = (*args, *kwargs.values())
    return next(v for v in values if isinstance(v, Tensor) and v.ndim == 3 and v.is_floating_point())


# ---- shells


class Shell:
    """A shallow copy of a model with other layers; every other module is shared with the model."""

    def __init__(self, model: Any, layers: list[nn.Module]) -> None:
        inside = layer_list(model)
        assert inside is not None
        path = next(name for name, module in model.named_modules() if module is inside).split(".")
        self.model = holder = _shallow(model)
        self.skeleton = [self.model]
        """The copies, from the model to the holder of the layers."""
        for name in path[:-1]:
            inner = _shallow(getattr(holder, name))
            holder._modules[name] = inner
            holder = inner
            self.skeleton.append(holder)
        holder._modules[path[-1]] = nn.ModuleList(layers)
        if "pooler" in self.model._modules:
            self.model._modules["pooler"] = None
        # Else it would put recording hooks on layers that have the model's own, and states would be seen twice.
        self.model._output_capturing_hooks_installed = True

    def outside(self) -> Iterator[tuple[nn.Module, str, nn.Module]]:
        """(copy, name, module) of what is neither copied nor a list of layers."""
        for part in self.skeleton:
            for name, module in part.named_children():
                if not isinstance(module, nn.ModuleList) and module not in self.skeleton:
                    yield part, name, module

    def give_states(self) -> None:
        """Let it begin with a state instead of token ids."""
        tables = embeddings_of(self.model)
        for part, name, module in [*self.outside()]:
            if module is tables:
                part._modules[name] = _Given()
            elif name == "embeddings_project":  # ELECTRA widens what its tables give
                part._modules[name] = nn.Identity()


def run_on_state(
    shell: nn.Module, state: Float[Tensor, "B T H"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T H"]:
    """The last state; whatever the config asks to be recorded, nothing is."""
    wanted = {"output_hidden_states": False, "output_attentions": False, "return_dict": True}
    return shell(inputs_embeds=state, attention_mask=mask.long(), **wanted).last_hidden_state


def _shallow(module: Any) -> Any:
    """A copy with tables of its own and the same modules, parameters and buffers in them."""
    twin = copy.copy(module)
    for name, value in vars(module).items():
        if name.startswith("_") and isinstance(value, dict):
            twin.__dict__[name] = copy.copy(value)
    return twin


def as_buffers(module: nn.Module) -> nn.Module:
    """A copy whose parameters, the submodules' too, are buffers in the same memory: moved along, never trained."""
    twin = _shallow(module)
    keep_as_buffers(twin)
    for name, child in module.named_children():
        twin._modules[name] = as_buffers(child)
    return twin


def keep_as_buffers(module: nn.Module) -> None:
    """Turn a module's own parameters into buffers, those of its submodules left alone."""
    for name, parameter in [*module._parameters.items()]:
        del module._parameters[name]
        module.register_buffer(name, None if parameter is None else parameter.detach())


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode for a moment; every part then has the mode it had."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
