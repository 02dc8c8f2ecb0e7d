"""What a constructor asks for, and whether the arguments at hand are what it asks for.

The lab's own parts use the words of the glossary. People's own classes use others (`emb_size`, `n_head`,
one `config`): the aliases here let them stand unchanged where a name would stand.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import pydantic

from attnlab.errors import SpecError, nearest

SIZE_ALIASES: dict[str, tuple[str, ...]] = {
    "d_model": (
        "dim", "embed_dim", "emb_size", "emb_dim", "embedding_dim", "n_embd", "embed_size", "hidden_size", "model_dim",
        "d_embed", "embedding_size", "model_size", "num_hiddens", "d_in", "in_dim", "dim_in", "input_dim", "input_size",
        "in_channels", "in_features", "d", "width", "channels", "features", "query_dim", "hidden_dim", "hidden",
        "d_out", "out_dim", "dim_out", "output_dim", "output_size", "out_channels", "out_features",
    ),
    "n_heads": (
        "heads", "num_heads", "n_head", "h", "nhead", "nheads", "num_attention_heads", "n_attention_heads", "num_head",
        "attention_heads", "nb_heads",
    ),
    "d_head": (
        "head_dim", "dim_head", "d_k", "head_size", "key_channels", "dk", "d_key", "dim_k", "key_dim", "key_size",
    ),
    "d_v": ("dv", "d_value", "dim_v", "v_dim", "value_dim", "value_size", "value_channels"),
    "dropout": (
        "p", "drop", "dropout_p", "p_drop", "attn_dropout", "attn_pdrop", "resid_pdrop", "dropout_rate", "dropout_prob",
        "drop_prob", "attention_dropout", "resid_dropout", "attn_drop", "proj_drop",
    ),
    "max_length": (
        "max_len", "block_size", "seq_len", "context", "context_length", "context_size", "ctx_len", "sequence_length",
        "max_seq_len", "max_seq_length", "seq_length", "length", "n_ctx", "n_positions", "max_position_embeddings",
    ),
    "causal": ("is_causal",),
}  # fmt: skip
"""Names under which people's own constructors ask for the sizes of the glossary."""

_EVERYWHERE = frozenset({"dropout"})
"""What is given to all its aliases; of the others only those that have no default after the first."""

_CONFIG_NAMES = ("config", "cfg", "conf", "configuration", "args", "hparams")
"""Names of a constructor's one parameter that holds all the others as attributes."""


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Settings(types.SimpleNamespace):
    """Stand for the one config object that some constructors take; asks by name for what it lacks."""

    def __getattr__(self, name: str) -> Any:
        raise UnsetError(name)


class UnsetError(AttributeError):
    """Say that a constructor read a setting nobody gave; an `AttributeError`, so that `getattr` defaults work."""


