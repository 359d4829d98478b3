"""The table says what each rank does; the picture is well-formed and shows every message."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from hocket.algorithms import CONTRACTS, Algorithm, Copy, Drawing, Recv, Schedule, Send, get, hierarchical, names, show
from hocket.algorithms.drawing.excerpt import CELL, colour, excerpt, spans
from hocket.algorithms.drawing.picture import PALE
from hocket.errors import ArgumentError, ScheduleError

SVG = "{http://www.w3.org/2000/svg}"


def test_the_table_of_a_small_ring() -> None:
    assert str(show("ring", size=2)).splitlines() == [
        "allreduce ring: 2 ranks, 2 chunks, 2 steps",
        "Reduce-scatter, then allgather.  2(p-1) steps, 2n(p-1)/p bytes.",
        "",
        "step  rank 0      rank 1",
        "----------------------------",
        "0     to 1: 1     to 0: 0",
        "      from 1: +0  from 0: +1",
        "1     to 1: 0     to 0: 1",
        "      from 1: 1   from 0: 0",
        "",
        "to 1: 0    send chunk 0 to rank 1      from 3: +2   receive chunk 2 from rank 3 and reduce it",
    ]


def test_idle_ranks_roots_ranges_and_multicasts_in_the_table() -> None:
    table = str(show("binomial", "scatter", size=4, root=2))
    assert "scatter binomial: 4 ranks, root 2, 4 chunks, 2 steps" in table
    assert "0     from 2: 0-1             to 0: 0-1" in table.splitlines()
    assert "to 1,2,3: 0" in str(show("one_shot", size=4))
    assert "from 1,2,3: +0" in str(show("one_shot", size=4))


@pytest.mark.parametrize("collective", CONTRACTS)
def test_every_picture_is_well_formed_and_has_an_arrow_for_each_message(collective: str) -> None:
    for name in names(collective):
        for size in (1, 2, 5):
            drawing = show(name, collective, size, root=size // 2 if CONTRACTS[collective].rooted else 0)
            picture = ET.fromstring(drawing.svg())
            messages = [op for steps in drawing.programs for step in steps for op in step if isinstance(op, Send)]
            assert len(picture.findall(f"{SVG}polygon")) == len(messages)
            texts = [text.text for text in picture.findall(f"{SVG}text")]
            assert drawing.title in texts
            assert [text for text in texts if str(text).startswith("rank ")] == [f"rank {r}" for r in range(size)]
            assert sum(str(text).startswith("step ") for text in texts) == len(drawing.programs[0])


def texts_of(drawing: Drawing) -> list[str]:
    return [str(text.text) for text in ET.fromstring(drawing.svg()).findall(f"{SVG}text")]


def test_of_a_large_schedule_a_part_is_drawn() -> None:
    """A ring of 64 ranks would be 374 megapixels, 48 MB as SVG."""
    drawing = show("ring", size=40)
    svg = drawing.svg()
    drawn = ET.fromstring(svg)
    texts = [text.text for text in drawn.findall(f"{SVG}text")]
    note = "This is a part: ranks 0-15 of 40, steps 0-7 of 78, chunks 0-24 of 40.  The text (print) is whole."
    assert note in texts and drawing.title in texts
    assert len(svg) < 1 << 19 and float(drawn.get("width", 0)) < 3000 > float(drawn.get("height", 0))
    assert [text for text in texts if str(text).startswith("rank ")] == [f"rank {r}" for r in range(16)]
    assert texts.count("others") == 1
    assert len(drawn.findall(f"{SVG}polygon")) == 8 * 17, "each step: of 16 ranks, and from the others to rank 0"
    assert str(drawing).splitlines()[-4].startswith("77    to 39: 38"), "the text has all steps"
    assert repr(drawing) == f"<Drawing of {drawing.title}>", "a notebook keeps this beside the picture"


def test_the_root_is_in_the_part() -> None:
    texts = texts_of(show("binomial", "broadcast", size=40, root=33))
    assert [text for text in texts if text.startswith("rank ")] == [f"rank {r}" for r in (*range(15), 33)]
    assert "This is a part: ranks 0-14,33 of 40.  The text (print) is whole." in texts


def test_where_all_talk_to_all_fewer_are_drawn_and_one_arrow_stands_for_many() -> None:
    texts = texts_of(show("direct", "alltoall", size=20))
    assert texts.count("rank 7") == 1 and "rank 8" not in texts
    assert texts.count("12x") == 16, "from each of 8 ranks to the 12 others, and back"


@pytest.mark.parametrize("collective", CONTRACTS)
def test_every_part_is_small(collective: str) -> None:
    for name in names(collective):
        algorithm = get(collective, name)
        for size in (16, 64):
            programs = [tuple(algorithm.steps(rank, size, 0)) for rank in range(size)]
            drawn = excerpt(programs, 0, algorithm.chunks(size))
            assert drawn.width <= 3000 and drawn.height <= 1300, name
            assert drawn.strip / len(drawn.chunks) >= CELL


def test_of_too_many_ranks_there_is_no_picture() -> None:
    drawing = show("direct", "broadcast", size=129)
    with pytest.raises(ArgumentError, match="cannot draw 129 ranks: a picture has at most 128; print the text"):
        drawing.svg()


def arrows(name: str, collective: str) -> list[ET.Element]:
    """The messages among the picture's lines."""
    lines = ET.fromstring(show(name, collective).svg()).findall(f"{SVG}line")
    return [line for line in lines if line.get("stroke") != PALE]


