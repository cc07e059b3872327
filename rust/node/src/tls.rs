//! TLS 1.3 with raw Ed25519 public keys (RFC 7250): the key is the identity, there are no certificates to check.
use std::sync::Arc;
use std::time::Duration;

use pandacore_gossip::HostId;
use pandacore_trust::{AgentId, KeyPair};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, SignatureScheme};

const ALPN: &[u8] = b"panda/1";
/// RFC 8410: everything of these encodings but the key itself is constant.
pub(crate) const SPKI_PREFIX: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// Accepts any peer that proves to hold the Ed25519 key it shows. Who that is, is judged by the driver.
#[derive(Debug)]
struct AnyKey(WebPkiSupportedAlgorithms);

fn key_of(certificate: &[u8]) -> Option<HostId> {
    let key: [u8; 32] = certificate.strip_prefix(&SPKI_PREFIX)?.try_into().ok()?;
    AgentId::from_public(&key).ok().map(|id| HostId(id.0))
}

impl AnyKey {
    fn check(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(cert.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, dss, &self.0)
    }
}

fn known(certificate: &CertificateDer<'_>) -> Result<(), Error> {
    match key_of(certificate) {
        Some(_) => Ok(()),
        None => Err(Error::InvalidCertificate(rustls::CertificateError::BadEncoding)),
    }
}

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        known(end_entity).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        known(end_entity).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// The host that a connection's handshake proved.
pub(crate) fn peer_of(connection: &quinn::Connection) -> Option<HostId> {
    let identity = connection.peer_identity()?;
    let certificates = identity.downcast_ref::<Vec<CertificateDer<'static>>>()?;
    key_of(certificates.first()?)
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Both sides' configuration for a host key.
pub(crate) fn configs(key: &KeyPair) -> Result<(quinn::ServerConfig, quinn::ClientConfig), String> {
    let provider = provider();
    let verifier = Arc::new(AnyKey(provider.signature_verification_algorithms));
    let mut pkcs8 = PKCS8_PREFIX.to_vec();
    pkcs8.extend_from_slice(&key.seed());
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8));
    let signing = provider
        .key_provider
        .load_private_key(private)
        .map_err(|error| format!("host key: {error}"))?;
    let mut spki = SPKI_PREFIX.to_vec();
    spki.extend_from_slice(&key.id().0);
    let certified = Arc::new(CertifiedKey::new(vec![CertificateDer::from(spki)], signing));

    let tls13 = &[&rustls::version::TLS13];
    let mut server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(tls13)
        .map_err(|error| format!("TLS: {error}"))?
        .with_client_cert_verifier(Arc::clone(&verifier) as Arc<dyn ClientCertVerifier>)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(
            &certified,
        ))));
    server.alpn_protocols = vec![ALPN.to_vec()];
    server.send_tls13_tickets = 0;
    let mut client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(tls13)
        .map_err(|error| format!("TLS: {error}"))?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified)));
    client.alpn_protocols = vec![ALPN.to_vec()];
    // All hosts are dialled under one name: a resumed session could belong to another host.
    client.resumption = rustls::client::Resumption::disabled();

    let mut transport = quinn::TransportConfig::default();
    transport
        .max_idle_timeout(Some(
            Duration::from_secs(30)
                .try_into()
                .map_err(|_| "idle timeout out of range")?,
        ))
        .max_concurrent_bidi_streams(1u32.into())
        .max_concurrent_uni_streams(4u32.into())
        .datagram_receive_buffer_size(Some(1 << 20))
        .datagram_send_buffer_size(1 << 18);
    let transport = Arc::new(transport);
    let server = QuicServerConfig::try_from(server).map_err(|error| format!("TLS: {error}"))?;
    let client = QuicClientConfig::try_from(client).map_err(|error| format!("TLS: {error}"))?;
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(server));
    server.transport_config(Arc::clone(&transport));
    let mut client = quinn::ClientConfig::new(Arc::new(client));
    client.transport_config(transport);
    Ok((server, client))
}
