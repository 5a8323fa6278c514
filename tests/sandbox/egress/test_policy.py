"""Which addresses an allowed name may be at."""

from __future__ import annotations

import pytest

from etude.sandbox.egress.policy import EgressPolicy, Refused

# Of the sites that still have them, old site-local addresses are as private as 10.0.0.0/8.
INSIDE = ["10.0.0.1", "169.254.169.254", "100.64.0.1", "::1", "fe80::1%eth0", "fd00::1", "fec0::1", "feff::1"]
INSIDE += [
    "ff0e::1",
    "::ffff:10.0.0.1",
    "::10.0.0.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::1",
    "2002:a00:1::",
    "4000::1",
    "0.0.0.0",
]


@pytest.mark.parametrize("address", INSIDE)
def test_a_name_at_an_address_that_is_not_public_is_refused(address: str) -> None:
    policy = EgressPolicy.of(["allowed.test"])
    policy.check_addresses("allowed.test", 443, ["93.184.215.14", "2606:2800:21f::1"], ())
    with pytest.raises(Refused, match="not a public address"):
        policy.check_addresses("allowed.test", 443, ["93.184.215.14", address], ())
