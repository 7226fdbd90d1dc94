"""The views of a run that `gradlab.runs.job` makes at its end."""

from gradlab.report import figures
from gradlab.report.pages import run_page
from gradlab.runs.job import Views

VIEWS = Views(run_page.finished, figures.of_run)
