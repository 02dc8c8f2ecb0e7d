"""``attnlab schema``: what an editor needs to know of study files."""

from __future__ import annotations


def schema() -> int:
    """Print the JSON schema of study files.

    Kept beside a study, ``attnlab schema > study.schema.json``, and named in the study's first line,
    ``# yaml-language-server: $schema=study.schema.json``, it lets editors complete, explain and check what is written.

    Returns
    -------
    int
        0.
    """
    from attnlab.cli.run import print_json
    from attnlab.studies.define.schema import study_schema

    print_json(study_schema())
    return 0
