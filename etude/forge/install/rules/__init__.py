"""Installing by rules, with the tools that a model would have.

In reading order: `scripted_policy` (a policy that is ordinary code), `explore` (stage 1), `missing_packages` and
`service_stand_ins` (what a failed run asks for), `install_and_repair` (stage 2).
"""
