"""Shape annotations: `Float[Tensor, "L B T H"]`.

B windows in a batch, T tokens in a window, L hidden states, H hidden size, C outputs.
jaxtyping is a development dependency: tests check the shapes at run time with it, users need not have it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Num
else:
    try:
        from jaxtyping import Bool, Float, Int, Num
    except ImportError:

        class _Unchecked:
            def __class_getitem__(cls, item):
                return item[0]

        Bool = Float = Int = Num = _Unchecked
