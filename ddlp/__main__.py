"""`python -m ddlp` is `ddlp`."""

import sys

from ddlp.cli import main

if __name__ == "__main__":
    sys.exit(main())
