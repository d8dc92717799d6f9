//! A method joins a loaded program, or takes the place of another one: between passes, over the constants that are there.
//!
//! Nothing is loaded anew. The store plans for all methods, and the weights move as for another budget: what stays under both
//! plans is kept where the device can do that.

use super::Session;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::schedule::{Floor, Trace};
use crate::store::{Method, Methods};

impl<D: Device> Session<D> {
    /// One more method, which reads weights of this program. Its number, for [`Session::turn_to`].
    ///
    /// Errors: a budget below what all methods need ([`Error::BudgetTooSmall`], with the least one); a store whose budget cannot
    /// change; a session that captures graphs. Then everything is as it was.
    pub fn add_method(&mut self, method: Method) -> Result<usize> {
        self.add_method_within(method, self.store.budget())
    }

    /// The same under another budget from now on.
    pub fn add_method_within(&mut self, method: Method, budget: u64) -> Result<usize> {
        let at = self.passes.len();
        self.put_method(at, method, budget).map(|()| at)
    }

    /// Another method in the place of this one.
    ///
    /// Errors: as for [`Session::add_method`]; a number that no method has.
    pub fn replace_method(&mut self, at: usize, method: Method) -> Result<()> {
        self.replace_method_within(at, method, self.store.budget())
    }

    /// The same under another budget from now on.
    pub fn replace_method_within(&mut self, at: usize, method: Method, budget: u64) -> Result<()> {
        match at < self.passes.len() {
            true => self.put_method(at, method, budget),
            false => Err(Error::Internal(format!("there is no method {at}"))),
        }
    }

    fn put_method(&mut self, at: usize, method: Method, budget: u64) -> Result<()> {
        // rule: method-joins-between-passes
        self.check_between_passes()?;
        self.check_elastic()?;
        if self.graphs.is_some() {
            return Err(Error::Unsupported(
                "no method joins a program whose passes are captured as graphs".to_owned(),
            ));
        }
        let (methods, floor) = self.with_method(at, method)?;
        let next = self.next(budget, methods, floor, Some(at))?;
        self.adopt(budget, next)
    }

    /// All methods with this one in that place, and their floor.
    fn with_method(&self, at: usize, mut method: Method) -> Result<(Methods, Floor)> {
        let mut methods = self.methods();
        let all = methods.constants.specs.len();
        let own = all - self.store.tables().len();
        let (events, probes) = (method.trace.events(), method.trace.probes());
        // What stands for reads in place is nobody's to read.
        method.trace = Trace::new(events.to_vec(), probes.to_vec(), own)?;
        if method.layouts.len() != own {
            return Err(Error::Internal(format!(
                "{own} constants, {} layouts",
                method.layouts.len()
            )));
        }
        method.layouts.resize(all, Default::default());
        method.check(&methods.constants)?;
        match methods.all.get_mut(at) {
            Some(other) => *other = method,
            None => methods.all.push(method),
        }
        let (in_place, _) = methods.in_place_beside(self.store.tables(), false)?;
        let floor = in_place.floor_as_they_read(self.store.device.granule())?;
        Ok((methods, floor))
    }
}
