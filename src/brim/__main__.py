"""`python -m brim` is the `brim` command."""

from brim.cli import main

raise SystemExit(main())
