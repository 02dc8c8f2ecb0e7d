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
    from attnlab.studies.exporting.export import export
    from attnlab.studies.judge.collect import read_results
    from attnlab.studies.judge.results import StudyResults
    from attnlab.studies.judge.statistics import compare
    from attnlab.studies.judge.verdicts import verdicts
    from attnlab.studies.plan.plan import Plan, plan_study
    from attnlab.studies.report import draw_report, write_report
    from attnlab.studies.run.cluster import Ray
    from attnlab.studies.run.executor import Executor, InProcess, LocalProcesses
    from attnlab.studies.using.predicting import classify, predict
    from attnlab.studies.using.pretrained import load_pretrained
    from attnlab.studies.using.scoring import OwnText, score
    from attnlab.studies.using.trained import generate, load_run, parse, translate

__getattr__, __dir__, __all__ = contents(__name__)