def test_chunks_have_their_colours() -> None:
    assert {line.get("stroke") for line in arrows("ring", "allreduce")} == {colour(chunk, 4) for chunk in range(4)}
    assert len({colour(chunk, 4) for chunk in range(4)}) == 4


def test_additions_are_solid_and_overwrites_dashed() -> None:
    assert [line.get("stroke-dasharray") for line in arrows("binomial", "reduce")] == [None] * 3
    assert None not in [line.get("stroke-dasharray") for line in arrows("binomial", "broadcast")]
    assert len(arrows("binomial", "broadcast")) == 3


def test_boxes_fill_up_as_contributions_arrive() -> None:
    boxes = ET.fromstring(show("ring").svg()).findall(f"{SVG}rect")
    full = [box for box in boxes if box.get("fill") in {colour(c, 4) for c in range(4)} and box.get("height") == "24.0"]
    assert len(full) == 4 + 8 + 12 + 16  # after steps 2, 3, 4 and 5


def test_local_copies_are_drawn_and_text_is_escaped() -> None:
    def steps(rank: int, size: int, root: int) -> Schedule:
        yield (Copy(0, 1),)
        yield Send(1 - rank, 0), Recv(1 - rank, 0, reduce=True)

    drawing = show(Algorithm("allreduce", "a<b>&c", steps, lambda size: 1, scratch=1), size=2)
    assert "copy 0 to 1" in str(drawing)
    texts = [text.text for text in ET.fromstring(drawing.svg()).findall(f"{SVG}text")]
    assert "copy 0 to 1" in texts
    assert "allreduce a<b>&c: 2 ranks, 1 chunk, 2 steps" in texts


def test_of_a_broken_schedule_there_is_a_table_but_no_picture() -> None:
    broken = show(Algorithm("allreduce", "lazy", lambda r, p, root: iter([()]), lambda size: 1), size=2)
    assert "lazy" in str(broken)
    with pytest.raises(ScheduleError, match="lazy"):
        broken.svg()


def test_save(tmp_path: Path) -> None:
    drawing = show(hierarchical("allreduce", ((0, 1, 2), (3, 4))), size=5)
    drawing.save(tmp_path / "two levels.svg")
    assert (tmp_path / "two levels.svg").read_text() == drawing.svg() == drawing._repr_svg_()
    with pytest.raises(ArgumentError, match=r"'x.gif'; choose a name ending in .svg or .png"):
        drawing.save("x.gif")


def test_save_png(tmp_path: Path) -> None:
    show("ring").save(tmp_path / "ring.png")
    assert (tmp_path / "ring.png").read_bytes().startswith(b"\x89PNG")


def test_save_png_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ArgumentError, match=r"needs matplotlib .*; install it, or save as .svg"):
        show("ring").save(tmp_path / "ring.png")


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no allreduce algorithm 'rung'; known: .*ring"):
        show("rung")
    with pytest.raises(ArgumentError, match="size=4, root=4"):
        show("chain", "reduce", root=4)
    with pytest.raises(ArgumentError, match="its groups hold 5 ranks"):
        show(hierarchical("allreduce", ((0, 1, 2), (3, 4))), size=4)


def test_spans() -> None:
    assert spans((0, 1, 2, 3, 7)) == "0-3,7"
    assert spans((3, 0, 1)) == "3,0-1"
    assert get("allreduce", "ring").doc.startswith("Reduce-scatter")
