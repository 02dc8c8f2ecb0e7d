"""Parallel corpora by name, each part of them pinned like a named text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from attnlab.core.errors import SpecError, nearest
from attnlab.tasks.datasets import NamedText

MULTI30K_COMMIT = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"
MULTI30K_LICENSE = "no license file; derived from Flickr30K, whose images are for non-commercial research and education"


@final
@dataclass(frozen=True)
class Corpus:
    """Hold where the parts of a parallel corpus come from."""

    languages: tuple[str, ...]  # codes of its languages; any two of them make a pair
    parts: Mapping[str, Mapping[str, NamedText]]
    """For each part ("train", "validation", and test sets by name) the text of each language."""

    def part(self, name: str, language: str) -> NamedText:
        """One text."""
        if language not in self.languages:
            raise SpecError(f"no language '{language}' in this corpus; {nearest(language, self.languages)}")
        if name not in self.parts:
            raise SpecError(f"no part '{name}' of this corpus; {nearest(name, self.parts)}")
        return self.parts[name][language]


def _multi30k() -> Corpus:
    files = {
        "train": "train",
        "validation": "val",
        "test-2016": "test_2016_flickr",
        "test-2017": "test_2017_flickr",
        "test-2017-coco": "test_2017_mscoco",
        "test-2018": "test_2018_flickr",
    }
    parts = {
        part: {
            language: NamedText(
                file=f"multi30k/{file}.{language}",
                repository="multi30k/dataset",
                commit=MULTI30K_COMMIT,
                path=f"data/task1/raw/{file}.{language}.gz",
                sha256=digest,
                size_bytes=size,
                license=MULTI30K_LICENSE,
            )
            for language, (digest, size) in MULTI30K_CONTENT[file].items()
        }
        for part, file in files.items()
    }
    return Corpus(("de", "en", "fr"), parts)


MULTI30K_CONTENT: Mapping[str, Mapping[str, tuple[str, int]]] = {
    "train": {
        "de": ("2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72", 2_110_398),
        "en": ("460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6", 1_801_238),
        "fr": ("5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d", 2_111_303),
    },
    "val": {
        "de": ("660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660", 75_981),
        "en": ("1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227", 63_297),
        "fr": ("5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc", 73_924),
    },
    "test_2016_flickr": {
        "de": ("4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16", 70_649),
        "en": ("399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182", 62_076),
        "fr": ("cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6", 72_261),
    },
    "test_2017_flickr": {
        "de": ("c3078bc3b36808bf9d20eb2347ed6137016179ef59ec0d2b9b8ecc3fb2880081", 64_059),
        "en": ("ce1450ddc5ab0834502579d77a170849952e15a2938b34cc503bdc25ebb4fb98", 55_242),
        "fr": ("6f3764e31dac41e9455e612958bcfd4e877c5e15cd66df2c2b2be6d9bd83e5b6", 65_691),
    },
    "test_2017_mscoco": {
        "de": ("58277df3c75f92f7145a11b910b553d1cf82c439249d4dc237c899609eafac22", 29_906),
        "en": ("43051fdfa86fd5395182e718a94ca67b1b227b9f7c79596ff0f6b813216981d2", 24_949),
        "fr": ("39cde3f43f32b0a6bf29ce4917a46329ff32e53070c2fac87506695a740ae0a0", 29_982),
    },
    "test_2018_flickr": {
        "de": ("39fcc8b3331d76fb42d648d019c6898b0d5e58baac87bc2a0bb93f44ec8db207", 80_893),
        "en": ("4e585c2dd525911a6ea7730e9d0b516239af3f1b1ffae6a2130223cfb639f25e", 70_603),
        "fr": ("234b4a887da0da4801a3e2c6f21336231ff7dd46daeb80cfa1b551c8bbb78239", 84_076),
    },
}
"""Hash and size in bytes of every file, uncompressed."""

CORPORA: Mapping[str, Corpus] = {"multi30k": _multi30k()}
