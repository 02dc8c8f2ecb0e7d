"""The parts of attention and of a block, one file per axis of variation.

Six axes make an attention layer: `heads`, `positions`, `scores`, `masks`, `normalizers`, `combiners`;
`attention` composes them. `mixers` has attention and its rivals, `feedforward`, `norms` and `init` the rest of a
block, `block` the wiring. Every such file ends with one table, name -> class, from the plainest to the strangest.
"""
