"""``python -m coda_agent``."""

import sys

from .cli import main

sys.exit(main())
