//! What a program's load and its passes do as a whole, and the command `weightstream`.

#[path = "../support/mod.rs"]
mod support;

mod cli;
mod cli_graphs;
mod cli_methods;
mod cli_pack;
mod files;
mod graph_shapes;
mod load;
