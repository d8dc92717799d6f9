//! The lossless code for bf16 weights. Trained weights take about two thirds of their bytes.
//!
//! Signs and mantissas look random and stay as they are. Exponents have about 2.6 bits of
//! information in 8. A cascade of fixed fields codes them: 2 bits, 2 bits, 3 bits, a byte. Fields
//! of fixed width need no serial parser: the lanes of a GPU warp find their fields by counting.
//!
//! ```text
//! code of an exponent          rank of the exponent in the array, most frequent first
//!   first   2 bits   0 1 2     ranks 0 to 2        3: look at the second field
//!   second  2 bits   0 1 2     ranks 3 to 5        3: look at the third field
//!   third   3 bits   0 to 6    ranks 6 to 12       7: look at the byte
//!   byte    8 bits             the exponent
//!
//! Header      the bytes of the array, the exponents of ranks 0 to 12
//! directory   [u32; blocks + 1]   bits 0 to 30: where the block begins, in units of 16 bytes
//!                                 bit 31: it is stored raw
//!                                 the last entry: where the last block ends
//! payload     block 0 | block 1 | ... | 16 bytes of zeros
//!
//! A coded block of n elements, G = ceil(n / 512) groups. A full block has n = 4096, G = 8:
//!
//!   byte        bytes   full at
//!   0           512 G         0   sign and mantissa: a byte an element, the sign is bit 7
//!   512 G         512      4096   low plane: bit 0 of the first fields
//!   512 G +  512  512      4608   high plane: bit 1 of the first fields
//!   512 G + 1024    4      5120   u16 count2, u16 count3
//!   512 G + 1028           5124   count2 second fields, lowest bits first, zeros up to a whole u32
//!   then                          count3 third fields, in the same way
//!   then                          exponent bytes, zeros up to a multiple of 16
//!
//! A plane is 32 rows of 8 u16. Row l belongs to lane l of a warp, u16 g to group g:
//!
//!   element 512 g + 16 l + i  is  bit i of the u16 at byte 16 l + 2 g
//! ```
//!
//! So a lane loads its part of a plane with one load of 16 bytes, and signs and mantissas of 16
//! elements with another. Second fields, third fields and bytes stand in the order of their
//! elements. All numbers are little-endian.
//!
//! Invariants:
//! - A block is contiguous and begins at a multiple of 16 bytes. One copy brings a tail that begins
//!   at any block.
//! - A block that would not gain is stored raw: its bytes, then zeros up to a multiple of 16. So is
//!   a block with half an element at its end.
//! - Elements after the last one have zeros everywhere.
//! - A GPU decoder reads windows of three u32. A window at the end of a block ends in the 16 bytes
//!   after it, and the payload has them.
//! - A decoder refuses counts that disagree with the fields. It reads no byte outside the block.
//!
//! | file | what it is |
//! |---|---|
//! | `layout` | sizes and offsets; the header |
//! | `histogram` | how often each exponent occurs, and the header that follows |
//! | `encode` | one block into bytes |
//! | `decode` | bytes of one block into its elements |
//! | `writer` | an array into a directory and a payload; each block is decoded and compared |
//! | `directory` | a directory, checked; blocks of a payload into elements |
//! | `threads` | an array into its stored bytes, by several threads |
//! | `table` | which entries of a data file are packed |

mod decode;
mod directory;
mod encode;
mod histogram;
mod layout;
mod table;
mod threads;
mod writer;

pub use directory::{decode, BlockPlace, Directory};
pub use histogram::Histogram;
pub use layout::{PackedHeader, BLOCK_BYTES, BLOCK_ELEMENTS, PADDING, RAW, UNIT};
pub use table::{directory_of, read_table, write_table, PackedEntry, StoredParts, TABLE_KEY};
pub use threads::{count, store, Counted, Stored};
pub use writer::{encode, PackedArray, PackedWriter};

#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod threads_tests;
