"""Rules of a load: which files, code and machine belong together."""

from edits import after, delete, never, replace
from mutant import Mutant

MUTANTS = [
    # --- options that name weights
    Mutant(
        "pattern-without-a-match-is-refused",
        replace(".find(unmatched)", ".find(|one| unmatched(one) && false)"),
        "a pattern with a typing error is ignored, and the weight does not stay",
        ("delegate:load", "delegate:cli"),
    ),
    Mutant(
        "no-weight-is-both-pinned-and-streamed",
        never(),
        "of two options that contradict each other one is ignored",
        ("delegate:load", "delegate:cli"),
    ),
    # --- the data
    Mutant(
        "data-is-verified-when-asked",
        after(".or(Ok(()))"),
        "a damaged weight is loaded although its check was asked for",
        ("delegate:load",),
    ),
    Mutant(
        "checksums-are-compared",
        never(),
        "damaged weights are loaded although the user asked for the check",
        ("format:catalog",),
    ),
    Mutant(
        "files-are-of-one-build",
        delete(),
        "a .ptd of another export, with the same names and sizes, is loaded",
        ("format:catalog",),
    ),
    Mutant(
        "weight-has-the-recorded-length",
        never(),
        "kernels read beyond a weight",
        ("format:catalog",),
    ),
    Mutant(
        "weight-has-the-recorded-type",
        never(),
        "kernels read integers as floats",
        ("format:catalog",),
    ),
    Mutant(
        "weight-has-the-recorded-sizes",
        never(),
        "a transposed weight is taken for the right one",
        ("format:catalog",),
    ),
    Mutant(
        "mutable-constants-share-no-bytes",
        replace("kind != ConstantKind::Mutable", "true"),
        "a write to one buffer shows in another of equal bytes",
        ("format:catalog",),
    ),
    Mutant(
        "bytes-lie-within-their-owner",
        never(),
        "a range outside of the mapping becomes an empty weight",
        ("lib:weights",),
    ),
    Mutant(
        "segments-do-not-overlap",
        never(),
        "two weights may lie in the same bytes of a file without being declared as equal",
        ("format:malformed", "format:tables"),
    ),
    Mutant(
        "segments-cover-the-file",
        never(),
        "a file may hold bytes that no check covers",
        ("format:malformed", "format:tables"),
    ),
    # --- the machine
    Mutant(
        "processor-has-the-instructions",
        never(),
        "compiled code ends the process with an illegal instruction",
        ("lib:weights",),
    ),
    Mutant(
        "machine-has-the-architecture",
        never(),
        "code for another machine is opened",
        ("lib:weights", "delegate:load"),
    ),
    Mutant(
        "machine-is-checked-at-load",
        after(".or(Ok(()))"),
        "the compiled library is opened on a machine that cannot run it",
        ("delegate:load",),
    ),
    # --- the compiled library
    Mutant(
        "library-has-the-recorded-digest",
        replace("key == found", "!found.is_empty()"),
        "a damaged library is opened",
        ("delegate:load",),
    ),
    Mutant(
        "compiled-constant-has-the-recorded-length",
        never(),
        "the compiled code expects more bytes than its weight has",
        ("lib:delegate::compiled",),
    ),
    Mutant(
        "compiled-constant-has-the-recorded-type",
        never(),
        "the compiled code reads a weight as another type",
        ("lib:delegate::compiled",),
    ),
    Mutant(
        "all-recorded-constants-are-compiled",
        replace("!used", "!used && false"),
        "a recorded constant that the compiled code does not have is not noticed",
        ("lib:delegate::compiled",),
    ),
    # --- the record
    Mutant(
        "recorded-floor-is-computed-again",
        never(),
        "required_budget names another number than the one that is enforced",
        ("delegate:load",),
    ),
    Mutant(
        "both-records-are-equal",
        never(),
        "the two places of the record may say different things",
        ("delegate:files",),
    ),
    Mutant(
        "program-has-the-recorded-checksum",
        replace("recorded == Some(&found.to_le_bytes()[..])", "recorded.is_some()"),
        "damage that leaves the program's tables well-formed changes what ExecuTorch computes",
        ("delegate:files",),
    ),
    Mutant(
        "weights-are-dense",
        replace("is_dense(sizes, strides)", "true"),
        "strides lead kernels to bytes that are not the weight's",
        ("format:record",),
    ),
    Mutant(
        "recorded-release-needs-an-open-lease",
        replace("step(&mut leases, id, Lease::Open, Lease::Ended)", "leases.get(id as usize).map(|_| ())"),
        "a record's trace need not be one that can happen",
        ("format:record",),
    ),
    Mutant(
        "in-place-reads-at-most-half-a-table",
        replace("bytes <= table / 2", "(bytes > 0 || table > 0)"),
        "a pass reads more of a table through the link than streaming it would copy",
        ("format:record",),
    ),
]
