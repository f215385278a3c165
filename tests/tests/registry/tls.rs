//! A registry with a certificate of a company's own authority.

use longshore_tests::module_sets;
use std::fs;

use super::*;
use crate::other_tools::openssl;

/// Makes an authority, and a certificate of it for loopback.
fn certify(dir: &Path) {
    let path = |name: &str| dir.join(name).to_str().expect("a path").to_owned();
    let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let (ca, ca_key, key) = (path("ca.pem"), path("ca.key"), path("key.pem"));
    let authority = ["req", "-x509", "-subj", "/CN=an authority of our own", "-days", "2"];
    openssl(&[&authority[..], &curve, &["-keyout", &ca_key, "-out", &ca]].concat());
    let request = path("request.pem");
    let asked = ["req", "-subj", "/CN=registry", "-keyout", &key, "-out", &request];
    openssl(&[&asked[..], &curve].concat());
    fs::write(dir.join("san"), "subjectAltName=IP:127.0.0.1\n").expect("writes");
    let (san, certificate) = (path("san"), path("cert.pem"));
    let sign = ["x509", "-req", "-days", "2", "-in", &request, "-extfile", &san];
    let by = ["-CA", &ca, "-CAkey", &ca_key, "-CAcreateserial", "-out", &certificate];
    openssl(&[&sign[..], &by].concat());
}

#[tokio::test]
async fn an_authority_of_the_hosts_is_trusted_and_one_that_nobody_knows_is_not() {
    let mut authority = Vec::new();
    let hub = Hub::with_tls(|dir| {
        certify(dir);
        authority = fs::read(dir.join("ca.pem")).expect("reads");
    });
    let scene = Scene::with(hub);
    let reference: RegistrySource =
        format!("{}/nvidia/modules", scene.hub.address).parse().expect("a registry");
    let open = |host_root: &Path| {
        Registry::open_with(hasty(), &reference, host_root, &|_| None).expect("opens")
    };

    let stranger = scene.dir.path().join("stranger");
    fs::create_dir(&stranger).expect("dir");
    let failure = open(&stranger).describe("latest").await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Download);
    let report = failure.report();
    for expected in [scene.hub.address.as_str(), "certificate", "add the certificate authority"] {
        assert!(report.contains(expected), "{expected:?} is not in {report}");
    }

    let host = scene.dir.path().join("host");
    let certificates = host.join("etc/ssl/certs");
    fs::create_dir_all(&certificates).expect("dirs");
    fs::write(certificates.join("ca-certificates.crt"), authority).expect("writes");
    let registry = Registry::open_to_push(&reference.reference, &host, &|_| None).expect("opens");
    let tag = scene.set.key.tag();
    let pushed = registry.push(&scene.set, &tag, &scene.store, &Silent).await.expect("pushes");
    let pulled = open(&host).pull(&pushed.digest, &scene.other, &Silent).await.expect("pulls");
    assert_eq!(pulled, scene.set);
    module_sets::assert_sound(&scene.other);
}
