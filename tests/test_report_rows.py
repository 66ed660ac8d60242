"""Reports and tables: one list of rows for JSON and for text, which fits a width."""

from __future__ import annotations

from pathlib import Path

from edgespec.reports import Column, Report, Row, Table

TABLE: Table[tuple[str, int]] = Table(
    [
        Column("name", "name", lambda item: item[0], is_left=True),
        Column("length", "", lambda item: len(item[0])),
        Column("n", "number", lambda item: item[1]),
        Column("", "twice", lambda item: 2 * item[1], "{:.1f}".format),
    ],
    [("one", 1), ("thousand", 1000)],
)


def test_a_fact_is_a_value_for_programs_and_a_line_for_people() -> None:
    rows = (Row("size_bytes", 2048, "2 KiB", "size"), Row("intact", True))
    report = Report(*rows, Row("licence", label="licence"), Row(format="only told", label="remark"))
    assert report.as_dict() == {"size_bytes": 2048, "intact": True, "licence": None}
    assert report.lines() == ["size     2 KiB", "licence  ?", "remark   only told"]


def test_a_text_is_made_from_the_value() -> None:
    report = Report(
        Row("files", ("a", "b"), lambda names: [*names, ""]), Row("n", 2, "{} in all".format)
    )
    assert report.as_dict() == {"files": ["a", "b"], "n": 2}
    assert report.lines() == ["a", "b", "", "2 in all"]


def test_a_report_in_a_report_is_an_object_or_joins_it() -> None:
    inner = Report(Row("path", Path("a"), str), Row("table", TABLE, ()))
    outer = Report(Row("inner", inner), Row(value=inner), Row(value=Report(Row(format="end"))))
    values = {"path": "a", "table": TABLE.as_list()}
    assert outer.as_dict() == {"inner": values, **values}
    assert outer.lines() == ["a", "a", "end"]


def test_a_table_has_a_column_for_programs_or_for_people_or_both() -> None:
    assert TABLE.as_list()[1] == {"name": "thousand", "length": 8, "n": 1000}
    assert TABLE.lines() == [
        "name      number   twice",
        "one            1     2.0",
        "thousand   1,000  2000.0",
    ]


def test_columns_that_do_not_fit_follow_below() -> None:
    assert TABLE.lines(20) == [
        "name      number",
        "     twice",
        "one            1",
        "       2.0",
        "thousand   1,000",
        "    2000.0",
    ]


def test_a_column_takes_the_attribute_of_its_key() -> None:
    column: Column[Path] = Column("suffix", "ending", format=str.upper)
    assert Table([column], [Path("a.gguf")]).as_list() == [{"suffix": ".gguf"}]
    assert Table([column], [Path("a.gguf")]).lines() == ["ending", " .GGUF"]
