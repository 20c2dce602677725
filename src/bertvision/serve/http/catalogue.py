"""The tasks a server answers, as GET /v1/models tells them: no folder, no name of an encoder."""

from dataclasses import dataclass

from bertvision.heads.spec import HeadSpec
from bertvision.serve.bundle import Bundle, asks, texts_read
from bertvision.tasks.text.task import TextTask

__all__ = ["Catalogue", "Model", "catalogue_of"]


@dataclass(frozen=True)
class Model:
    """A task and what answers it."""

    task: str
    """Its name."""
    kind: str
    """span, label or score."""
    texts: int
    """How many texts an input has: one, or two (a pair, or a question and its context)."""
    asks: bool
    """Whether the two are a question and its context."""
    classes: tuple[str, ...]
    """Of a label."""
    heads: tuple[str, ...]
    """What the heads are called that answer together."""
    parameters: int
    """Of its heads."""


@dataclass(frozen=True)
class Catalogue:
    models: tuple[Model, ...]
    encoder_parameters: int

    def reading(self, texts: int) -> tuple[str, ...]:
        """The tasks whose inputs have so many texts."""
        return tuple(model.task for model in self.models if model.texts == texts)


def catalogue_of(bundle: Bundle) -> Catalogue:
    """What there is in a bundle."""
    models = tuple(
        Model(
            task=name,
            kind=system.task.kind,
            texts=texts_read(system),
            asks=asks(system),
            classes=system.task.classes if isinstance(system.task, TextTask) else (),
            heads=tuple(HeadSpec(head.name, head.config).label for head in system.heads),
            parameters=sum(head.num_parameters for head in system.heads),
        )
        for name, system in bundle.systems.items()
    )
    return Catalogue(models, bundle.encoder.num_parameters)
