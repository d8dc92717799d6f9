//! What loads exported models: a load and its passes with every device call failing once, several methods, flipped copies.

#[path = "../model_support/mod.rs"]
mod model_support;

mod faults;
mod methods;
mod verify_every_read;
