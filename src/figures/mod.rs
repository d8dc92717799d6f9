//! Plain data about devices that plans need: names, sizes, costs of copies, views of memory and its free pieces. It lies below `device`, so that
//! policies and plans know no device.
#![deny(unsafe_code)]

mod device_id;
mod device_model;
mod free_list;
pub mod link;
mod number_form;
mod stored;
mod view;

pub use device_id::DeviceId;
pub use device_model::DeviceModel;
pub(crate) use free_list::FreeList;
pub use link::Link;
pub use number_form::NumberForm;
pub use stored::{stored_of, PackedResidents, DECODED_PER_LINKED};
pub use view::{KeptPages, Piece, View};
