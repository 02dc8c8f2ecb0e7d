"""Is my attention right? Examine any module a person wrote, and say what is wrong and how it is known."""

from attnlab.doctor.engine import assert_healthy, doctor
from attnlab.doctor.findings import Diagnosis, Finding

__all__ = ["Diagnosis", "Finding", "assert_healthy", "doctor"]
