use super::*;
use rstest::rstest;

#[rstest]
#[case("535.261.03-open-6.1.0-50-amd64-x86_64", Some("535"), None, true)]
#[case("535.261.03-open-6.1.0-50-amd64-x86_64", None, Some(Flavour::Open), true)]
#[case("535.261.03-open-6.1.0-50-amd64-x86_64", None, Some(Flavour::Proprietary), false)]
#[case("535.261.03-proprietary-6.1.0-50-amd64-x86_64", Some("535.261"), None, true)]
#[case("550.163.01-open-6.1.0-50-amd64-x86_64", Some("535"), None, false)]
#[case("5350.1.1-open-6.1.0-50-amd64-x86_64", Some("535"), None, false)]
#[case("535.261.03-open-6.1.0-51-amd64-x86_64", Some("535"), None, false)]
#[case("535.261.03-open-6.1.0-50-amd64-aarch64", Some("535"), None, false)]
#[case("sha256-97fc222cee7991b5b061d4d4afdb5f34.sig", None, None, false)]
#[case("latest", None, None, false)]
fn tags_are_told_apart(
    #[case] candidate: &str,
    #[case] driver: Option<&str>,
    #[case] flavour: Option<Flavour>,
    #[case] expected: bool,
) {
    let wish = Wish { driver, flavour, kernel_release: "6.1.0-50-amd64", arch: "x86_64" };
    let flavours = flavour.map_or(vec![Flavour::Open, Flavour::Proprietary], |f| vec![f]);
    assert_eq!(is_wished(candidate, driver, &flavours, wish), expected);
}
