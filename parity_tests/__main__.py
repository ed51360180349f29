"""`python -m parity_tests JOB`, as `hf-parity JOB`."""

import sys

from parity_tests.jobs.run import main

if __name__ == "__main__":
    sys.exit(main())
