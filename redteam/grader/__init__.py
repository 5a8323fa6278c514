"""Attacks on the grader: `targeted_attacks` (by somebody who has read it), `javascript_attacks`."""
