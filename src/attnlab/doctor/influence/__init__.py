"""Who depends on whom: one measurement of influence, and the checks that read from it.

``differences``, ``steady`` and ``influence`` measure; ``padded`` and ``logits`` make the
conditions under which it is asked.
"""
