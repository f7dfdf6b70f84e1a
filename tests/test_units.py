"""Sizes in words and back."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcfg.units import (
    align_up,
    format_bytes,
    format_seconds,
    parse_bytes,
    parse_seconds,
    parse_share,
)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (4096, 4096),
        ("4096B", 4096),
        ("4MiB", 4 * 2**20),
        ("4 mib", 4 * 2**20),
        (" 1.5 GiB ", 3 * 2**29),
        ("2MB", 2_000_000),
        ("0B", 0),
        ("3.7GiB", 37 * 2**30 // 10),
        ("0.0001KiB", 0),
    ],
)
def test_sizes_are_read(text, nbytes):
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    "text",
    [
        *("", "4", "MiB", "-4MiB", "4XB", "1.5B", "1e3B", "0x4B", "4_0B", ".5KiB"),
        "\N{ARABIC-INDIC DIGIT FOUR}MiB",
        "1.\N{ARABIC-INDIC DIGIT FIVE}MiB",
        "\N{FULLWIDTH DIGIT FOUR}B",
        -1,
    ],
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match=r"size|whole number"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("50%", 500), (" 12.5 %", 125), ("0%", 0), ("100%", 1000), ("0.19%", 1), (7, 7)],
)
def test_a_share_is_of_a_total_and_rounded_down(text, nbytes):
    assert parse_bytes(text, total_bytes=1000) == nbytes


@pytest.mark.parametrize(
    "text",
    [
        "%",
        "-5%",
        "5%%",
        "1e1%",
        "5 percent",
        "5",
        "5%B",
        ".5%",
        "\N{ARABIC-INDIC DIGIT FIVE}%",
    ],
)
def test_what_is_no_share_is_not_read_as_one(text):
    assert parse_share(text) is None
    with pytest.raises(ValueError, match="size"):
        parse_bytes(text, total_bytes=1000)


def test_a_share_is_at_most_all_and_needs_a_total():
    for read in (parse_share, lambda text: parse_bytes(text, total_bytes=1000)):
        with pytest.raises(ValueError, match=r"at most 100%, not '100\.1 %'"):
            read("100.1 %")
    with pytest.raises(ValueError, match="'50%' is a share"):
        parse_bytes("50%")


@given(hundredths=st.integers(0, 10**4), total=st.integers(0, 2**62))
def test_shares_are_exact(hundredths, total):
    share = parse_share(f"{hundredths // 100}.{hundredths % 100:02}%")
    assert share == Fraction(hundredths, 10**4)
    text = f"{hundredths // 100}.{hundredths % 100:02}%"
    assert parse_bytes(text, total_bytes=total) == total * hundredths // 10**4


@pytest.mark.parametrize("value", [True, 1.5, None, b"4MiB"])
def test_what_is_no_text_is_a_type_error(value):
    with pytest.raises(TypeError, match="a size is an int or a string"):
        parse_bytes(value)


@pytest.mark.parametrize(
    ("nbytes", "rounded", "exact"),
    [
        (0, "0 B", "0 B"),
        (1023, "1023 B", "1023 B"),
        (1024, "1.00 KiB", "1024 B (1.00 KiB)"),
        (331_520, "323.75 KiB", "331520 B (323.75 KiB)"),
        (4 * 2**20, "4.00 MiB", "4194304 B (4.00 MiB)"),
        (3 * 2**29, "1.50 GiB", "1610612736 B (1.50 GiB)"),
        (2**40, "1.00 TiB", "1099511627776 B (1.00 TiB)"),
        (2**51, "2048.00 TiB", "2251799813685248 B (2048.00 TiB)"),
        (2**20 - 6, "1023.99 KiB", "1048570 B (1023.99 KiB)"),
        (2**20 - 5, "1.00 MiB", "1048571 B (1.00 MiB)"),
        (-(2**20) + 1, "-1.00 MiB", "-1048575 B (-1.00 MiB)"),
    ],
)
def test_sizes_are_written(nbytes, rounded, exact):
    assert format_bytes(nbytes) == rounded
    assert format_bytes(nbytes, exact=True) == exact


NEAR_A_UNIT = st.builds(
    lambda power, share, off: 2**power * share // 1024 + off,
    st.sampled_from([10, 20, 30, 40, 50]),
    st.integers(1020, 1026),
    st.integers(-(2**12), 2**12),
)


@given(nbytes=NEAR_A_UNIT | st.integers(0, 2**63))
def test_a_written_size_is_the_nearest_and_below_the_next_unit(nbytes):
    nbytes = max(nbytes, 0)
    number, unit = format_bytes(nbytes).split()
    scale = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit]
    assert unit == "TiB" or Fraction(number) < 1024
    assert unit == "B" or Fraction(number) >= 1
    rounding = Fraction(0 if unit == "B" else scale, 200) + nbytes * Fraction(1, 2**52)
    assert abs(Fraction(number) * scale - nbytes) <= rounding


@given(nbytes=st.integers(0, 2**63))
def test_the_exact_form_tells_every_byte(nbytes):
    (digits,) = re.findall(r"^([\d,]+) B", format_bytes(nbytes, exact=True))
    assert int(digits.replace(",", "")) == nbytes


@given(nbytes=st.integers(0, 2**62), alignment=st.integers(1, 4096))
def test_rounding_up_is_to_the_next_multiple(nbytes, alignment):
    rounded = align_up(nbytes, alignment)
    assert rounded % alignment == 0
    assert 0 <= rounded - nbytes < alignment


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.0, "0 ms"), (1.5, "1.5 s"), (0.9996, "1 s"), (0.9994, "999 ms")),
        *((5e-5, "0.05 ms"), (9.995e-6, "0.01 ms"), (9.994e-6, "9.99 µs")),
        *((1.2e-6, "1.2 µs"), (9.99e-7, "999 ns"), (9.48e-8, "94.8 ns")),
    ],
)
def test_times_have_three_digits_and_no_exponent(seconds, text):
    assert format_seconds(seconds) == text
    if "ns" not in text:
        assert parse_seconds(text) == pytest.approx(seconds, rel=5e-3)
