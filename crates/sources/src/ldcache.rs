//! The loader's cache, `etc/ld.so.cache`, as glibc 2.2 and newer read it.
//!
//! Format: glibc's sysdeps/generic/dl-cache.h (`struct cache_file_new`), without the optional
//! extension section. Container runtimes read this file under the driver root to find libraries.

use std::cmp::Ordering;

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER: usize = 48;
const ENTRY: usize = 24;
/// dl-cache.h: `cache_file_new_flags_endian_little`.
const LITTLE_ENDIAN: u8 = 2;
/// `FLAG_ELF_LIBC6`.
const ELF_LIBC6: u32 = 0x0003;

/// A library that the loader can find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    /// Name under which it is looked up, for example `libcuda.so.1`.
    pub name: String,
    /// Absolute path as seen from inside the root.
    pub path: String,
}

/// Encodes the cache for these libraries, all of one architecture; `arch_flags` is its `FLAG_*` of
/// dl-cache.h, for example 0x0300 for x86-64. None if it would exceed its 32-bit offsets.
pub fn encode(libraries: &[Library], arch_flags: u32) -> Option<Vec<u8>> {
    let mut sorted: Vec<&Library> = libraries.iter().collect();
    // The loader's binary search expects descending names.
    sorted.sort_by(|a, b| order(b.name.as_bytes(), a.name.as_bytes()).then(a.path.cmp(&b.path)));
    let strings_at = HEADER + ENTRY * sorted.len();
    let mut strings = Vec::new();
    let mut add = |text: &str| {
        let at = u32::try_from(strings_at + strings.len()).ok();
        strings.extend_from_slice(text.as_bytes());
        strings.push(0);
        at
    };
    let mut entries = Vec::with_capacity(ENTRY * sorted.len());
    for library in &sorted {
        let (key, value) = (add(&library.name)?, add(&library.path)?);
        for word in [ELF_LIBC6 | arch_flags, key, value, 0 /* osversion, unused */] {
            entries.extend_from_slice(&word.to_le_bytes());
        }
        entries.extend_from_slice(&0u64.to_le_bytes()); // hwcap: any processor
    }
    let mut cache = MAGIC.to_vec();
    cache.extend_from_slice(&u32::try_from(sorted.len()).ok()?.to_le_bytes());
    cache.extend_from_slice(&u32::try_from(strings.len()).ok()?.to_le_bytes());
    cache.extend_from_slice(&[LITTLE_ENDIAN, 0, 0, 0]);
    cache.resize(HEADER, 0); // no extension, and three words unused
    cache.extend_from_slice(&entries);
    cache.extend_from_slice(&strings);
    Some(cache)
}

/// Compares names as `_dl_cache_libcmp` does: digits compare as numbers and sort after everything
/// else.
fn order(mut a: &[u8], mut b: &[u8]) -> Ordering {
    loop {
        let (x, y) = match (a.first(), b.first()) {
            (Some(x), Some(y)) => (*x, *y),
            (x, y) => return x.is_some().cmp(&y.is_some()),
        };
        match (x.is_ascii_digit(), y.is_ascii_digit()) {
            (true, true) => {
                let (m, n) = (number(&mut a), number(&mut b));
                if m != n {
                    return m.cmp(&n);
                }
            }
            (true, false) => return Ordering::Greater,
            (false, true) => return Ordering::Less,
            (false, false) if x != y => return x.cmp(&y),
            (false, false) => (a, b) = (&a[1..], &b[1..]),
        }
    }
}

/// Removes the number at the start; wraps on overflow, as the loader's does.
fn number(text: &mut &[u8]) -> u32 {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = text.split_at(digits);
    *text = rest;
    number.iter().fold(0u32, |n, digit| n.wrapping_mul(10).wrapping_add(u32::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("liba.so.1", "liba.so.1", Ordering::Equal)]
    #[case("liba.so.2", "liba.so.10", Ordering::Less)]
    #[case("liba.so.1", "liba.so", Ordering::Greater)]
    #[case("lib1.so", "liba.so", Ordering::Greater)]
    #[case("libnvidia-ml.so.1", "libnvidia-ml.so.x", Ordering::Greater)]
    #[case("libcuda.so.1", "libnvidia-ml.so.1", Ordering::Less)]
    fn names_are_ordered_as_the_loader_orders_them(
        #[case] a: &str,
        #[case] b: &str,
        #[case] expected: Ordering,
    ) {
        assert_eq!(order(a.as_bytes(), b.as_bytes()), expected);
        assert_eq!(order(b.as_bytes(), a.as_bytes()), expected.reverse());
    }

    fn word(cache: &[u8], at: usize) -> usize {
        let bytes = cache[at..at + 4].try_into().expect("four bytes");
        usize::try_from(u32::from_le_bytes(bytes)).expect("fits")
    }

    fn text(cache: &[u8], at: usize) -> &str {
        let end = cache[at..].iter().position(|&b| b == 0).expect("ends");
        std::str::from_utf8(&cache[at..at + end]).expect("text")
    }

    #[test]
    fn a_cache_holds_every_library_in_descending_order() {
        let library = |name: &str| Library { name: name.into(), path: format!("/usr/lib/{name}") };
        let names = ["libcuda.so.1", "libnvidia-ml.so.1", "libcuda.so"];
        let libraries: Vec<_> = names.iter().map(|name| library(name)).collect();
        let cache = encode(&libraries, 0x0300).expect("encoded");
        assert!(cache.starts_with(b"glibc-ld.so.cache1.1"));
        assert_eq!(word(&cache, 20), 3);
        assert_eq!(cache.len(), HEADER + 3 * ENTRY + word(&cache, 24));
        let read: Vec<_> = (0..3)
            .map(|i| HEADER + i * ENTRY)
            .map(|at| {
                (
                    word(&cache, at),
                    text(&cache, word(&cache, at + 4)),
                    text(&cache, word(&cache, at + 8)),
                )
            })
            .collect();
        assert_eq!(
            read,
            [
                (0x0303, "libnvidia-ml.so.1", "/usr/lib/libnvidia-ml.so.1"),
                (0x0303, "libcuda.so.1", "/usr/lib/libcuda.so.1"),
                (0x0303, "libcuda.so", "/usr/lib/libcuda.so"),
            ]
        );
    }

    #[test]
    fn an_empty_cache_is_a_header() {
        assert_eq!(encode(&[], 0x0300).expect("encoded").len(), HEADER);
    }
}
