//! Parts of a tensor that need not lie together: each where a table says.

use super::view::TensorView;

/// The parts of a tensor along its first dimension.
pub struct Placed {
    all: TensorView,
    /// Bytes from the first element of the tensor to each part; none if they lie in it.
    places: Vec<i64>,
}

impl From<TensorView> for Placed {
    fn from(all: TensorView) -> Self {
        let places = Vec::new();
        Placed { all, places }
    }
}

impl Placed {
    /// The parts of `all`, of which number `i` lies `places[i]` bytes after its first element.
    ///
    /// # Safety
    /// There are the elements of a part, for as long as the value is used.
    pub unsafe fn new(all: TensorView, places: Vec<i64>) -> Result<Placed, String> {
        if all.sizes.first() != Some(&(places.len() as i64)) {
            return Err(format!("{} places for {:?}", places.len(), all.sizes));
        }
        Ok(Placed { all, places })
    }

    /// The whole, whose sizes and strides are right.
    pub fn all(&self) -> &TensorView {
        &self.all
    }

    /// Part `number`; refused if there is none.
    pub fn part(&self, number: i64) -> Result<TensorView, String> {
        let own = self.all.select(0, number)?;
        match self.places.get(number as usize) {
            None => Ok(own),
            Some(&place) => {
                let at = self.all.ptr().wrapping_offset(place as isize);
                // SAFETY: whoever made this vouches for the part's elements.
                unsafe { TensorView::new(at, own.dtype, own.sizes, own.strides) }
            }
        }
    }
}
