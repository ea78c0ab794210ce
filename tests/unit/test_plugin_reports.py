"""The lines of the NVML child, and what they mean."""

import pytest

from nvhook.kubelet import reports
from nvhook.kubelet.reports import Driver, Failed, GpuFacts, Link, Probe, Ready, Round, Xid


@pytest.mark.parametrize(
    ("line", "report"),
    [
        ("driver 550.54.14\n", Driver("550.54.14")),
        ("gpu GPU-a 00000000:3B:00.0 81559 9.0", GpuFacts("GPU-a", "0000:3b:00.0", 81559, (9, 0))),
        (
            "gpu GPU-a 00000000:3B:00.0 81559 9.0 mig",
            GpuFacts("GPU-a", "0000:3b:00.0", 81559, (9, 0), True),
        ),
        ("link GPU-a GPU-b 40 12", Link("GPU-a", "GPU-b", 40, 12)),
        ("ready", Ready()),
        ("xid GPU-a 79 - -", Xid("GPU-a", 79)),
        ("xid GPU-a 31 7 0", Xid("GPU-a", 31, 7, 0)),
        ("xid - 48 - -", Xid(None, 48)),
        ("probe GPU-a ok", Probe("GPU-a")),
        ("probe GPU-a GPU is lost", Probe("GPU-a", "GPU is lost")),
        ("probe GPU-a", Probe("GPU-a", "unknown error")),
        ("round", Round()),
        ("failed Driver Not Loaded", Failed("Driver Not Loaded")),
        ("failed", Failed("unknown error")),
    ],
)
def test_a_line_is_a_report(line: str, report: reports.Report) -> None:
    assert reports.parse(line) == report


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: something of the driver's own",
        "xid GPU-a",
        "xid GPU-a many - -",
        "probe",
        "gpu GPU-a nowhere 81559 9.0",
        "gpu GPU-a 0000:3b:00.0 81559 nine",
        "link GPU-a GPU-b",
        "driver",
    ],
)
def test_other_lines_are_none(line: str) -> None:
    assert reports.parse(line) is None
