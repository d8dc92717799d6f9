//! Stores that share a device, as the delegate has them.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use crate::session_support::{play, Kernels, Model, Pass};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use weightstream::config::PolicyKind;
use weightstream::device::Device;
use weightstream::elastic::{DevicePool, DeviceState, Membership, PassNeeds, Tenant, Wants};
use weightstream::figures::DeviceId;
use weightstream::session::Session;
use weightstream::store::{ElasticBytes, Methods, StoreOptions};
use weightstream::Result;

pub const PAGE: u64 = 256;

/// The pool of the CPU, which all modules of a process share: one test at a time has it.
pub fn cpu_pool() -> (MutexGuard<'static, ()>, Arc<DevicePool>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    (alone, DevicePool::of(DeviceId::Cpu))
}

/// A store as the delegate has it: others ask it to shrink while nobody runs it.
pub struct Store<D: Device> {
    membership: OnceLock<Membership>,
    pub session: Mutex<Option<Session<D>>>,
    pub model: Model,
}

impl<D: Kernels + 'static> Store<D> {
    pub fn new(
        pool: &Arc<DevicePool>,
        model: Model,
        device: D,
        priority: i64,
    ) -> Result<Arc<Self>> {
        let methods = Methods::from(model.program());
        let ElasticBytes {
            least,
            everything,
            page,
        } = ElasticBytes::of(&methods, &device)?;
        let wants = Wants {
            name: format!("of {everything}"),
            total: everything,
            floor: least,
            priority,
        };
        let state = DeviceState {
            page,
            beside: 0,
            free: 0,
        };
        let membership = pool.join(wants, &state)?;
        let options = StoreOptions {
            budget: Some(membership.held()),
            policy: PolicyKind::Planned,
            elastic: true,
            ..StoreOptions::default()
        };
        let session = Session::new(device, model.program(), model.host_bytes(), options)?;
        let store = Arc::new(Store {
            membership: OnceLock::from(membership),
            session: Mutex::new(Some(session)),
            model,
        });
        let tenant: Weak<Self> = Arc::downgrade(&store);
        store.membership().attach(tenant);
        Ok(store)
    }

    pub fn membership(&self) -> &Membership {
        self.membership.get().unwrap()
    }

    pub fn pass(&self, pass: Pass) -> Result<()> {
        let mut session = self.session.lock().unwrap();
        let session = session.as_mut().unwrap();
        self.membership().begin_pass(
            PassNeeds::default(),
            || Ok(0),
            |bytes| session.set_budget(bytes),
        )?;
        assert_eq!(session.stats().budget_bytes, self.membership().held());
        let played = play(&self.model, session, pass);
        if matches!(pass, Pass::GiveWayAt(_)) {
            // As an eager module does before its next pass.
            session.set_budget(self.membership().held()).unwrap();
        }
        self.membership()
            .end_pass(|bytes| session.set_budget(bytes))?;
        assert_eq!(session.stats().budget_bytes, self.membership().held());
        played
    }

    pub fn with<R>(&self, look: impl FnOnce(&mut Session<D>) -> R) -> R {
        look(self.session.lock().unwrap().as_mut().unwrap())
    }
}

impl<D: Kernels> Tenant for Store<D> {
    fn shrink_to(&self, bytes: u64) -> Option<Result<()>> {
        let mut session = self.session.try_lock().ok()?;
        Some(session.as_mut()?.set_budget(bytes))
    }
}

impl<D: Device> Drop for Store<D> {
    fn drop(&mut self) {
        // The session borrows the model's bytes.
        self.session.get_mut().unwrap().take();
    }
}
