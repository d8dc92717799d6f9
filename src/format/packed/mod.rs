//! The lossless code for weights of floating-point numbers. Trained bf16 weights take about two thirds of their bytes.
//!
//! Signs and mantissas look random and stay as they are. Exponents have about 2.6 bits of
//! information, whatever the type. A cascade of fixed fields codes them: 2 bits, 2 bits, 3 bits, a
//! byte. Fields of fixed width need no serial parser: the lanes of a GPU warp find their fields by
//! counting.
//!
//! ```text
//! code of an exponent          rank of the exponent in the array, most frequent first
//!   first   2 bits   0 1 2     ranks 0 to 2        3: look at the second field
//!   second  2 bits   0 1 2     ranks 3 to 5        3: look at the third field
//!   third   3 bits   0 to 6    ranks 6 to 12       7: look at the byte
//!   byte    8 bits             the exponent
//!
//! Header      how its numbers are made of bits, the bytes of the array, the exponents of ranks 0 to 12
//! directory   [u32; blocks + 1]   bits 0 to 30: where the block begins, in units of 16 bytes
//!                                 bit 31: it is stored raw
//!                                 the last entry: where the last block ends
//! payload     block 0 | block 1 | ... | 16 bytes of zeros
//!
//! A coded block of n elements, G = ceil(n / 512) groups. A full block has n = 4096, G = 8. Sign
//! and mantissa are B whole bytes an element and b bits:
//!
//!          B  b
//!   bf16   1  0      fp32       3  0      fp8 e5m2   0  3
//!   fp16   1  3      fp8 e4m3   0  4
//!
//!   begins at              bytes    full bf16 at
//!   0                      512 G B        0   byte 0 of sign and mantissa of each element, then byte 1, ...
//!   512 G B                 64 G b            the bits above these bytes: 16 elements in b u16, lowest bits first
//!   R = 512 G B + 64 G b    512        4096   low plane: bit 0 of the first fields
//!   R + 512                 512        4608   high plane: bit 1 of the first fields
//!   R + 1024                  4        5120   u16 count2, u16 count3
//!   R + 1028                           5124   count2 second fields, lowest bits first, zeros up to a whole u32
//!   then                                      count3 third fields, in the same way
//!   then                                      exponent bytes, zeros up to a multiple of 16
//!
//! A plane is 32 rows of 8 u16. Row l belongs to lane l of a warp, u16 g to group g:
//!
//!   element 512 g + 16 l + i  is  bit i of the u16 at byte 16 l + 2 g
//! ```
//!
//! The sign is the highest bit of sign and mantissa. So a lane loads its part of a plane with one
//! load of 16 bytes, and a byte of 16 elements with another. Second fields, third fields and bytes stand in the order of their
//! elements. All numbers are little-endian.
//!
//! Invariants:
//! - A block is contiguous and begins at a multiple of 16 bytes. One copy brings a tail that begins
//!   at any block.
//! - A block that would not gain is stored raw: its bytes, then zeros up to a multiple of 16. So is
//!   a block with a part of an element at its end.
//! - Elements after the last one have zeros everywhere.
//! - A GPU decoder reads windows of three u32. A window at the end of a block ends in the 16 bytes
//!   after it, and the payload has them.
//! - A decoder refuses counts that disagree with the fields. It reads no byte outside the block.
//!
//! | file | what it is |
//! |---|---|
//! | `layout` | sizes and offsets; the header |
//! | `elements` | elements into exponents and the rest, and back |
//! | `histogram` | how often each exponent occurs, and the header that follows |
//! | `encode` | one block into bytes |
//! | `decode` | bytes of one block into its elements |
//! | `writer` | an array into a directory and a payload; each block is decoded and compared |
//! | `directory` | a directory, checked; blocks of a payload into elements |
//! | `threads` | an array into its stored bytes, by several threads |
//! | `table` | which entries of a data file are packed |

mod decode;
mod directory;
mod elements;
mod encode;
mod histogram;
mod layout;
mod table;
mod threads;
mod writer;

pub use directory::{decode, BlockPlace, Directory};
pub use histogram::Histogram;
pub use layout::{PackedHeader, BLOCK_ELEMENTS, PADDING, RAW, UNIT};
pub use table::{directory_of, read_table, write_table, PackedEntry, StoredParts, TABLE_KEY};
pub use threads::{count, store, Counted, Stored};
pub use writer::{encode, PackedArray, PackedWriter};

#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod form_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod threads_tests;
