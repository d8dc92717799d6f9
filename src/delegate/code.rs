//! The compiled code of one method, and what its constants are bound to.

use super::compiled::{check_signature, compiled, match_constants, open};
use super::delegate_device::DelegateDevice;
use super::request::LoadRequest;
use crate::aoti::container::{Binding, Container};
use crate::error::{Error, Result};
use crate::figures::DeviceId;
use crate::format::{ConstantKind, Record, RecordedConstant};
use crate::schedule::WeightIndex;
use crate::session::{Session, State};

/// The compiled code of one method.
pub(super) struct MethodCode<D: DelegateDevice> {
    pub(super) container: Container,
    pub(super) scope: D::Scope,
    /// Which of the record's constants each of the container's constants is.
    matched: Vec<usize>,
}

impl<D: DelegateDevice> MethodCode<D> {
    /// Held against the record. No constant is bound.
    pub fn open(device: &D, request: &LoadRequest<'_>) -> Result<MethodCode<D>> {
        MethodCode::open_by(device.scope(), device.id(), request)
    }

    fn open_by(scope: D::Scope, id: DeviceId, request: &LoadRequest<'_>) -> Result<MethodCode<D>> {
        let record = request.records.own();
        let mut container = compiled(&scope, "loading", || open(record, id, request.library))?;
        check_signature(record, &container)?;
        let matched = match_constants(&record.constants, container.constants())?;
        let is_weight = |constant: &&RecordedConstant| constant.kind == ConstantKind::Weight;
        let weights = record.constants.iter().filter(is_weight);
        let weights: Vec<&str> = weights.map(|one| one.fqn.as_str()).collect();
        if !weights.is_empty() {
            // All as placeholders first: a container that refuses them does so before any weight is loaded.
            let placeholders: Vec<_> = matched.iter().map(|_| Binding::Placeholder).collect();
            // SAFETY: placeholders are the container's own memory; no address of ours is bound.
            let bound = compiled(&scope, "binding placeholders to", || unsafe {
                container.bind_constants(&placeholders)
            });
            bound.map_err(|error| refused(error, &weights))?;
        }
        Ok(MethodCode {
            container,
            scope,
            matched,
        })
    }

    /// Binds the direct constants. `index` has the program's index of each of the record's constants.
    ///
    /// # Safety
    /// The session must outlive this value. So must the state, if there is one, unless this is bound again before it runs.
    pub unsafe fn bind(
        &mut self,
        record: &Record,
        index: &[WeightIndex],
        session: &Session<D>,
        state: Option<&State>,
    ) -> Result<()> {
        let bindings = bindings(record, index, session, state, &self.matched)?;
        // SAFETY: the memory of direct constants is the session's or that of a state, both of which keep it in place for their
        // whole life; by this function's contract the container ends first. An error leaves nothing bound.
        compiled(&self.scope, "binding direct constants to", || unsafe {
            self.container.bind_constants(&bindings)
        })
    }
}

/// The container takes no placeholders in the place of weights.
fn refused(error: Error, weights: &[&str]) -> Error {
    const NAMED: usize = 3;
    let names = weights[..weights.len().min(NAMED)].join("', '");
    let more = match weights.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    error.at(|| {
        format!(
            "placeholders in the place of '{names}'{more}, whose bytes come later; export the program again, or with offload=False, \
             which needs none"
        )
    })
}

/// What each of the container's constants is bound to. `matched` says which of the record's it is, `index` where the program has
/// each of the record's.
fn bindings<'a, D: DelegateDevice>(
    record: &'a Record,
    index: &[WeightIndex],
    session: &Session<D>,
    state: Option<&State>,
    matched: &[usize],
) -> Result<Vec<Binding<'a>>> {
    let binding = |&own: &usize| {
        let constant = &record.constants[own];
        if constant.kind == ConstantKind::Weight {
            return Ok(Binding::Placeholder);
        }
        let at = index[own] as usize;
        let own = state.and_then(|state| state.address(at));
        let ptr = own.or_else(|| session.store().direct_address(at));
        let ptr = ptr.ok_or_else(|| {
            Error::Internal(format!("direct constant '{}' has no memory", constant.fqn))
        })?;
        Ok(Binding::Direct {
            ptr,
            nbytes: constant.nbytes,
            sizes: &constant.sizes,
            strides: &constant.strides,
        })
    };
    matched.iter().map(binding).collect()
}
