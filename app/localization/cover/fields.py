"""Finite fields of prime power order, as tables of powers of a primitive element."""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

Elements = NDArray[np.int_]


def factorize(number: int) -> dict[int, int]:
    """Prime factors with their exponents; empty for 1."""
    factors: dict[int, int] = {}
    prime = 2
    while prime * prime <= number:
        while number % prime == 0:
            factors[prime] = factors.get(prime, 0) + 1
            number //= prime
        prime += 1
    if number > 1:
        factors[number] = factors.get(number, 0) + 1
    return factors


def is_prime_power(number: int) -> bool:
    """Whether there is a field of this order."""
    return len(factorize(number)) == 1


class Field:
    """GF(q): element ``x`` is the polynomial whose coefficients are the base-p digits of ``x``.

    Parameters
    ----------
    order : int
        A prime power.
    """

    def __init__(self, order: int) -> None:
        ((self._prime, self._degree),) = factorize(order).items()
        self.order = order
        self.powers = self._find_powers()  # powers[i] = a ** i for a primitive element a, i = 0..q-2
        self._log = np.zeros(order, dtype=np.int_)
        self._log[self.powers] = np.arange(order - 1)

    def add(self, left: Any, right: Any) -> Elements:
        """Sum, element by element; arrays broadcast."""
        left, right = np.asarray(left), np.asarray(right)
        if self._prime == 2:
            return np.asarray(left ^ right)
        if self._degree == 1:
            return np.asarray((left + right) % self._prime)
        weights = [self._prime**i for i in range(self._degree)]
        digits = ((left // weight + right // weight) % self._prime * weight for weight in weights)
        return np.asarray(sum(digits))

    def multiply(self, left: Any, right: Any) -> Elements:
        """Product, element by element; arrays broadcast."""
        left, right = np.asarray(left), np.asarray(right)
        product = self.powers[(self._log[left] + self._log[right]) % (self.order - 1)]
        return np.where((left == 0) | (right == 0), 0, product)

    def subfield(self, order: int) -> Elements:
        """The elements of the subfield GF(order), zero first; ``q`` must be a power of ``order``."""
        return np.concatenate(([0], self.powers[:: (self.order - 1) // (order - 1)]))

    def _find_powers(self) -> Elements:
        """Try monic polynomials, or elements of a prime field, until one generates everything but zero."""
        for candidate in count(1):
            powers = self._powers_of(candidate)
            if len(powers) == self.order - 1:
                return np.array(powers, dtype=np.int_)
        raise AssertionError("every finite field has a primitive element")

    def _powers_of(self, candidate: int) -> list[int]:
        """Powers until 1 comes again; ``candidate`` is the generator, or codes the reducing polynomial."""
        prime, top = self._prime, self.order // self._prime
        reduction = [candidate // prime**i % prime for i in range(self._degree)]
        powers, value = [1], 1
        while len(powers) < self.order:
            if self._degree == 1:
                value = value * candidate % prime
            else:  # multiply by x, then replace x ** degree by minus the polynomial's lower part
                lead, value = value // top, value % top * prime
                value = sum(
                    (value // prime**i - lead * digit) % prime * prime**i for i, digit in enumerate(reduction)
                )
            if value in {0, 1}:
                break
            powers.append(value)
        return powers


@lru_cache(maxsize=128)
def field(order: int) -> Field:
    """The field of this order, built once."""
    return Field(order)
