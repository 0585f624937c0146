"""Freeze the plan: `python -m experiments.hypotheses.freeze`, once, before any test set is opened."""

from experiments.hypotheses.plan import freeze

if __name__ == "__main__":
    entry = freeze()
    print(f"{entry['file']} is frozen since {entry['date']} with sha256 {entry['sha256']}.")
