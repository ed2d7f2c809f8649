from tpplan.plan import *
