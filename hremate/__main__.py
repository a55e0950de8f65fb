"""`python -m hremate`: the command line."""

import sys

from hremate.cli import main

if __name__ == "__main__":
    sys.exit(main())
