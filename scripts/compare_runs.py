"""Prints a table of top-1 of two kinds of runs over several seeds, and ends with code 1 where they are too far apart to be alike.

    compare_runs.py FOLDER SEEDS TITLE FIRST SECOND MINUEND ROW…

FIRST and SECOND are the columns' titles, MINUEND (first or second) what the other is taken from, and a ROW is `words:first:second`: the
runs' results are FOLDER/first-SEED.json and FOLDER/second-SEED.json, with the keys `top1` and `ema_top1`.
"""

import json
import math
import statistics
import sys

out, seeds, title, first, second, minuend = sys.argv[1], int(sys.argv[2]), *sys.argv[3:7]
print(f"| {title} | {first} | {second} | difference | its standard error |")
print("|---|---|---|---|---|")
apart = []
for row in sys.argv[7:]:
    words, *sides = row.split(":")
    for key, what in (("top1", "weights"), ("ema_top1", "average")):
        a, b = ([json.load(open(f"{out}/{side}-{seed}.json"))[key] for seed in range(seeds)] for side in sides)
        difference = (statistics.mean(a) - statistics.mean(b)) * (1 if minuend == "first" else -1)
        # The spread between seeds is taken as one for both sides: with three runs a side it is known badly enough.
        error = math.sqrt((statistics.variance(a) + statistics.variance(b)) / seeds)
        apart.append(abs(difference) / error)
        print("| {}, {} | {:.2f} ± {:.2f} | {:.2f} ± {:.2f} | {:+.2f} | {:.2f} |".format(
            words, what, statistics.mean(a), statistics.stdev(a), statistics.mean(b), statistics.stdev(b), difference, error
        ))
# Student's t passes this in one of a hundred pairs that are alike; of fewer than three seeds nothing can be said.
limit = {2: math.inf, 3: 4.60, 4: 3.71, 5: 3.36}.get(seeds, 3.17)
sys.exit(max(apart) > limit)
