"""Facts: they carry no remedy, and of a bare layer nothing is said that goes without saying."""

from __future__ import annotations

import pytest
from tests.doctor.collection import FOLDER
from torch import nn

from attnlab.doctor import doctor


@pytest.mark.parametrize("name", ["attentions.py:CausalSelfAttention", "masked.py:PairMask", "mixers.py:CausalConv"])
def test_facts_carry_no_remedy(name):
    facts = [one for one in doctor(f"{FOLDER}/right/{name}").findings if one.severity == "info"]
    assert facts
    assert not [one for one in facts if one.remedy]


def test_of_a_bare_layer_nothing_is_said_that_goes_without_saying():
    told = {one.check for one in doctor(nn.MultiheadAttention(64, 4, batch_first=True)).findings}
    assert told <= {"positions", "receptive-field", "cost", "signal", "mask-polarity"}
