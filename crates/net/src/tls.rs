//! TLS on the port of everything else: certificates, their reload, and what we ask of the other side.
//!
//! The settings are those of RocketMQ's `tls.properties`. Nothing is loaded before the first handshake needs it, except
//! files, which are checked when a listener binds so that a wrong path is a sentence at start.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwapOption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme};

/// How often, at most, a handshake looks whether the certificate files changed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a listener does about TLS (`tls.server.mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// Whoever speaks TLS is closed.
    Disabled,
    /// Both are served.
    #[default]
    Permissive,
    /// Whoever does not speak TLS is closed.
    Enforcing,
}

/// Whether clients show a certificate (`tls.server.need.client.auth`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// They are not asked.
    #[default]
    None,
    /// They are asked, and may have none.
    Optional,
    /// They are asked and must have one.
    Require,
}

/// The TLS side of a listener.
#[derive(Clone, Debug, Default)]
pub struct TlsSettings {
    /// `tls.server.mode`
    pub mode: TlsMode,
    /// `tls.server.certPath`. Without certificate and key a self-signed one is made at the first handshake.
    pub cert_path: Option<PathBuf>,
    /// `tls.server.keyPath`
    pub key_path: Option<PathBuf>,
    /// `tls.server.need.client.auth`
    pub client_auth: ClientAuth,
    /// `tls.server.authClient`: whether a client's certificate must come from one of `trust_path`. When false any will do.
    pub verify_client: bool,
    /// `tls.server.trustCertPath`
    pub trust_path: Option<PathBuf>,
}

impl TlsSettings {
    /// Loads the files once, as a listener does.
    pub fn check_files(&self) -> Result<(), TlsError> {
        ServerTls::new(self.clone()).map(drop)
    }
}

/// What a server's certificate is checked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerCheck {
    /// Nothing: the line is encrypted, the other side is not proven.
    #[default]
    None,
    /// It comes from one of the trusted authorities, whatever host it names. This is what `tls.client.authServer` means in
    /// RocketMQ, whose servers are mostly called by addresses that no certificate names.
    Authority,
    /// It comes from one of the trusted authorities and names the host that was called.
    AuthorityAndHost,
}

/// The TLS side of calls that go out.
#[derive(Clone, Debug, Default)]
pub struct ClientTls {
    /// `tls.client.authServer`
    pub check: ServerCheck,
    /// `tls.client.trustCertPath`
    pub trust_path: Option<PathBuf>,
    /// `tls.client.certPath`
    pub cert_path: Option<PathBuf>,
    /// `tls.client.keyPath`
    pub key_path: Option<PathBuf>,
}

