//! Certificates of the team plane: TLS with nothing to hand out but the host's id.
//!
//! The gRPC of the team plane speaks TLS with X.509 certificates, and with ECDSA keys. So each process makes a P-256
//! key, and its host key signs a certificate for it. Whoever knows the host's id, which every address of the team
//! plane carries, knows the only issuer whose certificate counts: a trust anchor is a name and a public key, and its
//! own signature is never looked at (RFC 5280, section 6.1.1). So [`anchor`] writes it down from the id alone.
use pandacore_gossip::HostId;
use pandacore_trust::KeyPair;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};

use crate::tls::SPKI_PREFIX;

/// The name in the certificate of every host; who the host is, is said by the key that signed it.
pub const TEAM_NAME: &str = "host.pandacore.invalid";
const ISSUER: &str = "pandacore host key";

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT_ID: u8 = 0x06;
const UTF8: u8 = 0x0c;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
const DNS_NAME: u8 = 0x82;

const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];

/// What a host serves the team plane with, in DER.
pub struct TeamIdentity {
    /// The private key of this process, PKCS #8.
    pub key: Vec<u8>,
    /// Its certificate, signed by the host key.
    pub certificate: Vec<u8>,
}

/// A fresh key for this process, and the host's certificate for it.
///
/// # Errors
/// The operating system has no random bytes.
pub fn team_identity(host: &KeyPair) -> Result<TeamIdentity, String> {
    let failed = |error: &dyn std::fmt::Display| format!("key of the team plane: {error}");
    let random = SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).map_err(|error| failed(&error))?;
    let pair =
        EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).map_err(|error| failed(&error))?;
    let public = sequence(&[
        &sequence(&[&item(OBJECT_ID, EC_PUBLIC_KEY), &item(OBJECT_ID, P256)]),
        &bits(pair.public_key().as_ref()),
    ]);
    let names = sequence(&[&item(DNS_NAME, TEAM_NAME.as_bytes())]);
    let body = body(2, TEAM_NAME, &public, &extension(SUBJECT_ALT_NAME, false, &names));
    let signature = host.sign(&body);
    Ok(TeamIdentity {
        key: pkcs8.as_ref().to_vec(),
        certificate: sealed(&body, &signature),
    })
}

/// The trust anchor that only certificates signed by `host` lead to.
#[must_use]
pub fn anchor(host: &HostId) -> Vec<u8> {
    let mut public = SPKI_PREFIX.to_vec();
    public.extend_from_slice(&host.0);
    let authority = sequence(&[&item(BOOLEAN, &[0xff])]);
    sealed(
        &body(
            1,
            ISSUER,
            &public,
            &extension(BASIC_CONSTRAINTS, true, &authority),
        ),
        &[0; 64],
    )
}

fn body(serial: u8, subject: &str, public: &[u8], extension: &[u8]) -> Vec<u8> {
    // Without an end: the key ends with the process, and clocks must not matter.
    let validity = sequence(&[
        &item(UTC_TIME, b"700101000000Z"),
        &item(GENERALIZED_TIME, b"99991231235959Z"),
    ]);
    sequence(&[
        &item(VERSION, &item(INTEGER, &[2])),
        &item(INTEGER, &[serial]),
        &signed_with_ed25519(),
        &name(ISSUER),
        &validity,
        &name(subject),
        public,
        &item(EXTENSIONS, &sequence(&[extension])),
    ])
}

fn sealed(body: &[u8], signature: &[u8; 64]) -> Vec<u8> {
    sequence(&[body, &signed_with_ed25519(), &bits(signature)])
}

fn signed_with_ed25519() -> Vec<u8> {
    sequence(&[&item(OBJECT_ID, ED25519)])
}

fn name(text: &str) -> Vec<u8> {
    let common = sequence(&[&item(OBJECT_ID, COMMON_NAME), &item(UTF8, text.as_bytes())]);
    sequence(&[&item(SET, &common)])
}

fn extension(kind: &[u8], critical: bool, value: &[u8]) -> Vec<u8> {
    let flag = if critical {
        item(BOOLEAN, &[0xff])
    } else {
        Vec::new()
    };
    sequence(&[&item(OBJECT_ID, kind), &flag, &item(OCTET_STRING, value)])
}

fn bits(bytes: &[u8]) -> Vec<u8> {
    item(BIT_STRING, &[&[0], bytes].concat())
}

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    item(SEQUENCE, &parts.concat())
}

/// One element of DER: tag, length, content. Contents here are shorter than 64 KiB.
fn item(tag: u8, content: &[u8]) -> Vec<u8> {
    let [.., high, low] = content.len().to_be_bytes();
    let mut bytes = match content.len() {
        0..=0x7f => vec![tag, low],
        0x80..=0xff => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    bytes.extend_from_slice(content);
    bytes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::client::danger::ServerCertVerifier as _;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{CertificateError, Error, RootCertStore};

    use super::*;

    fn judged(anchored: &KeyPair, certificate: &[u8]) -> Result<(), Error> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from(anchor(&HostId(anchored.id().0))))
            .unwrap();
        let provider = crate::tls::provider();
        rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .unwrap()
            .verify_server_cert(
                &CertificateDer::from(certificate.to_vec()),
                &[],
                &ServerName::try_from(TEAM_NAME).unwrap(),
                &[],
                UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_800_000_000)),
            )
            .map(|_| ())
    }

    #[test]
    fn a_certificate_counts_only_for_the_host_that_signed_it() {
        let host = KeyPair::from_seed(&[1; 32]);
        let identity = team_identity(&host).unwrap();
        assert_eq!(judged(&host, &identity.certificate), Ok(()));
        let other = KeyPair::from_seed(&[2; 32]);
        assert!(matches!(
            judged(&other, &identity.certificate),
            Err(Error::InvalidCertificate(CertificateError::BadSignature))
        ));
    }

    #[test]
    fn a_changed_certificate_counts_for_nobody() {
        let host = KeyPair::from_seed(&[1; 32]);
        let good = team_identity(&host).unwrap().certificate;
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(judged(&host, &bad).is_err(), "byte {at}");
        }
    }

    #[test]
    fn every_process_has_a_key_of_its_own() {
        let host = KeyPair::from_seed(&[1; 32]);
        assert_ne!(
            team_identity(&host).unwrap().key,
            team_identity(&host).unwrap().key
        );
    }
}
