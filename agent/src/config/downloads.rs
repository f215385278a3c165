//! Time limits of downloads.

use std::time::Duration;

use serde::Deserialize;

use super::deadlines::{SECOND, from_a_second};
use super::values::Span;

/// Time limits of downloads (docs/downloads.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Downloads {
    /// Until a connection is established.
    pub connect: Duration,
    /// Until the next bytes arrive.
    pub stall: Duration,
    /// For a server that reports that it is busy, all attempts together.
    pub busy: Duration,
}

impl Default for Downloads {
    fn default() -> Self {
        let [connect, stall, busy] = [10, 30, 90].map(Duration::from_secs);
        Self { connect, stall, busy }
    }
}

/// Download settings of one configuration layer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct DownloadFragment {
    /// Time limit for connecting to a server (at least 1s)
    #[arg(id = "download-connect", long, global = true, value_name = "SPAN", value_parser = from_a_second)]
    pub connect: Option<Span>,
    /// Abort a transfer that stays below 8 KiB/s for this long (at least 1s)
    #[arg(id = "download-stall", long, global = true, value_name = "SPAN", value_parser = from_a_second)]
    pub stall: Option<Span>,
    /// Time limit for retrying a server that reports that it is busy (5xx, 429)
    #[arg(id = "download-busy", long, global = true, value_name = "SPAN")]
    pub busy: Option<Span>,
}

impl DownloadFragment {
    /// Returns this fragment, with unset settings taken from `below`.
    pub(super) fn over(self, below: Self) -> Self {
        Self {
            connect: self.connect.or(below.connect),
            stall: self.stall.or(below.stall),
            busy: self.busy.or(below.busy),
        }
    }

    pub(super) fn settle(self) -> Downloads {
        let Downloads { connect, stall, busy } = Downloads::default();
        let or = |span: Option<Span>, default| span.map_or(default, Span::duration);
        Downloads {
            connect: or(self.connect, connect).max(SECOND),
            stall: or(self.stall, stall).max(SECOND),
            busy: or(self.busy, busy),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(above: &str, below: &str) -> Downloads {
        let [above, below]: [DownloadFragment; 2] =
            [above, below].map(|text| toml::from_str(text).expect("a fragment"));
        above.over(below).settle()
    }

    #[test]
    fn what_is_said_goes_over_what_is_below_and_the_rest_has_defaults() {
        assert_eq!(settled("", ""), Downloads::default());
        let wanted = Downloads {
            connect: Duration::from_secs(5),
            stall: Duration::from_secs(300),
            ..Downloads::default()
        };
        assert_eq!(settled("stall = '5m'", "stall = '1m'\nconnect = '5s'"), wanted);
    }

    #[test]
    fn the_page_about_deadlines_has_the_defaults() {
        let Downloads { connect, stall, busy } = Downloads::default();
        for span in [connect, stall, busy] {
            crate::config::assert_in_page("| Downloads |", span);
        }
    }

    #[test]
    fn no_server_is_given_no_time() {
        assert_eq!(
            settled("connect = '0s'\nstall = '0s'\nbusy = '0s'", ""),
            Downloads { connect: SECOND, stall: SECOND, busy: Duration::ZERO }
        );
    }
}
