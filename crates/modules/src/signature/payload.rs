//! Signed payload in the "simple signing" format, as cosign uses it (its SIGNATURE_SPEC.md).

use serde::{Deserialize, Serialize};

use longshore_core::failure::{Failure, FailureKind, OrFail};

/// `critical.type` of cosign's signatures.
const KIND: &str = "cosign container image signature";

/// The payload. Its fields are written in this order, as cosign writes them.
#[derive(Debug, Serialize, Deserialize)]
struct Payload {
    critical: Critical,
    #[serde(default)]
    optional: serde_json::Value,
}

#[derive(Debug, Serialize, Deserialize)]
struct Critical {
    identity: Identity,
    image: Image,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Identity {
    #[serde(rename = "docker-reference")]
    docker_reference: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Image {
    #[serde(rename = "docker-manifest-digest")]
    docker_manifest_digest: String,
}

/// Returns the bytes to sign for the manifest with `digest` (`sha256:...`) in the repository
/// `name`.
///
/// # Errors
/// Exit code 70; strings can always be serialized.
pub fn payload(name: &str, digest: &str) -> Result<String, Failure> {
    let payload = Payload {
        critical: Critical {
            identity: Identity { docker_reference: name.to_owned() },
            image: Image { docker_manifest_digest: digest.to_owned() },
            kind: KIND.to_owned(),
        },
        optional: serde_json::Value::Null,
    };
    serde_json::to_string(&payload).or_fail(FailureKind::Bug, || "writing a signature's payload")
}

/// Returns the digest of the manifest that a payload names. The repository in it is ignored: a
/// mirror serves the same set under another name, and the digest identifies the set.
///
/// # Errors
/// A text that describes the fault of the payload.
pub fn digest_in(payload: &str) -> Result<String, String> {
    let payload: Payload =
        serde_json::from_str(payload).map_err(|e| format!("its payload cannot be read: {e}"))?;
    if payload.critical.kind != KIND {
        return Err(format!("its payload is of the type {:?}", payload.critical.kind));
    }
    Ok(payload.critical.image.docker_manifest_digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn the_payload_is_cosigns_byte_for_byte() {
        // Field by field as in SIGNATURE_SPEC.md, without spaces, as cosign's encoder writes it.
        let digest = "sha256:9494e567c7c44e8b9f8808c1658a47c9b7979ef3cceef10f48754fc2706802ba";
        let text = payload("registry.example.com/nvidia/modules", digest).expect("writes");
        let wanted = concat!(
            r#"{"critical":{"identity":{"docker-reference":"registry.example.com/nvidia/modules"},"#,
            r#""image":{"docker-manifest-digest":"#,
            r#""sha256:9494e567c7c44e8b9f8808c1658a47c9b7979ef3cceef10f48754fc2706802ba"},"#,
            r#""type":"cosign container image signature"},"optional":null}"#,
        );
        assert_eq!(text, wanted);
        assert_eq!(digest_in(&text).as_deref(), Ok(digest));
    }

    #[rstest]
    #[case::annotated(
        r#"{"critical":{"identity":{"docker-reference":""},"image":{"docker-manifest-digest":"d"},"type":"cosign container image signature"},"optional":{"creator":"x","timestamp":1}}"#,
        Some("d")
    )]
    #[case::no_optional(
        r#"{"critical":{"identity":{"docker-reference":"a"},"image":{"docker-manifest-digest":"d"},"type":"cosign container image signature"}}"#,
        Some("d")
    )]
    #[case::other_type(
        r#"{"critical":{"identity":{"docker-reference":"a"},"image":{"docker-manifest-digest":"d"},"type":"atomic container signature"}}"#,
        None
    )]
    #[case::no_digest(r#"{"critical":{"identity":{},"image":{},"type":"x"}}"#, None)]
    #[case::twice(
        r#"{"critical":{"identity":{"docker-reference":"a"},"image":{"docker-manifest-digest":"d","docker-manifest-digest":"e"},"type":"cosign container image signature"}}"#,
        None
    )]
    #[case::nothing("", None)]
    fn payloads(#[case] text: &str, #[case] expected: Option<&str>) {
        assert_eq!(digest_in(text).ok().as_deref(), expected);
    }
}
