//! The user's files: which are opened, how they are written atomically, and which paths leave a folder.
//!
//! Every file that the user names is opened in `read`, which opens regular files only. Every file that the
//! program writes goes through `write`; nothing else in the crate creates, renames or removes files, except
//! `state` in checkpoint folders.

mod inside;
mod read;
mod write;

pub use inside::{Folder, Links};
#[cfg(any(feature = "weights", feature = "cli", feature = "onnx"))]
pub(crate) use read::open;
#[cfg(feature = "cli")]
pub(crate) use read::open_or_pipe;
pub(crate) use read::read;
#[cfg(feature = "run")]
pub(crate) use read::read_at_most;
pub use write::{
    Sink, check_writable, remove_unfinished, write_atomically, write_atomically_with, write_into_folder,
    write_seekable,
};
