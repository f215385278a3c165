//! Metrics as text: OpenMetrics 1.0 for clients that request it, Prometheus' own format for all
//! others.
//!
//! The two formats name a counter's family differently and cannot be combined in one text
//! (<https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md>,
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>).

use std::fmt::Write;

use longshore_core::sanitize::in_line;

/// Text format of the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Prometheus,
}

impl Format {
    /// Returns the format for a client's Accept header.
    pub fn accepted(accept: &str) -> Self {
        // Media types are written in either case (RFC 9110, 8.3.1).
        let kind = |part: &str| part.split(';').next().unwrap_or_default().trim().to_lowercase();
        let open = accept.split(',').any(|p| kind(p) == "application/openmetrics-text");
        if open { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// Returns the Content-Type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Kind of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricType {
    /// It goes up and down.
    Gauge,
    /// It only goes up; its samples are named `NAME_total`.
    Counter,
    /// Descriptive labels, with the value 1; its samples are named `NAME_info`.
    Info,
}

/// A family of metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// Name, without `_total` or `_info` behind.
    pub name: &'static str,
    /// Its kind.
    pub kind: MetricType,
    /// The unit that the name ends with, or empty.
    pub unit: &'static str,
    /// Description, in a sentence without a full stop.
    pub help: &'static str,
    /// Its samples.
    pub samples: Vec<Sample>,
}

/// One value with its labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Names and values.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: f64,
}

/// Writes families; leaves out those without a sample.
pub fn write(families: &[Family], format: Format) -> String {
    let mut text = String::with_capacity(8 << 10);
    for family in families.iter().filter(|family| !family.samples.is_empty()) {
        // Writing to a string does not fail.
        let _ = write_family(&mut text, family, format);
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

fn write_family(text: &mut String, family: &Family, format: Format) -> std::fmt::Result {
    let suffix = match family.kind {
        MetricType::Gauge => "",
        MetricType::Counter => "_total",
        MetricType::Info => "_info",
    };
    let (kind, of_family) = match (format, family.kind) {
        (Format::OpenMetrics, MetricType::Gauge) => ("gauge", ""),
        (Format::OpenMetrics, MetricType::Counter) => ("counter", ""),
        (Format::OpenMetrics, MetricType::Info) => ("info", ""),
        (Format::Prometheus, MetricType::Counter) => ("counter", suffix),
        (Format::Prometheus, _) => ("gauge", suffix),
    };
    let name = family.name;
    writeln!(text, "# TYPE {name}{of_family} {kind}")?;
    if format == Format::OpenMetrics && !family.unit.is_empty() {
        writeln!(text, "# UNIT {name} {}", family.unit)?;
    }
    writeln!(text, "# HELP {name}{of_family} {}.", family.help)?;
    for sample in &family.samples {
        write!(text, "{name}{suffix}")?;
        for (at, (label, value)) in sample.labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            write!(text, "{before}{label}=\"{}\"", escaped(value))?;
        }
        let after = if sample.labels.is_empty() { "" } else { "}" };
        writeln!(text, "{after} {}", sample.value)?;
    }
    Ok(())
}

/// Longest value of a label, in characters: a longer one is cut.
const LONGEST: usize = 200;

/// Returns a label's value as the formats have it. Some are texts of the host: a module's version, a path.
fn escaped(value: &str) -> String {
    let cut: String = value.chars().take(LONGEST).collect();
    in_line(&cut).replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn families() -> Vec<Family> {
        let one = |labels, value| vec![Sample { labels, value }];
        let family = |name, kind, unit, samples| Family { name, kind, unit, help: "H", samples };
        vec![
            family("longshore_ready", MetricType::Gauge, "", one(vec![], 1.0)),
            family(
                "longshore_fetched_bytes",
                MetricType::Counter,
                "bytes",
                one(vec![("a", "\"\\\n".into())], 1.5),
            ),
            family(
                "longshore_build",
                MetricType::Info,
                "",
                one(vec![("a", "1".into()), ("b", "2".into())], 1.0),
            ),
            family("longshore_nothing", MetricType::Gauge, "", Vec::new()),
        ]
    }

    #[test]
    fn open_metrics() {
        let expected = "\
# TYPE longshore_ready gauge
# HELP longshore_ready H.
longshore_ready 1
# TYPE longshore_fetched_bytes counter
# UNIT longshore_fetched_bytes bytes
# HELP longshore_fetched_bytes H.
longshore_fetched_bytes_total{a=\"\\\"\\\\\\\\n\"} 1.5
# TYPE longshore_build info
# HELP longshore_build H.
longshore_build_info{a=\"1\",b=\"2\"} 1
# EOF
";
        assert_eq!(write(&families(), Format::OpenMetrics), expected);
    }

    #[test]
    fn prometheus() {
        let expected = "\
# TYPE longshore_ready gauge
# HELP longshore_ready H.
longshore_ready 1
# TYPE longshore_fetched_bytes_total counter
# HELP longshore_fetched_bytes_total H.
longshore_fetched_bytes_total{a=\"\\\"\\\\\\\\n\"} 1.5
# TYPE longshore_build_info gauge
# HELP longshore_build_info H.
longshore_build_info{a=\"1\",b=\"2\"} 1
";
        assert_eq!(write(&families(), Format::Prometheus), expected);
    }

    #[rstest]
    #[case("", Format::Prometheus)]
    #[case("*/*", Format::Prometheus)]
    #[case("text/plain", Format::Prometheus)]
    #[case("application/openmetrics-text", Format::OpenMetrics)]
    #[case("Application/OpenMetrics-Text; version=1.0.0", Format::OpenMetrics)]
    #[case(
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        Format::OpenMetrics
    )]
    fn who_asks_for_open_metrics_gets_them(#[case] accept: &str, #[case] wanted: Format) {
        assert_eq!(Format::accepted(accept), wanted);
    }

    #[rstest]
    #[case("a\"} 1\nlongshore_ready 1 #", "a\\\"} 1\\\\nlongshore_ready 1 #")]
    #[case("\\", "\\\\")]
    #[case("a\r\u{1b}[2J\u{2028}", "a\\\\r\\\\u{1b}[2J\\\\u{2028}")]
    fn a_hostile_value_stays_in_its_label(#[case] value: &str, #[case] wanted: &str) {
        assert_eq!(escaped(value), wanted);
        assert_eq!(escaped(&value.repeat(LONGEST)).lines().count(), 1);
    }

    #[test]
    fn a_long_value_is_cut() {
        assert_eq!(escaped(&"ü".repeat(LONGEST + 1)), "ü".repeat(LONGEST));
    }
}
