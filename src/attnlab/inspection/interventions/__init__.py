"""Change a running model: parts switched off, activations of another input put in."""

from attnlab.inspection.interventions.ablation import How, ablate
from attnlab.inspection.interventions.patching import activations, patch, patch_path
from attnlab.inspection.interventions.places import Place

__all__ = ["How", "Place", "ablate", "activations", "patch", "patch_path"]
