//! A file in /run/matrix of a guest, beyond those of every guest.

/// A file in /run/matrix of a guest.
pub struct GuestFile {
    /// Path below /run/matrix.
    pub name: String,
    /// Permission bits.
    pub mode: u32,
    /// Its content.
    pub content: Vec<u8>,
}

impl GuestFile {
    /// Returns a file that nobody executes.
    pub fn data(name: &str, text: &str) -> Self {
        Self { name: name.to_owned(), mode: 0o644, content: text.into() }
    }

    /// Returns an executable file.
    pub fn program(name: &str, text: &str) -> Self {
        Self { mode: 0o755, ..Self::data(name, text) }
    }
}
