//! Parts of a report, each with its value on the node and the time of its next call.

use std::collections::BTreeMap;

use serde_json::Value;
use tokio::time::Instant;

use super::options::Options;
use crate::client::{Limits, Pauses};
use crate::error::ApiErrorKind;

/// Number of namespaces whose refusals are remembered.
const MOST_NAMESPACES: usize = 64;

/// A part of the report: its value on the node, and the time of its next call.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) written: Option<Value>,
    /// Time of the next call: of the heartbeat, or after a refusal.
    pub(super) next: Option<Instant>,
    refused: bool,
    /// Pauses after answers that the object is missing, which an API server that was just started gives too.
    missing: Option<Pauses>,
}

impl Part {
    pub(super) fn is_due(&self, wanted: &Value, now: Instant) -> bool {
        let waits = self.next.is_some_and(|next| now < next);
        match self.refused {
            true => !waits,
            false => !waits || self.written.as_ref() != Some(wanted),
        }
    }

    /// True after a refusal, for a while.
    pub(super) fn is_left_out(&self) -> bool {
        self.refused && self.next.is_some_and(|next| Instant::now() < next)
    }

    pub(super) fn wrote(&mut self, value: Value, next: Instant) {
        *self = Self { written: Some(value), next: Some(next), ..Self::default() };
    }

    /// Leaves the part out for a while: after a missing object for growing pauses, else for that of a refusal.
    pub(super) fn refuse(&mut self, kind: ApiErrorKind, options: &Options) {
        let pause = match kind {
            ApiErrorKind::Missing => {
                let pauses = self.missing.get_or_insert_with(|| {
                    let (first_pause, longest_pause) = (options.missing, options.heartbeat);
                    Limits { first_pause, longest_pause, ..Limits::default() }.pauses()
                });
                pauses.next_pause()
            }
            _ => options.refused,
        };
        (self.refused, self.next) = (true, Some(Instant::now() + pause));
    }
}

/// Refused events about pods, by their namespaces: a refusal in one says nothing about the others.
#[derive(Debug, Default)]
pub(super) struct RefusedNamespaces(BTreeMap<String, Part>);

impl RefusedNamespaces {
    pub(super) fn is_left_out(&self, namespace: &str) -> bool {
        self.0.get(namespace).is_some_and(Part::is_left_out)
    }

    /// Forgets a refusal: the namespace takes events again.
    pub(super) fn accept(&mut self, namespace: &str) {
        self.0.remove(namespace);
    }

    /// Leaves a namespace out for a while. Of too many the one is forgotten whose time comes first.
    pub(super) fn refuse(&mut self, namespace: &str, kind: ApiErrorKind, options: &Options) {
        if !self.0.contains_key(namespace) && self.0.len() >= MOST_NAMESPACES {
            let first = self.0.iter().min_by_key(|(_, part)| part.next);
            if let Some(name) = first.map(|(name, _)| name.clone()) {
                self.0.remove(&name);
            }
        }
        self.0.entry(namespace.to_owned()).or_default().refuse(kind, options);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pauses_after_a_missing_object_grow_and_that_of_a_refusal_is_long() {
        let (options, mut part) = (Options::default(), Part::default());
        let mut pause = |kind| {
            part.refuse(kind, &options);
            part.next.unwrap() - Instant::now()
        };
        let first = options.missing;
        for most in [first, 2 * first, 4 * first, 8 * first] {
            let pause = pause(ApiErrorKind::Missing);
            assert!(pause <= most && pause > most / 3, "{pause:?} of {most:?}");
        }
        for _ in 0..20 {
            assert!(pause(ApiErrorKind::Missing) <= options.heartbeat);
        }
        assert!(pause(ApiErrorKind::Forbidden) > options.refused / 2);
        part.wrote(Value::Null, Instant::now());
        part.refuse(ApiErrorKind::Missing, &options);
        assert!(part.next.unwrap() - Instant::now() <= first, "it begins anew");
    }

    #[test]
    fn so_many_namespaces_are_remembered_and_no_more() {
        let (options, mut refused) = (Options::default(), RefusedNamespaces::default());
        for n in 0..2 * MOST_NAMESPACES {
            refused.refuse(&n.to_string(), ApiErrorKind::Forbidden, &options);
        }
        assert_eq!(refused.0.len(), MOST_NAMESPACES);
        assert!(refused.is_left_out(&(2 * MOST_NAMESPACES - 1).to_string()));
        assert!(!refused.is_left_out("0"), "the oldest is forgotten");
        let last = (2 * MOST_NAMESPACES - 1).to_string();
        refused.accept(&last);
        assert!(!refused.is_left_out(&last));
    }
}
