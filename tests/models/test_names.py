"""What is no name, or no count, is refused with the option's name."""

from __future__ import annotations

import pytest

from ctsattn.models import ContinuousTransformer, Linear
from tests.models.batches import SPEC

BAD = {"head": "median", "mixer": "sofmax", "feedforward": None}


@pytest.mark.parametrize("option", BAD)
def test_a_name_that_is_in_no_table_is_refused_with_those_that_are(option):
    with pytest.raises(ValueError, match=f"`{option}` must be one of .*, but it is {BAD[option]!r}"):
        ContinuousTransformer(**{option: BAD[option]}).build(SPEC)


@pytest.mark.parametrize("groups", [0, -1, 1.5, "a"])
def test_a_model_has_one_group_at_least(groups):
    with pytest.raises(ValueError, match=f"`groups` must be an integer of at least 1, but it is {groups!r}"):
        Linear(groups=groups).build(SPEC)
