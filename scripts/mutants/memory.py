"""Rules of memory that shows, moves and grows: the same code on every device, which the simulator plays."""

from edits import always, delete, drop, never, replace
from mutant import Mutant

MOVES = ("lib:sim", "device:moves", "session:budget")

MUTANTS = [
    Mutant(
        "views-go-after-their-users",
        delete(),
        "a kernel reads, or a copy writes, where nothing is mapped any more, or something else is",
        ("lib:sim", "lib:host"),
    ),
    Mutant(
        "pages-move-when-nothing-runs",
        drop(".and_then(|()| device.synchronize())"),
        "a kernel reads where nothing is mapped any more",
        ("lib:sim",),
    ),
    Mutant(
        "a-failed-move-waits-for-its-copies",
        delete(),
        "a copy within the device writes to memory that others may have got",
        ("session:budget",),
    ),
    Mutant(
        "moved-pages-are-copied-before-their-source-goes",
        delete(),
        "pages that were kept hold what others wrote to their old memory",
        MOVES,
    ),
    Mutant(
        "a-unit-moves-only-as-a-whole",
        replace("old.range != wanted", "false"),
        "pages that were kept are other pages",
        MOVES,
    ),
    Mutant(
        "a-unit-goes-after-the-copies-from-it",
        delete(),
        "pages that were kept hold what others wrote to their old memory",
        MOVES,
    ),
    Mutant(
        "a-move-keeps-the-cap",
        always(),
        "while weights move they take more memory than the budget, and a device that is full fails",
        ("session:budget",),
    ),
    Mutant(
        "a-child-frees-nothing-of-its-parent",
        never(),
        "weights of the parent become zeros when its child ends",
        ("lib:host",),
    ),
    Mutant(
        "a-child-has-a-file-of-its-own",
        replace("if file.is_of_this_process()", ""),
        "parent and child write to the same memory",
        ("lib:host",),
    ),
    Mutant(
        "pages-without-room-are-lost",
        delete(),
        "weights are read that nobody loaded again",
        MOVES,
    ),
]
