"""Rules of the arbiter."""

from edits import always, replace
from mutant import Mutant

MUTANTS = [
    Mutant(
        "grant-covers-floor-and-leases",
        replace("self.least.max(self.floor)", "self.floor"),
        "bytes of open leases go to another tenant, and the lower cap is accepted",
        ("lib:elastic",),
    ),
    Mutant(
        "grants-stay-under-the-cap",
        replace("self.free(lane)", "self.cap"),
        "grants together exceed the cap",
        ("lib:elastic",),
    ),
    Mutant(
        "hysteresis-starves-nobody",
        always(),
        "a tenant stays at its floor while an idle one holds bytes",
        ("lib:elastic",),
    ),
]
