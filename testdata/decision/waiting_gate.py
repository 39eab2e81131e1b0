#!/usr/bin/env python3
"""The recorded waiting series through the queue gate of DESIGN 6, by other means than the module's:
2^(-x) comes from decimal arithmetic with 40 digits and is rounded once. Writes waiting_gate.json
beside it. Standard library only."""

import decimal
import json
import pathlib

HERE = pathlib.Path(__file__).parent
GATES = [  # max waiting, half-life ms, reopen ratio, max sample age ms
    (8, 2000, 0.5, 10000),
    (8, 200, 0.5, 10000),
    (4, 500, 0.5, 10000),
    (2, 1000, 1.0, 10000),
    # Two of the recorded pauses are longer than this: the gate starts afresh.
    (4, 200, 0.25, 200),
]

decimal.getcontext().prec = 40


def weight(passed_ms, half_life_ms):
    half_lives = decimal.Decimal(passed_ms / half_life_ms)
    return 1.0 - float(decimal.Decimal(2) ** -half_lives)


def run(series, most, half_life_ms, ratio, age_ms):
    steps, ewma, closed, last = [], None, False, None
    for t, waiting in series:
        if last is None or t - last > age_ms:
            ewma, closed = float(waiting), False
        else:
            ewma += weight(t - last, half_life_ms) * (waiting - ewma)
        last = t
        if closed and ewma <= ratio * most:
            closed = False
        elif not closed and ewma >= most:
            closed = True
        # As text: not every JSON reader rounds doubles right.
        steps.append([t, waiting, repr(ewma), closed])
    return steps


def main():
    recorded = json.loads((HERE.parent / "waiting_series.json").read_text())["series"]
    series = [(round(s["t"] * 1000), int(s["waiting"])) for s in recorded]
    gates = []
    for gate in GATES:
        steps = run(series, *gate)
        keys = ("maxWaitingRequests", "ewmaHalfLifeMs", "reopenRatio", "maxSampleAgeMs")
        gates.append({**dict(zip(keys, gate)), "steps": steps})
        before = False
        for t, waiting, ewma, closed in steps:
            if closed != before:
                print(gate, t - series[0][0], waiting, ewma, "closed" if closed else "open")
            before = closed
        print(gate, "ends at", steps[-1][2])
    text = json.dumps({"gates": gates}).replace("[[", "[\n[").replace("], [", "],\n[")
    (HERE / "waiting_gate.json").write_text(text + "\n")


main()