impl ClientTls {
    /// Loads the files once, so that a wrong path is a sentence at start and not a call that fails later.
    pub fn check_files(&self) -> Result<(), TlsError> {
        client_config(self).map(drop)
    }
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds nothing of what it should.
    #[error("{path}: {cause}")]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// A private key that only a password opens.
    #[error("{path}: the private key is encrypted; decrypt it once with `openssl pkcs8 -in KEY -out PLAIN_KEY`")]
    EncryptedKey {
        /// Which one.
        path: PathBuf,
    },
    /// A certificate without a key, or the reverse.
    #[error("a certificate file and a key file are both needed, and only one of them is given")]
    HalfAPair,
    /// Certificates shall be checked, and nothing says against what.
    #[error("checking the certificates of the other side needs a trust file ({0})")]
    NoTrust(&'static str),
    /// Key and certificate do not fit, or are of an unknown kind.
    #[error("TLS: {0}")]
    Rustls(#[from] rustls::Error),
    /// The list of trusted certificates is unusable.
    #[error("TLS trust: {0}")]
    Trust(#[from] rustls::server::VerifierBuilderError),
    /// The self-signed certificate could not be made.
    #[error("self-signed certificate: {0}")]
    SelfSigned(#[from] rcgen::Error),
}

/// The certificate of a listener, kept fresh.
#[derive(Debug)]
pub(crate) struct ServerTls {
    settings: TlsSettings,
    loaded: ArcSwapOption<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    config: Arc<ServerConfig>,
    files: Vec<(PathBuf, Option<Stamp>)>,
    looked: Instant,
}

type Stamp = (SystemTime, u64);

impl ServerTls {
    /// Files that are named are loaded now; a self-signed certificate waits for the first handshake.
    pub(crate) fn new(settings: TlsSettings) -> Result<ServerTls, TlsError> {
        let tls = ServerTls { settings, loaded: ArcSwapOption::empty() };
        if tls.settings.mode != TlsMode::Disabled
            && (tls.settings.cert_path.is_some() || tls.settings.key_path.is_some() || tls.settings.verify_client)
        {
            tls.load()?;
        }
        Ok(tls)
    }

    pub(crate) fn mode(&self) -> TlsMode {
        self.settings.mode
    }

    /// What the next handshake uses. Two handshakes that find changed files at once both load them; either result will do.
    pub(crate) fn config(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let Some(loaded) = self.loaded.load_full() else { return self.load() };
        if loaded.files.is_empty() || loaded.looked.elapsed() < LOOK_EVERY {
            return Ok(Arc::clone(&loaded.config));
        }
        let is_unchanged = loaded.files.iter().all(|(path, known)| stamp(path) == *known);
        if !is_unchanged {
            match self.load() {
                Ok(config) => {
                    tracing::info!("certificate files changed, loaded again");
                    return Ok(config);
                }
                // Files are often replaced one after the other: the old pair serves until the new one is whole.
                Err(error) => tracing::warn!(%error, "changed certificate files are unusable, keeping the old ones"),
            }
        }
        let looked = Loaded { config: Arc::clone(&loaded.config), files: loaded.files.clone(), looked: Instant::now() };
        self.loaded.store(Some(Arc::new(looked)));
        Ok(Arc::clone(&loaded.config))
    }

    fn load(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let settings = &self.settings;
        let named = [&settings.cert_path, &settings.key_path, &settings.trust_path];
        // Stamped before they are read: a change in between is seen at the next look.
        let files: Vec<_> = named.into_iter().flatten().map(|path| (path.clone(), stamp(path))).collect();
        let provider = provider();
        let builder =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
        let builder = match settings.client_auth {
            ClientAuth::None => builder.with_no_client_auth(),
            ClientAuth::Optional | ClientAuth::Require if settings.verify_client => {
                let path = settings.trust_path.as_ref().ok_or(TlsError::NoTrust("tls.server.trustCertPath"))?;
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(path)?), provider);
                let is_optional = settings.client_auth == ClientAuth::Optional;
                let verifier = if is_optional { verifier.allow_unauthenticated() } else { verifier };
                builder.with_client_cert_verifier(verifier.build()?)
            }
            ClientAuth::Optional | ClientAuth::Require => {
                let is_required = settings.client_auth == ClientAuth::Require;
                let algorithms = provider.signature_verification_algorithms;
                builder.with_client_cert_verifier(Arc::new(AnyPeer { algorithms, is_required }))
            }
        };
        let (chain, key) = match pair(settings.cert_path.as_deref(), settings.key_path.as_deref())? {
            Some(pair) => pair,
            None => self_signed()?,
        };
        let config = Arc::new(builder.with_single_cert(chain, key)?);
        let loaded = Loaded { config: Arc::clone(&config), files, looked: Instant::now() };
        self.loaded.store(Some(Arc::new(loaded)));
        Ok(config)
    }
}

/// What outgoing connections use.
pub(crate) fn client_config(settings: &ClientTls) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = provider();
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let algorithms = provider.signature_verification_algorithms;
    let trusted = || roots(settings.trust_path.as_ref().ok_or(TlsError::NoTrust("tls.client.trustCertPath"))?);
    let builder = match settings.check {
        ServerCheck::AuthorityAndHost => builder.with_root_certificates(trusted()?),
        ServerCheck::Authority => {
            let verifier = AnyHost { roots: trusted()?, algorithms };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
        ServerCheck::None => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyPeer { algorithms, is_required: false }))
        }
    };
    Ok(Arc::new(match pair(settings.cert_path.as_deref(), settings.key_path.as_deref())? {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key)?,
        None => builder.with_no_client_auth(),
    }))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn stamp(path: &Path) -> Option<Stamp> {
    let data = fs::metadata(path).ok()?;
    Some((data.modified().ok()?, data.len()))
}

type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn pair(cert: Option<&Path>, key: Option<&Path>) -> Result<Option<Pair>, TlsError> {
    match (cert, key) {
        (None, None) => Ok(None),
        (Some(cert), Some(key)) => Ok(Some((certificates(cert)?, private_key(key)?))),
        (Some(_), None) | (None, Some(_)) => Err(TlsError::HalfAPair),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error: io::Error| unusable(path, &error))
}

fn unusable(path: &Path, cause: &dyn std::fmt::Display) -> TlsError {
    TlsError::File { path: path.to_owned(), cause: cause.to_string() }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| unusable(path, &error))?;
    if found.is_empty() { Err(unusable(path, &"no certificate in PEM form")) } else { Ok(found) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text = read(path)?;
    if text.windows(9).any(|part| part == b"ENCRYPTED") {
        return Err(TlsError::EncryptedKey { path: path.to_owned() });
    }
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| unusable(path, &error))
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

fn self_signed() -> Result<Pair, TlsError> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    Ok((vec![made.cert.der().clone()], PrivateKeyDer::Pkcs8(key)))
}

/// Takes any certificate, as Apache does unless it is told to check: the line is encrypted, the other side is not proven.
/// That the other side holds the certificate's key is still checked.
#[derive(Debug)]
struct AnyPeer {
    algorithms: WebPkiSupportedAlgorithms,
    is_required: bool,
}

impl ServerCertVerifier for AnyPeer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Takes any certificate that a trusted authority signed for servers, whatever host it names.
#[derive(Debug)]
struct AnyHost {
    roots: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for AnyHost {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(certificate)?;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, self.algorithms.all)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for AnyPeer {
    fn client_auth_mandatory(&self) -> bool {
        self.is_required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
