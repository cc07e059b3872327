//! Ed25519 identities: an agent's id is its public key, printed as `did:key:z6Mk…`.
use std::fmt;
use std::str::FromStr;

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};

/// Length of a signature in bytes.
pub const SIGNATURE_LEN: usize = 64;
const DID_PREFIX: &str = "did:key:z";
/// Multicodec `ed25519-pub` as a varint.
const MULTICODEC: [u8; 2] = [0xed, 0x01];
const BASE58: &[u8; 58] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
/// 34 bytes need at most 47 base58 digits; longer input is refused before it is decoded.
const MAX_DIGITS: usize = 47;

/// Why a key, a DID or a signature was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeyError {
    /// The text does not start with `did:key:z`.
    NotADidKey,
    /// The text holds a character outside base58btc, or is too long.
    BadBase58,
    /// The key is of another kind than Ed25519.
    WrongCodec,
    /// Not 32 bytes that name a curve point of full order.
    NotAPublicKey,
    /// The signature is not one of this message by this key.
    BadSignature,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotADidKey => "the text does not start with did:key:z",
            Self::BadBase58 => "the text after did:key:z is not base58btc of the right length",
            Self::WrongCodec => "the key is not an Ed25519 key",
            Self::NotAPublicKey => "the bytes are not an Ed25519 public key",
            Self::BadSignature => "the signature is not one of this message by this key",
        })
    }
}

impl std::error::Error for KeyError {}

/// An agent's id: its 32-byte Ed25519 public key.
///
/// Ordered by bytes, which is also the order of every tie-break.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct AgentId(pub [u8; 32]);

impl AgentId {
    /// Checks that `bytes` can be a public key: a canonical curve point of full order.
    ///
    /// # Errors
    /// [`KeyError::NotAPublicKey`] otherwise. Points of small order would verify almost anything.
    pub fn from_public(bytes: &[u8]) -> Result<Self, KeyError> {
        let bytes: [u8; 32] = bytes.try_into().map_err(|_| KeyError::NotAPublicKey)?;
        Self(bytes).point().map(|_| Self(bytes))
    }

    /// Checks that `signature` is one of `message` by this agent.
    ///
    /// Strict (no small-order points, canonical scalar, no cofactor), so that all hosts agree on every input.
    ///
    /// # Errors
    /// [`KeyError::NotAPublicKey`] or [`KeyError::BadSignature`].
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> Result<(), KeyError> {
        let point = self.point()?;
        let signature = Signature::from_slice(signature).map_err(|_| KeyError::BadSignature)?;
        point
            .verify_strict(message, &signature)
            .map_err(|_| KeyError::BadSignature)
    }

    fn point(&self) -> Result<VerifyingKey, KeyError> {
        let point = VerifyingKey::from_bytes(&self.0).map_err(|_| KeyError::NotAPublicKey)?;
        // `from_bytes` also takes encodings with y ≥ p: two byte strings would then name one key.
        let top = self.0[31] & 0x7f == 0x7f && self.0[1..31].iter().all(|&byte| byte == 0xff);
        if point.is_weak() || (top && self.0[0] >= 0xed) {
            return Err(KeyError::NotAPublicKey);
        }
        Ok(point)
    }
}

impl fmt::Display for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = [0u8; 34];
        bytes[..2].copy_from_slice(&MULTICODEC);
        bytes[2..].copy_from_slice(&self.0);
        write!(f, "{DID_PREFIX}{}", base58(&bytes))
    }
}

impl fmt::Debug for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for AgentId {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let digits = text.strip_prefix(DID_PREFIX).ok_or(KeyError::NotADidKey)?;
        let bytes = unbase58(digits)?;
        match bytes.split_at_checked(2) {
            Some((codec, key)) if codec == MULTICODEC => Self::from_public(key),
            _ => Err(KeyError::WrongCodec),
        }
    }
}

/// A secret key with its public half. The secret is wiped on drop and never printed.
pub struct KeyPair(SigningKey);

impl KeyPair {
    /// The key pair of a 32-byte secret seed (RFC 8032). The caller supplies the entropy.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// The secret seed, for writing a key file.
    #[must_use]
    pub fn seed(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// The public half.
    #[must_use]
    pub fn id(&self) -> AgentId {
        AgentId(self.0.verifying_key().to_bytes())
    }

    /// Signs `message`; deterministic.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_LEN] {
        self.0.sign(message).to_bytes()
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({})", self.id())
    }
}

/// Base58btc. Quadratic, which is right for 34 bytes.
fn base58(bytes: &[u8]) -> String {
    let zeros = bytes.iter().take_while(|&&b| b == 0).count();
    let mut digits: Vec<u8> = Vec::with_capacity(MAX_DIGITS);
    for &byte in bytes {
        let mut carry = u32::from(byte);
        for digit in &mut digits {
            carry += u32::from(*digit) << 8;
            *digit = (carry % 58) as u8;
            carry /= 58;
        }
        while carry > 0 {
            digits.push((carry % 58) as u8);
            carry /= 58;
        }
    }
    let leading = std::iter::repeat_n('1', zeros);
    leading
        .chain(digits.iter().rev().map(|&d| BASE58[usize::from(d)] as char))
        .collect()
}

