//! Labels of the node.

use serde_json::{Map, Value, json};

use super::NodeStatus;
use crate::names::{DRIVER_VERSION, FLAVOUR, NEXT_KERNEL, NODE_LABELS, STATE};
use crate::text::{in_line, label_value};

/// Returns the labels; null for one that is not known, or that no label can hold.
pub(super) fn labels(status: &NodeStatus) -> Value {
    let labels = NODE_LABELS.into_iter().map(|key| {
        let text = text_of(key, status);
        let value = text.and_then(label_value);
        if let (Some(text), None) = (text, &value) {
            tracing::debug!("{key} is left out: `{}` has no letter or digit", in_line(text, 60));
        }
        (key.to_owned(), json!(value))
    });
    Value::Object(labels.collect::<Map<_, _>>())
}

fn text_of<'a>(key: &str, status: &'a NodeStatus) -> Option<&'a str> {
    match key {
        DRIVER_VERSION => status.live.as_deref(),
        FLAVOUR => status.flavour.as_deref().filter(|_| status.live.is_some()),
        STATE => Some(&status.phase),
        NEXT_KERNEL => {
            let next = status.next_kernel.as_ref()?;
            Some(if next.ready { "ready" } else { "missing" })
        }
        _ => None,
    }
}
