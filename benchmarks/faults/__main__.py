"""`python -m benchmarks.faults`; here and not in sweep.py, because spawned processes import no
__main__.py.
"""

from benchmarks.faults.sweep import main

if __name__ == "__main__":
    raise SystemExit(main())
