"""python -m tpplan"""

import sys

from tpplan.cli import main

sys.exit(main())