fn unbase58(text: &str) -> Result<Vec<u8>, KeyError> {
    if text.len() > MAX_DIGITS {
        return Err(KeyError::BadBase58);
    }
    let zeros = text.bytes().take_while(|&c| c == b'1').count();
    let mut bytes: Vec<u8> = Vec::with_capacity(36);
    for c in text.bytes() {
        let digit = BASE58.iter().position(|&d| d == c).ok_or(KeyError::BadBase58)?;
        let mut carry = digit as u32;
        for byte in &mut bytes {
            carry += u32::from(*byte) * 58;
            *byte = (carry & 0xff) as u8;
            carry >>= 8;
        }
        while carry > 0 {
            bytes.push((carry & 0xff) as u8);
            carry >>= 8;
        }
    }
    bytes.extend(std::iter::repeat_n(0, zeros));
    bytes.reverse();
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len() / 2)
            .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
            .collect()
    }

    // RFC 8032 §7.1, tests 1 to 3 and SHA(abc).
    const RFC8032: [(&str, &str, &str, &str); 4] = [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
        ),
        (
            "833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42",
            "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
            "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
            "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704",
        ),
    ];

    #[test]
    fn rfc_8032_vectors_are_reproduced() {
        for (seed, public, message, signature) in RFC8032 {
            let pair = KeyPair::from_seed(&hex(seed).try_into().unwrap());
            assert_eq!(pair.id().0.to_vec(), hex(public));
            assert_eq!(pair.sign(&hex(message)).to_vec(), hex(signature));
            assert_eq!(pair.id().verify(&hex(message), &hex(signature)), Ok(()));
            let mut forged = hex(signature);
            forged[3] ^= 1;
            assert_eq!(
                pair.id().verify(&hex(message), &forged),
                Err(KeyError::BadSignature)
            );
        }
    }

    #[test]
    fn did_of_the_w3c_example_is_parsed_and_printed() {
        // First Ed25519 example of the did:key method text.
        let did = "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp";
        let id: AgentId = did.parse().unwrap();
        assert_eq!(
            id.0.to_vec(),
            hex("3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29")
        );
        assert_eq!(id.to_string(), did);
    }

    #[test]
    fn points_of_small_order_are_no_keys() {
        let mut identity = [0u8; 32];
        identity[0] = 1;
        assert_eq!(AgentId::from_public(&identity), Err(KeyError::NotAPublicKey));
        assert_eq!(AgentId::from_public(&[0; 32]), Err(KeyError::NotAPublicKey));
        assert_eq!(AgentId::from_public(&[7; 31]), Err(KeyError::NotAPublicKey));
    }

    #[test]
    fn malformed_dids_are_refused_with_the_reason() {
        let refused = |text: &str| text.parse::<AgentId>().unwrap_err();
        assert_eq!(refused("did:web:example.org"), KeyError::NotADidKey);
        assert_eq!(refused("did:key:z6Mk0"), KeyError::BadBase58);
        assert_eq!(
            refused(&format!("did:key:z{}", "6".repeat(4000))),
            KeyError::BadBase58
        );
        assert_eq!(
            refused("did:key:z6LSeu9HkTHSfLLeUs2nnzUSNedgDUevfNQgQjQC23ZCit6F"),
            KeyError::WrongCodec
        );
        assert_eq!(refused("did:key:z"), KeyError::WrongCodec);
    }

    #[test]
    fn printing_a_key_pair_shows_no_secret() {
        let pair = KeyPair::from_seed(&[7; 32]);
        assert_eq!(format!("{pair:?}"), format!("KeyPair({})", pair.id()));
    }

    proptest! {
        #[test]
        fn dids_survive_a_round_trip(seed in any::<[u8; 32]>()) {
            let id = KeyPair::from_seed(&seed).id();
            prop_assert_eq!(id.to_string().parse::<AgentId>(), Ok(id));
            prop_assert!(id.to_string().starts_with("did:key:z6Mk"));
        }

        #[test]
        fn base58_keeps_every_byte_string(bytes in proptest::collection::vec(any::<u8>(), 0..34)) {
            prop_assert_eq!(unbase58(&base58(&bytes)), Ok(bytes));
        }

        #[test]
        fn a_changed_message_or_signature_is_refused(
            seed in any::<[u8; 32]>(), message in proptest::collection::vec(any::<u8>(), 1..80), bit in 0usize..512,
        ) {
            let pair = KeyPair::from_seed(&seed);
            let mut signature = pair.sign(&message);
            prop_assert_eq!(pair.id().verify(&message, &signature), Ok(()));
            let mut other = message.clone();
            let at = bit % (8 * other.len());
            other[at / 8] ^= 1 << (at % 8);
            prop_assert_eq!(pair.id().verify(&other, &signature), Err(KeyError::BadSignature));
            signature[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(pair.id().verify(&message, &signature), Err(KeyError::BadSignature));
        }
    }
}
