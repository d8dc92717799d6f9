//! Parts of a tensor that need not lie together: each where a table says, in which is counted how often each is read.

use super::view::TensorView;

/// The parts of a tensor along its first dimension.
pub struct Placed {
    all: TensorView,
    /// Bytes from the first element of the tensor to each part; none if they lie in it.
    places: Vec<i64>,
    /// What says so.
    table: Option<TensorView>,
}

impl From<TensorView> for Placed {
    fn from(all: TensorView) -> Self {
        Placed {
            all,
            places: Vec::new(),
            table: None,
        }
    }
}

impl Placed {
    /// The parts of `all`, of which number `i` lies `table[i]` bytes after its first element. After these places the table has the address
    /// of what follows it, if reads are to be counted: a count for each part.
    ///
    /// # Safety
    /// There are the elements of a part, for as long as the value is used.
    pub unsafe fn new(all: TensorView, table: TensorView) -> Result<Placed, String> {
        let mut places = table.read::<i64>()?;
        let parts = all.sizes.first().map_or(0, |&parts| parts as usize);
        if places.len() != 2 * parts + 1 {
            return Err(format!(
                "a table of {} numbers for the places of {:?}",
                places.len(),
                all.sizes
            ));
        }
        places.truncate(parts);
        Ok(Placed {
            all,
            places,
            table: Some(table),
        })
    }

    /// Counts reads of these parts, where the runtime has asked for that.
    pub fn count(&self, numbers: &[i64]) -> Result<(), String> {
        let Some(table) = &self.table else {
            return Ok(());
        };
        let (mut words, parts) = (table.read::<i64>()?, self.places.len());
        let counts = table.ptr().wrapping_add(8 * (parts + 1));
        if words[parts] as usize != counts as usize {
            return Ok(());
        }
        for &number in numbers {
            let part = usize::try_from(number).ok().filter(|&part| part < parts);
            if let Some(part) = part {
                words[parts + 1 + part] += 1;
            }
        }
        table.write(&words)
    }

    /// The whole, whose sizes and strides are right.
    pub fn all(&self) -> &TensorView {
        &self.all
    }

    /// Part `number`; refused if there is none.
    pub fn part(&self, number: i64) -> Result<TensorView, String> {
        let own = self.all.select(0, number)?;
        let Some(&place) = self.places.get(number as usize) else {
            return Ok(own);
        };
        let at = self.all.ptr().wrapping_offset(place as isize);
        // SAFETY: whoever made this vouches for the part's elements.
        unsafe { TensorView::new(at, own.dtype, own.sizes, own.strides) }
    }
}
