//! Lines of the log in JSON: the event's own fields, then those of its spans, then those of every line.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Map, Value};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Json, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

use super::about::About;

/// Format of a line. Of fields with one name the innermost counts: a compile for another kernel has that kernel.
pub(super) struct JsonLine {
    format: Format<Json>,
    about: About,
}

impl JsonLine {
    pub(super) fn new(about: &About) -> Self {
        let format = tracing_subscriber::fmt::format().with_target(false).json();
        let format = format.flatten_event(true).with_current_span(false).with_span_list(false);
        Self { format, about: about.clone() }
    }
}

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.format.format_event(context, Writer::new(&mut line), event)?;
        let Some(own) = line.strip_suffix("}\n") else { return writer.write_str(&line) };
        writer.write_str(own)?;
        let of_event = event.metadata().fields().iter().map(|field| field.name().to_owned());
        let mut written: BTreeSet<String> = of_event.collect();
        let mut add = |key: String, value: &Value| -> fmt::Result {
            if written.contains(&key) {
                return Ok(());
            }
            write!(writer, ",{}:{value}", Value::from(key.as_str()))?;
            written.insert(key);
            Ok(())
        };
        for span in context.event_scope().into_iter().flatten() {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<N>>();
            let fields = fields.and_then(|text| serde_json::from_str::<Map<_, _>>(text).ok());
            for (key, value) in fields.unwrap_or_default() {
                add(key, &value)?;
            }
        }
        for (key, value) in self.about.fields() {
            add(key.to_owned(), &value.into())?;
        }
        writer.write_str("}\n")
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tracing_subscriber::fmt::format::JsonFields;

    use super::super::tests::Written;
    use super::*;

    /// Returns the lines of what `say` logs in a pod, without times.
    fn lines(driver: Option<&str>, say: impl FnOnce()) -> Vec<Map<String, Value>> {
        let about = About::default();
        about.read(&|name| match name {
            "NODE_NAME" => Some("gpu-1".to_owned()),
            "POD_NAMESPACE" => Some("longshore".to_owned()),
            "POD_NAME" => Some("longshore-\"x\"".to_owned()),
            _ => None,
        });
        if let Some(version) = driver {
            about.set_driver(version);
        }
        let written = Written::default();
        let writer = written.clone();
        let log = tracing_subscriber::fmt()
            .fmt_fields(JsonFields::new())
            .event_format(JsonLine::new(&about))
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(log, say);
        let text = String::from_utf8(written.0.lock().expect("lock").clone()).expect("text");
        let parsed =
            |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        text.lines().map(parsed).collect()
    }

    fn kernel() -> String {
        let host = nix::sys::utsname::uname().expect("uname");
        host.release().to_string_lossy().into_owned()
    }

    #[test]
    fn every_line_has_program_node_pod_kernel_and_driver() {
        let lines = lines(Some("535.1"), || {
            tracing::info!("one");
            tracing::warn!(code = %"peermem-missing", "two");
        });
        assert_eq!(lines.len(), 2);
        for line in &lines {
            let of = |key: &str| line[key].as_str().unwrap_or_default();
            assert_eq!(
                [of("version"), of("node"), of("namespace"), of("pod"), of("driver")],
                [env!("CARGO_PKG_VERSION"), "gpu-1", "longshore", "longshore-\"x\"", "535.1"]
            );
            assert_eq!(of("kernel"), kernel());
            assert!(line.contains_key("timestamp") && line.contains_key("level"), "{line:?}");
        }
        assert_eq!(
            (&lines[1]["code"], &lines[1]["message"]),
            (&"peermem-missing".into(), &"two".into())
        );
    }

    #[rstest]
    #[case::of_the_line("driver", || tracing::info!(driver = "550.1", "x"), "550.1")]
    #[case::of_the_span("driver", || tracing::error_span!("s", driver = "550.1").in_scope(|| tracing::info!("x")), "550.1")]
    #[case::of_the_line_before_the_span("driver", || {
        tracing::error_span!("s", driver = "550.1").in_scope(|| tracing::info!(driver = "555.1", "x"));
    }, "555.1")]
    #[case::of_the_inner_span("kernel", || {
        let outer = tracing::error_span!("a", kernel = "6.1").entered();
        tracing::error_span!("b", kernel = "6.12").in_scope(|| tracing::info!("x"));
        drop(outer);
    }, "6.12")]
    #[case::of_both_spans("step", || {
        let outer = tracing::error_span!("a", step = "load-module").entered();
        tracing::error_span!("b", kernel = "6.12").in_scope(|| tracing::info!("x"));
        drop(outer);
    }, "load-module")]
    #[case::after_the_span("driver", || {
        tracing::error_span!("s", driver = "550.1").in_scope(|| ());
        tracing::info!("x");
    }, "535.1")]
    fn the_innermost_field_counts(#[case] key: &str, #[case] say: fn(), #[case] wanted: &str) {
        let lines = lines(Some("535.1"), say);
        assert_eq!(lines[0][key], wanted, "{lines:?}");
    }

    #[test]
    fn an_unknown_driver_is_left_out() {
        let lines = lines(None, || tracing::info!("x"));
        assert!(!lines[0].contains_key("driver"), "{lines:?}");
    }

    #[test]
    fn hostile_text_stays_in_its_field() {
        let said = "\"}\n{\"exit_code\":0}\u{1b}[2J";
        let lines = lines(Some(said), || tracing::warn!(%said, "x"));
        assert_eq!(
            (lines.len(), &lines[0]["driver"], &lines[0]["said"]),
            (1, &said.into(), &said.into())
        );
    }
}
