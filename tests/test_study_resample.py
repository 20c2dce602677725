"""The shared draws of a report give the intervals that a comparison by itself gives."""

import numpy as np
import pytest

from bertvision.errors import DataError
from bertvision.study.resample import paired, paired_all
from bertvision.tasks.span.compare import paired_bootstrap


@pytest.mark.parametrize("questions", [1, 7, 300, 1301])
def test_as_a_bootstrap_by_itself(questions: int) -> None:
    random = np.random.default_rng(questions)
    one, other = (random.random(questions) > 0.4).astype(np.float64), random.random(questions)
    third = random.random(questions).astype(np.float32)
    for first, second, found in zip(
        (one, other), (other, third), paired_all([(one, other), (other, third)]), strict=True
    ):
        alone = paired_bootstrap(first, second)
        assert [found.difference, found.low, found.high] == pytest.approx(
            [alone.difference, alone.low, alone.high], rel=0, abs=1e-9
        )
        assert paired(first, second).low == pytest.approx(found.low, rel=0, abs=1e-9)


def test_other_questions_are_refused() -> None:
    with pytest.raises(DataError, match="same questions: got 3 and 2"):
        paired(np.zeros(3), np.zeros(2))
    with pytest.raises(DataError, match="same questions"):
        paired(np.zeros(0), np.zeros(0))
