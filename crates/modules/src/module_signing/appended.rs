//! Signature appended to a module, in the kernel's format.
//!
//! ```text
//! the module | PKCS#7 message | struct module_signature (12 bytes) | "~Module signature appended~\n"
//! ```
//!
//! The struct (include/linux/module_signature.h): algorithm, hash, id type, signer's name length,
//! key id length, three bytes of padding, and the length of the message as a big-endian u32. For
//! PKCS#7 all but the id type (2) and that length are zero (scripts/sign-file.c; mod_check_sig in
//! kernel/module_signature.c refuses others).

/// End marker of a module file with a signature.
pub(crate) const MARKER: &[u8] = b"~Module signature appended~\n";
/// Size of the kernel's `struct module_signature`.
const STRUCT: usize = 12;
/// `PKEY_ID_PKCS7`.
const PKCS7: u8 = 2;

/// Error of a file that ends like a signed module and cannot be split.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Malformed {
    /// A kind of signature that current kernels refuse.
    #[error("its signature is not PKCS#7 (id type {0})")]
    NotPkcs7(u8),
    /// A field that must be zero is not.
    #[error("the fields before its signature's length are not zero")]
    Fields,
    /// The message would begin before the file.
    #[error("its signature claims to have {0} bytes, more than the file")]
    TooLong(u64),
}

/// Appends `message` to `module`: byte for byte what the kernel's sign-file writes.
pub fn append(module: &[u8], message: &[u8]) -> Vec<u8> {
    let mut signed = Vec::with_capacity(module.len() + message.len() + STRUCT + MARKER.len());
    signed.extend_from_slice(module);
    signed.extend_from_slice(message);
    signed.extend_from_slice(&[0, 0, PKCS7, 0, 0, 0, 0, 0]);
    // A PKCS#7 message of four gigabytes does not exist; sizes are checked when they are read.
    signed.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    signed.extend_from_slice(MARKER);
    signed
}

/// Returns the module and the PKCS#7 message appended to it, if there is one.
///
/// # Errors
/// An error where the file ends with the marker and the bytes before it are invalid.
pub fn split(file: &[u8]) -> Result<(&[u8], Option<&[u8]>), Malformed> {
    let Some(rest) = file.strip_suffix(MARKER) else { return Ok((file, None)) };
    let Some((rest, fields)) = rest.split_last_chunk::<STRUCT>() else {
        return Err(Malformed::TooLong(STRUCT as u64));
    };
    let [algorithm, hash, id_type, signer, key_id, pad @ .., a, b, c, d] = *fields;
    if id_type != PKCS7 {
        return Err(Malformed::NotPkcs7(id_type));
    }
    if [algorithm, hash, signer, key_id] != [0; 4] || pad != [0; 3] {
        return Err(Malformed::Fields);
    }
    let length = u32::from_be_bytes([a, b, c, d]);
    let at = rest.len().checked_sub(length as usize).filter(|at| *at > 0);
    let Some(at) = at else { return Err(Malformed::TooLong(length.into())) };
    let (module, message) = rest.split_at(at);
    Ok((module, Some(message)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[test]
    fn what_was_appended_is_taken_off_again() {
        let signed = append(b"module", b"message");
        assert_eq!(split(&signed), Ok((&b"module"[..], Some(&b"message"[..]))));
        assert_eq!(&signed[13..25], &[0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    }

    #[test]
    fn without_a_marker_there_is_no_signature() {
        assert_eq!(split(b"module"), Ok((&b"module"[..], None)));
    }

    fn ended(before: &[u8]) -> Vec<u8> {
        [before, MARKER].concat()
    }

    #[rstest]
    #[case::nothing_before(b"", Malformed::TooLong(12))]
    #[case::too_long(&[1, 2, 3, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 4], Malformed::TooLong(4))]
    #[case::nothing_left(&[1, 2, 3, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 3], Malformed::TooLong(3))]
    #[case::pgp(&[9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], Malformed::NotPkcs7(0))]
    #[case::a_name(&[9, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0], Malformed::Fields)]
    fn nonsense_is_refused(#[case] before: &[u8], #[case] wanted: Malformed) {
        assert_eq!(split(&ended(before)), Err(wanted));
    }

    proptest! {
        #[test]
        fn arbitrary_ends_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = split(&ended(&bytes));
        }
    }
}
