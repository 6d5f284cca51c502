//! What two brokers prove to each other with a secret that both have (`replicaSecret`), and never send.

use std::fmt;
use std::io;

use aws_lc_rs::{hmac, rand};

/// Bytes of a number that is used once.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a proof: HMAC-SHA256.
pub const PROOF_BYTES: usize = 32;

/// A number that is used for one connection.
pub type Nonce = [u8; NONCE_BYTES];
/// A proof that somebody has the secret.
pub type Proof = [u8; PROOF_BYTES];

/// In front of all that is proved, so that no other use of the secret makes the same proof.
const CONTEXT: &[u8] = b"gantry stream of the log";

/// A number that nobody can foresee.
///
/// # Errors
/// The system gives no random numbers.
pub fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; NONCE_BYTES];
    rand::fill(&mut nonce).map_err(|_| io::Error::other("the system gives no random numbers"))?;
    Ok(nonce)
}

/// Who proves. Neither can show the proof of the other as its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The slave.
    Slave = 1,
    /// The master.
    Master = 2,
}

/// A secret. It is not shown.
#[derive(Clone)]
pub struct Secret(hmac::Key);

impl Secret {
    /// Of this text.
    pub fn new(text: &str) -> Secret {
        Secret(hmac::Key::new(hmac::HMAC_SHA256, text.as_bytes()))
    }

    /// Proves in `role` that both have said this: the slave's hello and the master's answer, with nonces and identities.
    pub fn prove(&self, role: Role, hello: &[u8], answer: &[u8]) -> Proof {
        let tag = hmac::sign(&self.0, &said(role, hello, answer));
        let mut proof = [0; PROOF_BYTES];
        proof.copy_from_slice(tag.as_ref());
        proof
    }

    /// Whether the other side has proved it in `role`. The time that it takes does not depend on the proof.
    pub fn is_proved(&self, role: Role, hello: &[u8], answer: &[u8], proof: &Proof) -> bool {
        hmac::verify(&self.0, &said(role, hello, answer), proof).is_ok()
    }
}

/// The hello states its own length, so nothing can be moved from one to the other.
fn said(role: Role, hello: &[u8], answer: &[u8]) -> Vec<u8> {
    [CONTEXT, &[role as u8], hello, answer].concat()
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_secret_one_role_and_what_both_have_said() {
        let secret = Secret::new("as long as it has to be");
        let proof = secret.prove(Role::Slave, b"hello", b"answer");
        let is_proved = |secret: &Secret, role, hello: &[u8], answer: &[u8], proof: &Proof| {
            secret.is_proved(role, hello, answer, proof)
        };
        assert!(is_proved(&secret, Role::Slave, b"hello", b"answer", &proof));
        assert!(!is_proved(&secret, Role::Master, b"hello", b"answer", &proof));
        assert!(!is_proved(&secret, Role::Slave, b"hallo", b"answer", &proof));
        assert!(!is_proved(&secret, Role::Slave, b"hello", b"answers", &proof));
        assert!(!is_proved(&Secret::new("another"), Role::Slave, b"hello", b"answer", &proof));
        for byte in 0..PROOF_BYTES {
            let mut other = proof;
            other[byte] ^= 1;
            assert!(!is_proved(&secret, Role::Slave, b"hello", b"answer", &other), "{byte}");
        }
        assert!(!format!("{secret:?}").contains("long"));
        assert_ne!(nonce().unwrap(), nonce().unwrap());
    }

    /// RFC 4231, test case 2, so that the bytes are those of HMAC-SHA256 whatever library makes them.
    #[test]
    fn it_is_hmac_with_sha_256() {
        let tag = hmac::sign(&Secret::new("Jefe").0, b"what do ya want for nothing?");
        let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }
}
