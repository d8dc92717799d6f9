//! Plain data about devices that plans need: sizes, costs of copies, and views of memory. It lies below `device`, so that
//! policies and plans know no device.
#![deny(unsafe_code)]

mod device_model;
pub mod link;
mod view;

pub use device_model::DeviceModel;
pub use link::Link;
pub use view::{KeptPages, Piece, View};
