//! Export of parameters to a plain Hugging Face directory, or to a file of Burn.

mod directory;
mod options;
mod tensors;

pub use directory::{export, export_tensors};
pub use options::{ExportFormat, ExportLayout, ExportOptions, Exported};
