//! Files of the user's: which are opened, how each is written whole or not at all, and which path leads out
//! of a folder.
//!
//! Every file that the program reads by a name that it was handed is opened in `read`, which opens regular files alone.
//! Every file that the program writes goes through `write`; nothing else in the crate creates, renames or
//! removes files (checkpoints have folders of their own, in `state`).

mod inside;
mod read;
mod write;

pub use inside::{Folder, Links};
#[cfg(any(feature = "weights", feature = "cli"))]
pub(crate) use read::open;
#[cfg(feature = "cli")]
pub(crate) use read::open_or_pipe;
pub(crate) use read::read;
#[cfg(feature = "run")]
pub(crate) use read::read_at_most;
pub use write::{
    Sink, check_writable, remove_unfinished, write_atomically, write_atomically_with, write_seekable,
};
