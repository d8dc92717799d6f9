//! Policies and plans: the bed that plays every policy, and plans of known models.

#[path = "../policy_support/mod.rs"]
mod policy_support;

mod bed;
mod models;
mod planned_models;
mod planned_optimum;
