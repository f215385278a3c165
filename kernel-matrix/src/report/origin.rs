//! Origin of a page: the command that made it, and links to its sources.

use std::str::FromStr;

/// Origin of a page.
#[derive(Debug, Default, Clone)]
pub(crate) struct Origin {
    /// Links, in their order.
    pub links: Vec<Link>,
    /// The command; empty if it is not known.
    pub command: String,
}

/// A link on the page: `NAME=ADDRESS`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    /// Name that is shown.
    pub name: String,
    /// A relative address, or one that begins with https://.
    pub address: String,
}

impl FromStr for Link {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, address) = text.split_once('=').ok_or("NAME=ADDRESS is expected")?;
        if name.is_empty() || address.is_empty() {
            return Err("NAME=ADDRESS is expected".into());
        }
        if address.contains(':') && !address.starts_with("https://") {
            return Err("the address is neither relative nor begins with https://".into());
        }
        Ok(Self { name: name.into(), address: address.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_runs_no_script() {
        for (text, expected) in [
            ("lock=a/b.lock", Some("a/b.lock")),
            ("a=https://example.com/?b=c", Some("https://example.com/?b=c")),
            ("a=javascript:alert(1)", None),
            ("a=http://example.com", None),
            ("a=", None),
            ("=b", None),
            ("a", None),
        ] {
            let link = text.parse::<Link>().ok();
            assert_eq!(link.as_ref().map(|link| link.address.as_str()), expected, "{text}");
        }
    }
}
