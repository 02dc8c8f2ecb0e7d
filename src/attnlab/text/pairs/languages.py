# ruff: noqa: RUF001 letters of other scripts look like Latin ones
"""Whether sides are in the languages that they should be in, told by the words that are commonest in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from attnlab.text.pairs.pairing import WORDS

COMMONEST: Mapping[str, str] = {
    "af": "die van en het is in nie te om wat dat ek sy aan vir",
    "ar": "في من على إلى أن هذا التي عن مع كان لا ما هو الذي",
    "bg": "на и да се за от не че по са това като си",
    "bn": "এই করে থেকে একটি না এবং জন্য সে তার হয়",
    "ca": "de la i que el a en per els les amb una és no del",
    "cs": "a v se na je že s z do o to k ve jako po",
    "da": "og i at er det en til af på for der med den ikke som",
    "de": "der die und in den von zu das mit sich des auf für ist ein eine einem einen im nicht dem",
    "el": "και το να του η της με που την από για είναι τα ο",
    "en": "the of and to a in is that for with on was he it as are at an his",
    "es": "de la que el en y a los se del las un por con una para no es su",
    "et": "ja on ei et see ta kui oli ka aga oma mis",
    "fa": "و در به از که این را با است برای آن یک",
    "fi": "ja on ei että se hän oli mutta ovat kun joka myös tai niin",
    "fr": "de la le et les des en un une du dans que est pour qui sur au il avec par",
    "he": "של את על לא הוא זה עם אני כי היא גם אל",
    "hi": "के में है की और से का को एक पर नहीं यह",
    "hr": "i u je se na da su za od s ne kao što",
    "hu": "a az és hogy nem is egy ez meg volt de csak van",
    "id": "yang dan di ini dengan untuk dari dalam itu tidak pada adalah akan",
    "it": "di e che la il un a per in una sono è con del non si le da i",
    "ja": "のはをにがたでとしる",
    "ko": "이 그 수 있는 있다 것 한 및 는 을 를 에서 하는",
    "lt": "ir kad į iš su yra buvo tai bet kaip ne jis",
    "lv": "un ir ar no ka uz par kas bija tas arī viņš",
    "nl": "de van het een en in is dat op te zijn met voor niet die aan er",
    "no": "og i er det en til av på for som med den ikke at å",
    "pl": "w i na z się nie do to że jest o jak od po",
    "pt": "de a que o e do da em um para com não uma os no se na por é",
    "ro": "de în și a la cu pe nu să o un că din este care",
    "ru": "и в не на что я с он как это по но из у за",
    "sk": "a v na sa je že s z do o to k ako po",
    "sl": "in je v na se da za so ki s ne pa kot",
    "sr": "и у је се на да су за од не као",
    "sv": "och i att det en som är på för av med den till inte har ett",
    "sw": "ya na wa kwa ni katika la za cha kuwa hii yake",
    "th": "ที่การมีไม่และของเป็นให้ได้",
    "tr": "ve bir bu da de için ile çok o ne gibi olarak",
    "uk": "і в не на що з у до це як та за я",
    "ur": "کے میں کی ہے اور سے کا کو ایک نے",
    "vi": "là và của có không một được trong cho những người các",
    "zh": "的一是了在我有他这不",
}
"""Words, or letters where a script has no blanks, from lists of frequencies of each language."""
ENOUGH = 20  # words of either kind
TIMES = 4  # as many of the one as of the other: related languages share some
DIFFERENT = 2  # longer than one letter, where a script has blanks: words may be spelled out, or be of no language


def mistaken(pairs: Sequence[tuple[str, str]], languages: tuple[str, str]) -> tuple[str, ...]:
    """What the sides of pairs read like that are not in their languages: for each such side, its language.

    Empty where the sides are as they should be, or nothing can be said. Of a language that is not in `COMMONEST`
    nothing is known; beside a known one it shows where that one stands.
    """
    texts = [COMMONEST.get(code.partition("-")[0].lower(), "") for code in languages]
    known = [set(_pieces(text, like=text)) for text in texts]
    only = [known[0] - known[1], known[1] - known[0]]
    found = np.zeros((2, 2), dtype=int)  # (sides, languages)
    for side, language in np.ndindex(2, 2):
        text = texts[language]
        words = (word for pair in pairs for word in _pieces(pair[side].casefold(), like=text) if word in only[language])
        counts = Counter(words)
        told = " " not in text or sum(len(word) > 1 for word in counts) >= DIFFERENT
        found[side, language] = counts.total() if told else 0
    if not all(only):  # one language is known, or none: it may stand on the other side
        named = int(bool(only[1]))
        return languages[::-1] if _clearly(found[1 - named, named], found[named, named]) else ()
    wrong = [_clearly(found[side, 1 - side], found[side, side]) for side in range(2)]
    return tuple(languages[1 - side] for side in range(2) if wrong[side])


def _clearly(more: int, fewer: int) -> bool:
    return bool(more >= ENOUGH and more >= TIMES * fewer)


def _pieces(line: str, *, like: str) -> Sequence[str]:
    """The words of a line, or its letters if what it is like has no words."""
    return WORDS.findall(line) if " " in like else line
