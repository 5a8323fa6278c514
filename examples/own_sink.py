"""Write a few columns of every step to a CSV file, for a spreadsheet."""

import csv

import pydantic

from etude.core.sinks.base import Sink


class Spreadsheet(Sink):
    class Settings(pydantic.BaseModel, extra="forbid"):
        stage: str = pydantic.Field("rl", description="the rows of this stage")
        columns: list[str] = pydantic.Field(["reward", "pass_rate"], description="the values of a row that are written")

    def open(self, run):
        file = run.path / f"{self.settings.stage}.csv"
        new = not file.exists()  # a resumed run goes on in the same file
        self.file = file.open("a", newline="")
        self.writer = csv.writer(self.file)
        if new:
            self.writer.writerow(["step", *self.settings.columns])

    def log(self, row):
        if row["stage"] == self.settings.stage:
            self.writer.writerow([row["step"], *(row.get(name) for name in self.settings.columns)])
            self.file.flush()

    def close(self):
        self.file.close()
