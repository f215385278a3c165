//! Time limits of downloads.

use super::layer::settings;
use super::second_or_more::SecondOrMore;
use super::values::BoundedDuration;
use longshore_fetch::http::Downloads;

settings! {
    /// Download settings of one configuration layer.
    DownloadFragment;

    /// Time limit for connecting to a server
    ///
    /// At least `1s`: [downloads.md](../supply-chain/downloads.md).
    connect: Option<SecondOrMore>;
        key "connect" flag "download-connect" "SPAN" env "LONGSHORE_DOWNLOAD_CONNECT"
        default "`10s`"
    /// Time limit for a transfer that stays below 8 KiB/s
    ///
    /// It is aborted then; at least `1s`.
    stall: Option<SecondOrMore>;
        key "stall" flag "download-stall" "SPAN" env "LONGSHORE_DOWNLOAD_STALL"
        default "`30s`"
    /// Time limit for retrying a server that is busy (5xx, 429)
    busy: Option<BoundedDuration>;
        key "busy" flag "download-busy" "SPAN" env "LONGSHORE_DOWNLOAD_BUSY"
        default "`1m30s`"
}

impl DownloadFragment {
    pub(super) fn with_defaults(self) -> Downloads {
        let Downloads { connect, stall, busy } = Downloads::default();
        Downloads {
            connect: self.connect.map_or(connect, SecondOrMore::duration),
            stall: self.stall.map_or(stall, SecondOrMore::duration),
            busy: self.busy.map_or(busy, BoundedDuration::duration),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::layer::Over;

    fn merged(above: &str, below: &str) -> Downloads {
        let [above, below]: [DownloadFragment; 2] =
            [above, below].map(|text| toml::from_str(text).expect("a fragment"));
        above.over(below).with_defaults()
    }

    #[test]
    fn what_is_said_goes_over_what_is_below_and_the_rest_has_defaults() {
        assert_eq!(merged("", ""), Downloads::default());
        let wanted = Downloads {
            connect: Duration::from_secs(5),
            stall: Duration::from_secs(300),
            ..Downloads::default()
        };
        assert_eq!(merged("stall = '5m'", "stall = '1m'\nconnect = '5s'"), wanted);
    }

    #[test]
    fn the_page_about_deadlines_has_the_defaults() {
        let Downloads { connect, stall, busy } = Downloads::default();
        for span in [connect, stall, busy] {
            longshore_core::testing::assert_in_page("| Downloads |", span);
        }
    }

    #[test]
    fn no_server_is_given_no_time() {
        let second = Duration::from_secs(1);
        assert_eq!(
            merged("connect = '0s'\nstall = '0s'\nbusy = '0s'", ""),
            Downloads { connect: second, stall: second, busy: Duration::ZERO }
        );
    }
}
