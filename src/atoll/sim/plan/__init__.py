"""A planner: which M, K, H, P, tau, codec and channels for a fleet, and what to expect of it.

`fleet_file` reads the fleet. `layouts` says which islands may take part and as how many learners, `pace`
simulates each distinct learner once, `links` and `quality` say in closed form what a link carries and what
a setting costs in tokens. `evaluate` puts them together for one candidate, `search` goes through the
candidates, `lock_step` is the alternative, `plan` answers the whole question and `explain` puts it into
words.
"""
