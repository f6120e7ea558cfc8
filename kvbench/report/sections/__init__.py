"""The sections of a report; `kvbench.report.build` has their order."""
