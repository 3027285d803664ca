from __future__ import annotations

from databus.relay.monitoring.history import LEVELS, Sample, SourceHistory


def sample(at: float, events: int = 0, delay_s: float = 0.0) -> Sample:
    return Sample(at, events, events, 100 * events, 120 * events, 0, delay_s, None)


def filled(seconds: int, per_s: int = 10) -> SourceHistory:
    history = SourceHistory()
    for second in range(seconds):
        history.add(float(second), sample(1000.0 + second, per_s * second))
    return history


def test_rates_are_over_the_last_few_seconds() -> None:
    history = filled(100)
    rates = history.rates(sample(1100.0, 1000 + 40))
    assert rates.events == (1040 - 950) / 5
    assert rates.size_bytes == 100 * rates.events


def test_without_a_sample_there_is_no_rate() -> None:
    assert SourceHistory().rates(sample(5.0, 99)).events == 0.0


def test_a_step_has_the_mean_rate_of_all_of_it() -> None:
    history = filled(3700)
    seconds = history.steps(600)
    assert (seconds.step_s, len(seconds.times())) == (1.0, 600)
    assert seconds.rates(lambda s: s.events) == [10.0] * 600
    tens = history.steps(3600)
    assert (tens.step_s, len(tens.times())) == (10.0, 360)
    assert set(tens.rates(lambda s: s.events)) == {10.0}
    minutes = history.steps(86_400)
    assert (minutes.step_s, len(minutes.times())) == (60.0, 61)
    assert set(minutes.rates(lambda s: s.events)) == {10.0}


def test_what_is_asked_for_ends_with_the_newest_sample() -> None:
    history = filled(100)
    assert history.steps(10).times() == [1090.0 + n for n in range(10)]


def test_a_peak_is_in_the_coarser_steps_too() -> None:
    history = SourceHistory()
    for second in range(125):
        history.add(float(second), sample(second, delay_s=9.0 if second == 70 else 0.1))
    assert max(s.delay_s or 0.0 for s in history.steps(86_400).samples) == 9.0
    assert max(s.delay_s or 0.0 for s in history.steps(3600).samples) == 9.0


def test_a_day_of_samples_is_all_there_ever_is() -> None:
    history = SourceHistory()
    for second in range(0, 3 * 86_400, 7):
        history.add(float(second), sample(second))
    for (step_s, count), level in zip(LEVELS, history._levels, strict=True):
        assert len(level.samples) == count + 1, step_s
    assert len(history.steps(86_400).times()) == 1440


def test_a_clock_that_is_set_back_makes_no_negative_rate() -> None:
    history = SourceHistory()
    history.add(1.0, sample(1000.0, 10))
    assert history.rates(sample(900.0, 20)).events == 0.0
