//! From what the caller has recorded to the session of a module's weights, and its place in the device's pool.

use super::weights::{check_budget, Weights, WeightsState};
use super::{OffloadBudget, Recorded, RecordedWeight};
use crate::device::{self, HostBytes, WeightDevice};
use crate::error::Result;
use crate::figures::PackedResidents;
use crate::schedule::{WeightKind, WeightSpec};
use crate::session::Session;
use crate::store::{code_of, source_of, Constants, ElasticBytes, Methods, StoreOptions};
use crate::tenancy::{join_pool, Joining};
use std::sync::{Arc, Weak};

impl<D: WeightDevice + 'static> Weights<D> {
    pub(super) fn open(device: D, recorded: Recorded) -> Result<Arc<Weights<D>>> {
        let Recorded { beside, budget, .. } = recorded;
        let constants = constants_of(&recorded.weights, recorded.device.kind());
        let (name, files, weights) = (&recorded.name, recorded.files, &recorded.weights);
        let bytes: Vec<_> = weights.iter().map(RecordedWeight::stored).collect();
        let held = files.hold(&device, name, &bytes)?;
        let mut absent = files.absent(held, &bytes);
        for (absent, weight) in absent.iter_mut().zip(weights) {
            *absent |= weight.packed.is_some();
        }
        let method = recorded.entry.method(&constants, &absent)?;
        let packed = constants.packed_residents(PackedResidents::Auto);
        let methods = Methods::from((constants, method));
        let needed = ElasticBytes::of(&methods, &device)?;
        let least = needed.least.saturating_add(beside);
        let joining = Joining {
            device: recorded.device,
            name: name.clone(),
            priority: recorded.priority,
            total: needed.everything.saturating_add(beside),
            floor: least,
            page: needed.page,
            headroom: None,
        };
        let membership = match budget {
            OffloadBudget::Shared => Some(join_pool(&device, joining)?),
            _ => None,
        };
        let bytes_of_budget = match (budget, &membership) {
            (OffloadBudget::Bytes(bytes), _) => bytes,
            (_, Some(membership)) => membership.held(),
            _ => least,
        };
        check_budget(bytes_of_budget, least, beside)?;
        let options = StoreOptions {
            budget: Some(bytes_of_budget - beside),
            packed,
            elastic: true,
            kernels_write: true,
            ..StoreOptions::default()
        };
        let source = |device: &mut D| {
            let prepared = device.prepare_source(files.source(bytes), held);
            let prepared = prepared
                .map_err(|error| error.during(|| "preparing all weights on the host".into()))?;
            let both = prepared.into_iter().zip(weights);
            let source = |(stored, of): (HostBytes, &RecordedWeight)| {
                source_of(stored, of.packed.as_ref().map(|(_, packed)| packed))
            };
            Ok(both.map(source).collect())
        };
        let session = Session::with_source(device, methods.clone(), source, options)?;
        let state = WeightsState::new(session, methods, budget, least);
        let weights = Arc::new(Weights::new(state, membership, beside, absent));
        if let Some(membership) = &weights.membership {
            let weak: Weak<Weights<D>> = Arc::downgrade(&weights);
            membership.attach(weak);
        }
        Ok(weights)
    }
}

/// What plans have to know of the weights. `device`: as records call it.
fn constants_of(weights: &[RecordedWeight], device: &str) -> Constants {
    let spec = |weight: &RecordedWeight| WeightSpec {
        fqn: weight.name.clone(),
        bytes: weight.bytes.len(),
        stored: weight.stored().len(),
        kind: WeightKind::Weight,
    };
    let packed = { weights.iter() }.filter_map(|weight| weight.packed.as_ref());
    Constants {
        specs: weights.iter().map(spec).collect(),
        staging: device::staging_bytes(device, packed.map(|(_, packed)| code_of(packed))),
    }
}
