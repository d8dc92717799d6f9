//! The contract of the `Device` trait, on every device.

#[macro_use]
#[path = "../device_support/mod.rs"]
mod device_support;

mod blocks;
mod contract;
mod moves;
mod pages;
mod views;