def signature_of(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a constructor, `self` left out.

    Parameters
    ----------
    factory : callable
        A class or function.

    Returns
    -------
    dict
        Parameters by name. A class that takes ``*args, **kwargs`` alone hands them on: it has those of
        the class above it.
    """
    try:
        parameters = dict(inspect.signature(factory).parameters)
    except ValueError:  # a builtin without a signature
        return {}
    for parent in _parents(factory):
        if any(parameter.kind not in _VARIADIC for parameter in parameters.values()) or not takes_any(parameters):
            break
        parameters = dict(inspect.signature(parent).parameters)
    return parameters


def _parents(factory: Callable[..., Any]) -> list[type]:
    """Return the classes above a class that have constructors of their own, nearest first."""
    above = inspect.getmro(factory)[1:] if inspect.isclass(factory) else ()
    return [parent for parent in above if "__init__" in vars(parent) and parent is not object]


def fill_in(
    factory: Callable[..., Any], given: Mapping[str, Any], offered: Mapping[str, Any], *, foreign: bool = False
) -> dict[str, Any]:
    """Add to the given arguments what the surroundings offer and the constructor asks for.

    Parameters
    ----------
    factory : callable
        The constructor.
    given : mapping
        Arguments set in the specification; they always win.
    offered : mapping
        Arguments by glossary name.
    foreign : bool
        Whether the usual aliases of `SIZE_ALIASES` count as the glossary's names.

    Returns
    -------
    dict
        Arguments to call the constructor with.
    """
    wanted = signature_of(factory)
    if foreign:
        return _fill_in_foreign(factory, wanted, given, offered)
    return {name: value for name, value in offered.items() if name in wanted} | dict(given)


def _fill_in_foreign(
    factory: Callable[..., Any],
    wanted: Mapping[str, inspect.Parameter],
    given: Mapping[str, Any],
    offered: Mapping[str, Any],
) -> dict[str, Any]:
    """Fill in a person's own constructor, whose words for the sizes differ from the glossary."""
    offered = {canonical: value for canonical, value in offered.items() if value is not None}
    filled = {_own_word(name, wanted): value for name, value in given.items()}
    config = next((name for name in wanted if name in _CONFIG_NAMES and is_required(wanted[name])), None)
    if config is not None:
        filled = _with_config(factory, config, filled, offered)
    for canonical, value in offered.items():
        for name in _names_to_fill(canonical, wanted):
            filled.setdefault(name, value)
    _fill_head_sizes(filled, wanted, offered)
    return filled


def _own_word(name: str, wanted: Mapping[str, Any]) -> str:
    """Return the constructor's one word for a size, where it does not use the name that was given."""
    if name in wanted:
        return name
    words = [word for word in synonyms(glossary_word(name)) if word in wanted]
    return words[0] if len(words) == 1 else name


def glossary_word(name: str) -> str:
    """Return the glossary's word for a size, or the name itself.

    Parameters
    ----------
    name : str
        A parameter's name.

    Returns
    -------
    str
        Such as ``n_heads`` for ``num_heads``.
    """
    return next((canonical for canonical, aliases in SIZE_ALIASES.items() if name in aliases), name)


def synonyms(canonical: str) -> tuple[str, ...]:
    """Return a size's word in the glossary and all its aliases.

    Parameters
    ----------
    canonical : str
        A word of the glossary.

    Returns
    -------
    tuple of str
        The word itself first.
    """
    return (canonical, *SIZE_ALIASES.get(canonical, ()))


def _names_to_fill(canonical: str, wanted: Mapping[str, inspect.Parameter]) -> list[str]:
    """Return the parameters that an offered size goes to: the first that stands for it, and all required ones."""
    names = [name for name in synonyms(canonical) if name in wanted]
    if canonical in _EVERYWHERE:
        return names
    return [name for index, name in enumerate(names) if index == 0 or is_required(wanted[name])]


def _fill_head_sizes(
    filled: dict[str, Any], wanted: Mapping[str, inspect.Parameter], offered: Mapping[str, Any]
) -> None:
    """Give required head sizes: d_model / n_heads, or d_model to a class that knows no number of heads."""
    names = [name for name in (*synonyms("d_head"), *synonyms("d_v")) if name in wanted and name not in filled]
    names = [name for name in names if is_required(wanted[name])]
    words = [word for word in synonyms("n_heads") if word in wanted]
    n_heads = next((filled.get(word, wanted[word].default) for word in words), 1)
    if not names or "d_model" not in offered or not isinstance(n_heads, int) or n_heads < 1:
        return
    if offered["d_model"] % n_heads:
        raise SpecError(
            f"d_model {offered['d_model']} must be a multiple of n_heads; got {n_heads} heads; or give {names[0]}: ..."
        )
    filled |= dict.fromkeys(names, offered["d_model"] // n_heads)


def _with_config(
    factory: Callable[..., Any], config: str, given: Mapping[str, Any], offered: Mapping[str, Any]
) -> dict[str, Any]:
    """Put everything into the one config object that a constructor wants, of its annotated class if it has one."""
    inside = given.get(config, {})
    if not isinstance(inside, Mapping):
        return dict(given)  # a ready-made object
    wanted = signature_of(factory)
    own = {name: value for name, value in given.items() if name in wanted and name != config}
    rest = {name: value for name, value in given.items() if name not in wanted} | dict(inside)
    hint = hints_of(factory).get(config)
    if isinstance(hint, type) and hint.__module__ == factory.__module__:
        arguments = _fill_in_foreign(hint, signature_of(hint), rest, offered)
        return own | {config: _make_config(hint, check_arguments(hint, arguments, f"{config}: {hint.__name__}"))}
    return own | {config: _settings(offered, rest)}


def _make_config(config_class: type, arguments: Mapping[str, Any]) -> Any:
    """Call the class a constructor's config is annotated with."""
    try:
        return config_class(**arguments)
    except Exception as error:
        raise SpecError(f"{config_class.__name__} refused its values: {type(error).__name__}: {error}") from error


def _settings(offered: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
    """Return an object that answers to every usual name of the sizes; what is given wins over what is offered."""
    values: dict[str, Any] = {"bias": True}  # what nanoGPT's and many other configs hold beside the sizes
    for name, value in (*offered.items(), *given.items()):
        values |= dict.fromkeys(synonyms(glossary_word(name)), value) | {name: value}
    return Settings(**values)


def check_arguments(factory: Callable[..., Any], arguments: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check arguments against a constructor's annotated signature.

    Parameters
    ----------
    factory : callable
        A class or function.
    arguments : mapping
        What it is to be called with.
    where : str
        Names the place in error texts.

    Returns
    -------
    dict
        The arguments; an int where a float is wanted has become one, nothing else is converted.

    Raises
    ------
    SpecError
        If an argument is unknown, missing, or not of its annotated type; all of them are named at once.
    """
    parameters = signature_of(factory)
    any_name = takes_any(parameters)
    problems = [
        f"unknown argument '{name}'; {nearest(name, parameters)}"
        for name in arguments
        if name not in parameters and not any_name
    ]
    problems += [
        f"missing argument '{name}'; give it as {glossary_word(name)}: ..."
        for name, parameter in parameters.items()
        if name not in arguments and is_required(parameter)
    ]
    hints = hints_of(factory)
    checked = dict(arguments)
    for name in arguments:
        if name in hints:
            checked[name], problem = _convert(name, arguments[name], hints[name])
            problems += [problem] if problem else []
    if problems:
        raise SpecError(f"{where}: " + "; ".join(problems))
    return checked


def _convert(name: str, value: Any, hint: Any) -> tuple[Any, str]:
    """Return a value checked against an annotation, and what is wrong with it."""
    try:
        adapter = pydantic.TypeAdapter(hint, config=pydantic.ConfigDict(arbitrary_types_allowed=True))
        return adapter.validate_python(value, strict=True), ""
    except pydantic.ValidationError as error:
        wanted = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
        return value, f"'{name}' must be {wanted}; got {value!r} ({error.errors()[0]['msg']})"
    except pydantic.errors.PydanticUserError:
        return value, ""  # an annotation pydantic cannot check, in a person's own class


def takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Return whether any keyword argument is accepted.

    Parameters
    ----------
    parameters : mapping
        Parameters by name.

    Returns
    -------
    bool
        True where there is a ``**kwargs``.
    """
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def is_required(parameter: inspect.Parameter) -> bool:
    """Return whether a call must give this parameter.

    Parameters
    ----------
    parameter : inspect.Parameter
        One parameter.

    Returns
    -------
    bool
        True where it has no default.
    """
    return parameter.default is inspect.Parameter.empty and parameter.kind not in _VARIADIC


def hints_of(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a constructor, or none where they cannot be resolved.

    Parameters
    ----------
    factory : callable
        A class or function.

    Returns
    -------
    dict
        Parameter name -> annotation.
    """
    target = factory.__init__ if isinstance(factory, type) else factory
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError, AttributeError):
        return {}
