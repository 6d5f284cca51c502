//! TLS on the port of everything else, by modes, files and client certificates.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod support;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use net::{
    CallError, Client, ClientAuth, ClientOptions, ClientTls, Listener, ListenerOptions, ServerCheck, TlsMode,
    TlsSettings,
};
use support::{PATIENCE, Probe, Server, does, until};

fn with(settings: TlsSettings) -> ListenerOptions {
    ListenerOptions { tls: Some(settings), ..ListenerOptions::default() }
}

fn client(tls: Option<ClientTls>) -> Client {
    Client::new(ClientOptions { tls, ..ClientOptions::default() })
}

async fn echo(client: &Client, server: &Server, body: Bytes) -> Result<Bytes, CallError> {
    let response = client.call(&server.address.to_string(), does::ECHO, &(), body, PATIENCE).await?;
    Ok(response.body)
}

/// A certificate authority and files for both sides.
struct Files {
    dir: tempfile::TempDir,
    issuer: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

impl Files {
    fn new() -> Files {
        let mut params = rcgen::CertificateParams::new(vec!["ca".to_owned()]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
        let files = Files { dir: tempfile::tempdir().unwrap(), issuer };
        fs::write(files.path("ca.pem"), files.issuer.pem()).unwrap();
        files.issue("server");
        files.issue("client");
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn issue(&self, name: &str) {
        self.issue_for(name, "127.0.0.1");
    }

    fn issue_for(&self, name: &str, host: &str) {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![host.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.path(&format!("{name}.pem")), certificate.pem()).unwrap();
        fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn server(&self, client_auth: ClientAuth, verify_client: bool) -> TlsSettings {
        TlsSettings {
            mode: TlsMode::Enforcing,
            cert_path: Some(self.path("server.pem")),
            key_path: Some(self.path("server.key")),
            client_auth,
            verify_client,
            trust_path: Some(self.path("ca.pem")),
        }
    }

    fn client(&self, shows_certificate: bool) -> ClientTls {
        ClientTls {
            check: ServerCheck::AuthorityAndHost,
            trust_path: Some(self.path("ca.pem")),
            cert_path: shows_certificate.then(|| self.path("client.pem")),
            key_path: shows_certificate.then(|| self.path("client.key")),
        }
    }
}

#[tokio::test]
async fn a_permissive_port_serves_both_with_a_certificate_of_its_own() {
    let server = Server::start(with(TlsSettings::default()));
    assert_eq!(
        echo(&client(Some(ClientTls::default())), &server, Bytes::from_static(b"secret")).await.unwrap(),
        "secret"
    );
    assert_eq!(echo(&client(None), &server, Bytes::from_static(b"plain")).await.unwrap(), "plain");
    let large = Bytes::from(vec![3; 5 << 20]);
    assert!(echo(&client(Some(ClientTls::default())), &server, large.clone()).await.unwrap() == large);
}

#[tokio::test]
async fn an_enforcing_port_closes_plain_connections_and_a_disabled_one_tls() {
    let enforcing = Server::start(with(TlsSettings { mode: TlsMode::Enforcing, ..TlsSettings::default() }));
    assert!(echo(&client(None), &enforcing, Bytes::new()).await.is_err());
    assert!(echo(&client(Some(ClientTls::default())), &enforcing, Bytes::new()).await.is_ok());
    for options in [
        with(TlsSettings { mode: TlsMode::Disabled, ..TlsSettings::default() }),
        ListenerOptions { tls: None, ..with(TlsSettings::default()) },
    ] {
        let disabled = Server::start(options);
        assert!(echo(&client(None), &disabled, Bytes::new()).await.is_ok());
        assert!(echo(&client(Some(ClientTls::default())), &disabled, Bytes::new()).await.is_err());
    }
}

#[tokio::test]
async fn a_tls_client_behind_a_proxy_is_named() {
    use tokio::io::AsyncWriteExt;
    let server = Server::start(with(TlsSettings::default()));
    let mut tcp = tokio::net::TcpStream::connect(server.address).await.unwrap();
    tcp.write_all(b"PROXY TCP4 192.0.2.9 10.0.0.1 12345 10911\r\n").await.unwrap();
    let config = support_tls();
    let name = rustls_pki_types::ServerName::try_from("localhost").unwrap();
    let stream = tokio_rustls::TlsConnector::from(config).connect(name, tcp).await.unwrap();
    let mut peer = support::Peer::new(stream);
    assert_eq!(peer.echo(1, b"").await.peer.as_deref(), Some("192.0.2.9:12345"));
}

/// A client configuration that takes any certificate.
fn support_tls() -> std::sync::Arc<rustls::ClientConfig> {
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    #[derive(Debug)]
    struct Any;
    impl ServerCertVerifier for Any {
        fn verify_server_cert(
            &self,
            _: &rustls_pki_types::CertificateDer<'_>,
            _: &[rustls_pki_types::CertificateDer<'_>],
            _: &rustls_pki_types::ServerName<'_>,
            _: &[u8],
            _: rustls_pki_types::UnixTime,
        ) -> Result<ServerCertVerified, rustls::Error> {
            Ok(ServerCertVerified::assertion())
        }
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &rustls_pki_types::CertificateDer<'_>,
            _: &rustls::DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }
        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &rustls_pki_types::CertificateDer<'_>,
            _: &rustls::DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }
        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            vec![rustls::SignatureScheme::ECDSA_NISTP256_SHA256, rustls::SignatureScheme::ED25519]
        }
    }
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let any = std::sync::Arc::new(Any);
    std::sync::Arc::new(builder.dangerous().with_custom_certificate_verifier(any).with_no_client_auth())
}

#[tokio::test]
async fn certificates_of_both_sides_are_checked_when_asked_for() {
    let files = Files::new();
    let stranger = Files::new();
    let strict = Server::start(with(files.server(ClientAuth::Require, true)));
    assert!(echo(&client(Some(files.client(true))), &strict, Bytes::new()).await.is_ok());
    assert!(echo(&client(Some(files.client(false))), &strict, Bytes::new()).await.is_err(), "no certificate");
    let forged = ClientTls { trust_path: Some(files.path("ca.pem")), ..stranger.client(true) };
    assert!(echo(&client(Some(forged.clone())), &strict, Bytes::new()).await.is_err(), "of another authority");

    let optional = Server::start(with(files.server(ClientAuth::Optional, true)));
    assert!(echo(&client(Some(files.client(false))), &optional, Bytes::new()).await.is_ok());
    let any = Server::start(with(files.server(ClientAuth::Require, false)));
    assert!(echo(&client(Some(forged)), &any, Bytes::new()).await.is_ok(), "any certificate will do");
    assert!(echo(&client(Some(files.client(false))), &any, Bytes::new()).await.is_err());
    // The client checks too.
    assert!(echo(&client(Some(stranger.client(true))), &any, Bytes::new()).await.is_err());
}

#[tokio::test]
async fn a_server_is_proven_by_its_authority_alone_or_by_its_host_too() {
    let files = Files::new();
    files.issue_for("server", "names.example");
    let server = Server::start(with(files.server(ClientAuth::None, false)));
    let by = |check, files: &Files| client(Some(ClientTls { check, ..files.client(false) }));
    assert!(echo(&by(ServerCheck::Authority, &files), &server, Bytes::new()).await.is_ok());
    let error = echo(&by(ServerCheck::AuthorityAndHost, &files), &server, Bytes::new()).await.unwrap_err();
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
    let stranger = Files::new();
    let error = echo(&by(ServerCheck::Authority, &stranger), &server, Bytes::new()).await.unwrap_err();
    assert!(error.to_string().contains("invalid peer certificate"), "{error}");
    assert!(echo(&by(ServerCheck::None, &stranger), &server, Bytes::new()).await.is_ok());
}

#[test]
fn a_missing_trust_file_is_named_before_anything_is_called() {
    let unchecked = ClientTls { check: ServerCheck::Authority, ..ClientTls::default() };
    assert!(unchecked.check_files().unwrap_err().to_string().contains("tls.client.trustCertPath"));
    let missing = ClientTls { trust_path: Some("/nowhere/ca.pem".into()), ..unchecked };
    assert!(missing.check_files().unwrap_err().to_string().contains("/nowhere/ca.pem"));
    assert!(ClientTls::default().check_files().is_ok());
}

#[tokio::test]
async fn a_changed_certificate_is_used_without_a_restart_and_a_broken_one_is_not() {
    let files = Files::new();
    let server = Server::start(with(files.server(ClientAuth::None, false)));
    assert!(echo(&client(Some(files.client(false))), &server, Bytes::new()).await.is_ok());

    fs::write(files.path("server.pem"), "broken").unwrap();
    assert!(echo(&client(Some(files.client(false))), &server, Bytes::new()).await.is_ok(), "the old pair serves on");

    let next = Files::new();
    fs::copy(next.path("server.pem"), files.path("server.pem")).unwrap();
    fs::copy(next.path("server.key"), files.path("server.key")).unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while echo(&client(Some(next.client(false))), &server, Bytes::new()).await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "the new pair is not used");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(echo(&client(Some(files.client(false))), &server, Bytes::new()).await.is_err());
}

#[tokio::test]
async fn unusable_files_are_named_when_the_port_is_bound() {
    let files = Files::new();
    let bind = |settings: TlsSettings| {
        let bound = Listener::bind("127.0.0.1:0".parse().unwrap(), with(settings), Probe::new());
        bound.err().expect("refused").to_string()
    };
    let good = files.server(ClientAuth::None, false);
    let missing = bind(TlsSettings { cert_path: Some(files.path("none.pem")), ..good.clone() });
    assert!(missing.contains("none.pem"), "{missing}");
    let half = bind(TlsSettings { key_path: None, ..good.clone() });
    assert!(half.contains("only one of them"), "{half}");
    fs::write(
        files.path("locked.key"),
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n-----END ENCRYPTED PRIVATE KEY-----\n",
    )
    .unwrap();
    let locked = bind(TlsSettings { key_path: Some(files.path("locked.key")), ..good.clone() });
    assert!(locked.contains("encrypted"), "{locked}");
    let no_trust =
        bind(TlsSettings { client_auth: ClientAuth::Require, verify_client: true, trust_path: None, ..good });
    assert!(no_trust.contains("trust"), "{no_trust}");
}

#[tokio::test]
async fn a_handshake_that_stops_is_ended() {
    let options = ListenerOptions { handshake_timeout: Duration::from_millis(100), ..with(TlsSettings::default()) };
    let server = Server::start(options);
    let mut peer = server.peer().await;
    peer.write(&[0x16, 3, 1]).await;
    assert!(peer.is_closed_by_the_server().await);
    let mut peer = server.peer().await;
    peer.write(b"PROXY TCP4").await;
    assert!(peer.is_closed_by_the_server().await);
    until("nothing was opened", || server.probe.opened.load(std::sync::atomic::Ordering::SeqCst) == 0).await;
}
