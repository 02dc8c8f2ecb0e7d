"""What a constructor asks for, and whether the arguments at hand are what it asks for.

The lab's own parts use the words of the glossary. People's own classes use others (`emb_size`, `n_head`,
one `config`): the aliases here let them stand unchanged where a name would stand.
"""

from attnlab.core.constructors.configs import ITSELF, Settings, UnsetError, heard_by, settings
from attnlab.core.constructors.filling import config_class_of, config_of, fill_in
from attnlab.core.constructors.signatures import check_arguments, fits, hints_of, is_required, signature_of, takes_any
from attnlab.core.constructors.words import end_word, glossary_word, named
