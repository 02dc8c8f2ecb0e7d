"""Studies: variants x seeds under rules fixed beforehand, from question to verdict.

A study is a pipeline of records, each stage a room with one function: `load_study` reads, `plan_study` plans,
`run_study` runs, `read_results` collects what a folder holds, ``results.verdicts`` judges it, `write_report` shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnlab.core.lazy import contents

if TYPE_CHECKING:
    from attnlab.studies.define.assemble import build_model, build_task
    from attnlab.studies.define.study import Study, load_study, parse_study
    from attnlab.studies.execute import run_study
    from attnlab.studies.judge.collect import read_results
    from attnlab.studies.judge.results import StudyResults
    from attnlab.studies.judge.statistics import compare, holm
    from attnlab.studies.plan.plan import Plan, plan_study
    from attnlab.studies.report import write_report
    from attnlab.studies.run.executor import Executor, InProcess, LocalProcesses
    from attnlab.studies.using.trained import generate, load_run, score, translate

__getattr__, __dir__ = contents(
    __name__,
    {
        "Executor": "attnlab.studies.run.executor",
        "InProcess": "attnlab.studies.run.executor",
        "LocalProcesses": "attnlab.studies.run.executor",
        "Plan": "attnlab.studies.plan.plan",
        "Study": "attnlab.studies.define.study",
        "StudyResults": "attnlab.studies.judge.results",
        "build_model": "attnlab.studies.define.assemble",
        "build_task": "attnlab.studies.define.assemble",
        "compare": "attnlab.studies.judge.statistics",
        "generate": "attnlab.studies.using.trained",
        "holm": "attnlab.studies.judge.statistics",
        "load_run": "attnlab.studies.using.trained",
        "load_study": "attnlab.studies.define.study",
        "parse_study": "attnlab.studies.define.study",
        "plan_study": "attnlab.studies.plan.plan",
        "read_results": "attnlab.studies.judge.collect",
        "run_study": "attnlab.studies.execute",
        "score": "attnlab.studies.using.trained",
        "translate": "attnlab.studies.using.trained",
        "write_report": "attnlab.studies.report",
    },
)

__all__ = [
    "Executor",
    "InProcess",
    "LocalProcesses",
    "Plan",
    "Study",
    "StudyResults",
    "build_model",
    "build_task",
    "compare",
    "generate",
    "holm",
    "load_run",
    "load_study",
    "parse_study",
    "plan_study",
    "read_results",
    "run_study",
    "score",
    "translate",
    "write_report",
]
