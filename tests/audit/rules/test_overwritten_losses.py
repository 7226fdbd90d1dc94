"""Losses of a loop of which only the last goes backward."""

from __future__ import annotations

import pytest
from audited_snippets import assert_marked

LOOP = """
def fit(judge, opt):
    for x, y in loader:
        scores = judge(x)
        total = 0
{body}
        opt.zero_grad()
        total.backward()
        opt.step()
"""
CASES = {
    "each term": """
        for score in scores:
            total = total + F.mse_loss(score, y)""",
    "the last term": """
        for score in scores:
            one = score.flatten()
            term_loss = F.mse_loss(one, y)  # expect: GL717
        real_loss = term_loss / 3
        total = real_loss + x.mean()""",
    "the last term, times a weight": """
        term_loss = 0.0
        for score in scores:
            one = score.flatten()
            term_loss = F.mse_loss(one, y)  # expect: GL717
        term_loss *= 3
        real_loss = x.mean() + term_loss
        total = real_loss""",
    "each term, and their sum times a weight": """
        term_loss = 0.0
        for score in scores:
            term_loss += F.mse_loss(score, y)
        term_loss *= 3
        total = term_loss""",
    "the last term, in a sum of another name": """
        extra = 0
        for score in scores:
            extra_loss = F.mse_loss(score, y)  # expect: GL717
        extra = 0.1 * extra_loss
        total = x.mean() + extra""",
    "a loss that another takes the place of": """
        loss = F.cross_entropy(scores, y)  # expect: GL717
        weight = 0.1
        loss = weight * scores.square().mean()
        total = loss""",
    "a loss that another may take the place of, or is used before": """
        loss = F.cross_entropy(scores, y)
        if x.mean() > 0:
            loss = F.mse_loss(scores, y)
        total = loss
        loss = F.l1_loss(scores, y)
        print(loss.item())
        loss = F.l1_loss(scores, y)
        total = total + loss
        loss = F.l1_loss(scores, y)
        loss = F.l1_loss(scores, x).item()""",
    "after the branch": """
        if isinstance(scores, list):
            for score in scores:
                term_loss = F.mse_loss(score, y)  # expect: GL717
        else:
            term_loss = F.mse_loss(scores, y)
        real_loss = term_loss
        total = real_loss""",
    "bound again after the branch": """
        if isinstance(scores, list):
            for score in scores:
                term_loss = F.mse_loss(score, y)
        term_loss = F.mse_loss(scores, y)
        real_loss = term_loss
        total = real_loss""",
    "a list of terms": """
        terms = []
        for score in scores:
            term_loss = F.mse_loss(score, y)
            terms.append(term_loss)
        total = sum(terms)""",
    "a state goes on": """
        state = x
        for score in scores:
            out = state + score
            state = out
            term_loss = F.mse_loss(out, y)
        real_loss = term_loss
        total = real_loss""",
    "the first that is good": """
        for score in scores:
            term_loss = F.mse_loss(score, y)
            if score.mean() > 0:
                break
        real_loss = term_loss
        total = real_loss""",
    "a plus on the wrong side": """
        first_loss, second_loss = judge(x), judge(y)
        total_loss = first_loss
        total_loss =+ second_loss  # expect: GL717
        total = total_loss
        if x.mean() > 0:
            extra_loss = total
            extra_loss =+ 0.1 * judge(-x)  # expect: GL717""",
    "a plus of the first term, and of a loss of another function": """
        def evaluate():
            total_loss = judge(x)
            real_loss = judge(x)
        def train():
            total_loss = (
                + 0.5 * F.mse_loss(scores, y)
                + 0.1 * scores.square().mean()
            )
            real_loss =+ total_loss
        total_loss = judge(x)
        total = total_loss
        total_loss = + judge(x)""",
    "a plus that adds": """
        first_loss, second_loss = judge(x), judge(y)
        total_loss = first_loss
        total_loss += second_loss
        total = total_loss""",
    "a sum that another term takes the place of": """
        first_loss, second_loss, last_loss = judge(x), judge(y), judge(-x)
        real_loss = 0.5 * first_loss  # expect: GL717
        real_loss += second_loss
        real_loss = last_loss / 3
        total = real_loss""",
    "a sum that is made anew of the same terms": """
        first_loss, second_loss = judge(x), judge(y)
        real_loss = first_loss
        real_loss = first_loss + second_loss
        total = real_loss""",
    "a term that goes backward by itself, or in the other": """
        first_loss, second_loss = judge(x), judge(y)
        real_loss = first_loss
        first_loss.backward(retain_graph=True)
        real_loss = second_loss
        total = real_loss
        third_loss = judge(-x)
        last_loss = third_loss
        both_loss = third_loss + judge(-y)
        last_loss = both_loss
        total = total + last_loss""",
    "no losses": """
        total_loss = judge.loss_weight
        total_loss = F.mse_loss(scores, y)
        total = total_loss""",
    "an attribute that another takes the place of": """
        judge.first_loss, judge.second_loss = judge(x), judge(y)
        judge.real_loss = judge.first_loss  # expect: GL717
        judge.real_loss = 10 * judge.second_loss
        total = judge.real_loss""",
    "an attribute that a method may use before": """
        judge.first_loss, judge.second_loss = judge(x), judge(y)
        judge.real_loss = judge.first_loss
        judge.report()
        judge.real_loss = 10 * judge.second_loss
        total = judge.real_loss""",
}
CASES |= {
    "a sum that has begun at 0": """
        real_loss = 0.0
        for score in scores:
            part_loss = (score - y).abs()
            real_loss = 0.8 * part_loss.mean()  # expect: GL717
        total = real_loss""",
    "a sum that has begun at 0, of a state": """
        state, real_loss = x, 0
        real_loss = 0
        for i in range(3):
            out, state = judge.cell(scores[i], state)
            real_loss = F.mse_loss(out, y)  # expect: GL717
        total = real_loss""",
    "a sum that has begun as another loss": """
        real_loss = (scores - y).abs().mean()
        for weight in judge.parameters():
            real_loss = 0.1 * weight.square().sum()  # expect: GL717
        total = real_loss""",
    "a loss that is computed anew for each state": """
        state = judge(x)
        real_loss = F.mse_loss(state, y)
        for i in range(3):
            state = judge(state)
            real_loss = F.mse_loss(state, y)
        total = real_loss""",
    "in a branch before the pass": """
        if x.mean() > 0:
            first_loss = F.mse_loss(scores, y)  # expect: GL717
            second_loss = F.l1_loss(scores, y)
            first_loss = 0.1 * second_loss
        else:
            first_loss = F.mse_loss(scores, y)
        total = first_loss""",
    "the last of several loops": """
        term_loss = 0
        for score in scores:
            for part in score:
                term_loss = F.mse_loss(part, y)  # expect: GL717
        total = scores.mean() + 10 * term_loss""",
    "each of several loops": """
        term_loss = 0
        for score in scores:
            for part in score:
                term_loss += F.mse_loss(part, y)
        total = scores.mean() + 10 * term_loss""",
    "the last of each inner loop": """
        term_loss = 0
        for score in scores:
            for part in score:
                term_loss = F.mse_loss(part, term_loss)
        total = scores.mean() + 10 * term_loss""",
    "a function that returns the last one": """
        def sequence_loss(scores, y):
            sum_loss = 0.0
            for score in scores:
                sum_loss = F.mse_loss(score, y)  # expect: GL717
            return sum_loss
        def last(scores, y):
            for score in scores:
                sum_loss = F.mse_loss(score, y)
            return sum_loss
        total = sequence_loss(scores, y)""",
}


@pytest.mark.parametrize("name", CASES)
def test_a_loss_is_overwritten_before_it_is_used(name, tmp_path):
    assert_marked(LOOP.replace("{body}", CASES[name].strip("\n")), tmp_path)
