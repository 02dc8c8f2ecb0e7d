"""What a constructor asks for, and whether the arguments at hand are what it asks for.

The lab's own parts use the words of the glossary. People's own classes use others (`emb_size`, `n_head`,
one `config`): the aliases here let them stand unchanged where a name would stand.
"""

from attnlab.core.constructors.configs import CONFIG_NAMES, config_class_of, settings
from attnlab.core.constructors.filling import fill_in
from attnlab.core.constructors.settings import Settings, UnsetError, heard_by
from attnlab.core.constructors.signatures import check_arguments, hints_of, is_required, signature_of, takes_any
from attnlab.core.constructors.words import glossary_word, named

__all__ = [
    "CONFIG_NAMES",
    "Settings",
    "UnsetError",
    "check_arguments",
    "config_class_of",
    "fill_in",
    "glossary_word",
    "heard_by",
    "hints_of",
    "is_required",
    "named",
    "settings",
    "signature_of",
    "takes_any",
]
