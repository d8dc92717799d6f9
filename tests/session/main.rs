//! Sessions over a store, on the simulated device, on `host`, and on the example of a device.

mod graph_support;
#[path = "../device_support/plain.rs"]
mod plain_device;
#[path = "../session_support/mod.rs"]
mod session_support;

mod budget;
mod cases;
mod copies;
mod decoded;
mod floor;
mod full_device;
mod graph;
mod graph_memory;
mod graphs;
mod join;
mod link;
mod load;
mod lost_device;
mod memory;
mod methods;
mod mutants;
mod pins;
mod plain;
mod planned;
mod random;
mod refine;
mod rows;
mod safety;
mod up_front;
