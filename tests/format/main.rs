//! Files and records, right and malformed.

#[path = "../support/mod.rs"]
mod support;

mod catalog;
mod check;
mod malformed;
mod methods;
mod record;
mod tables;
mod valid;
mod wiring;
