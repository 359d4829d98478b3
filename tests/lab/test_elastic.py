"""Jobs whose ranks come and go all the time, and sites that are lost and found, in small."""

from __future__ import annotations

import argparse

import pytest

from hocket.control.protocol.decree import Decree, Lead
from hocket.lab.elastic import churn, newcomers, renewals
from hocket.lab.outer import lost


def test_a_job_trains_on_while_ranks_come_and_go(capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(seconds=4.0, each=2.0, least=2, most=3, mb=0.1, step=0.02, seed=3)
    made = churn.job(options)
    assert made.wrong == [] and made.newcomers >= 2 and made.steps > 10
    assert 0.1 < made.goodput <= 1.05 and made.seconds < 40


def test_goodput_is_what_steps_would_take() -> None:
    assert churn.ChurnRun(80, 0.1, 10.0, 1, 1, []).goodput == pytest.approx(0.8)


ROUND = {"round": 1, "size": 4, "members": 4, "left_out": 0, "waited": 0.1}
END = {"loss": 0.5, "accuracy": 90.0, "digest": 7}


def test_what_sites_said_is_told_apart() -> None:
    said = [ROUND, {**ROUND, "waited": 0.3}, {**ROUND, "left_out": 1, "members": 3, "waited": 1.2},
            {**ROUND, "size": 3, "members": 3, "waited": 2.0}, END]  # fmt: skip
    made = lost.outcome([said, said])
    assert made == lost.SitesRun(0.5, 90.0, [4, 4, 3, 3], 0.3, 1.2, 2.0)
    plain = made._replace(loss=0.4)
    assert lost.wrong(plain, made, 4, grace=0.1) == [
        "the loss is 0.5000, undisturbed 0.4000", "somebody waited 1.20 s for a late site, the grace is 0.1 s",
        "the site was not lost and found again: [4, 4, 3, 3]",
    ]  # fmt: skip
    with pytest.raises(SystemExit, match="different parameters"):
        lost.outcome([said, [*said[:-1], {**END, "digest": 8}]])


def test_a_renewal_costs_five_messages_a_rank() -> None:
    """Whoever was lost before."""
    for count in (2, 5, 20):
        for what, cost in renewals.costs(count, comes=False)[: 2 if count > 2 else 1]:
            others = count - 1 - ("lost" in what)
            assert (cost.messages, cost.chain) == (5 * others, 5), (count, what)


def test_who_leads_looks_at_all_ranks_once_for_each_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not once for each rank and word: the cube of the ranks."""
    looked, excluded = [], Decree._excluded

    def counted(self: Decree, lead: Lead) -> set[int]:
        looked.append(lead.ballot)
        return excluded(self, lead)

    monkeypatch.setattr(Decree, "_excluded", counted)
    renewals.SimulatedMembers(16).agree(False)
    assert 16 < len(looked) <= 4 * 16


def test_who_comes_tells_all_others() -> None:
    (_, cost), _ = renewals.costs(6, comes=True)
    assert (cost.messages, cost.chain) == (5 * 5 + 6 * 5, 5)


def test_a_newcomer_that_has_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert newcomers.main(["--mb", "3", "--members", "2", "--ways", "nobody,loaded"]) == 0
    assert "| loaded |" in capsys.readouterr().out
