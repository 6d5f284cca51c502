//! Signed requests: who asks, and proof of it, in three fields more.
//!
//! The signature is HMAC-SHA1 with the secret key over the values of all fields in the order of their names, and then the body. Field
//! names are not part of it, nor is the code.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::BytesMut;
use hmac::{Hmac, KeyInit, Mac};
use protocol::frame::Serialization;
use protocol::header::{EncodeFields, FieldSink, Head, HeaderScratch, decode, write_frame};
use sha1::Sha1;

const ACCESS_KEY: &str = "AccessKey";
const SECURITY_TOKEN: &str = "SecurityToken";
const SIGNATURE: &str = "Signature";
/// The two length words of a frame.
const LENGTHS: usize = 8;

/// What a cluster with access control knows its user by.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user's name.
    pub access_key: String,
    /// The user's password.
    pub secret_key: String,
    /// Of temporary credentials.
    pub security_token: Option<String>,
}

impl std::fmt::Debug for Credentials {
    /// Without the secret: it must not get into logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

/// The fields of a request, signed.
pub(crate) struct Signed<'a> {
    fields: &'a (dyn EncodeFields + Sync),
    credentials: &'a Credentials,
    signature: String,
}

impl<'a> Signed<'a> {
    pub(crate) fn new(fields: &'a (dyn EncodeFields + Sync), credentials: &'a Credentials, body: &[u8]) -> Signed<'a> {
        let unsigned = Signed { fields, credentials, signature: String::new() };
        let signature = STANDARD.encode(unsigned.code_of(body));
        Signed { signature, ..unsigned }
    }

    fn code_of(&self, body: &[u8]) -> Vec<u8> {
        // Written and read back: only then are all values the texts that the other side will see.
        let mut frame = BytesMut::new();
        write_frame(&mut frame, Serialization::Binary, &Head::default(), self, 0);
        let mut scratch = HeaderScratch::new();
        let header = decode(&frame[LENGTHS..], Serialization::Binary, &mut scratch);
        let mut fields: Vec<(&str, &str)> = header.iter().flat_map(|header| header.fields.iter()).collect();
        fields.sort_unstable();
        // HMAC takes a key of any length: a longer one is hashed first.
        #[expect(clippy::expect_used, reason = "never fails: see above")]
        let mut mac =
            Hmac::<Sha1>::new_from_slice(self.credentials.secret_key.as_bytes()).expect("any length is a key");
        fields.iter().for_each(|(_, value)| mac.update(value.as_bytes()));
        mac.update(body);
        mac.finalize().into_bytes().to_vec()
    }
}

impl EncodeFields for Signed<'_> {
    fn encode(&self, sink: &mut FieldSink<'_>) {
        self.fields.encode(sink);
        sink.str(ACCESS_KEY, &self.credentials.access_key);
        sink.opt_str(SECURITY_TOKEN, self.credentials.security_token.as_deref());
        if !self.signature.is_empty() {
            sink.str(SIGNATURE, &self.signature);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::request::GetTopicStats;

    fn credentials(security_token: Option<&str>) -> Credentials {
        let security_token = security_token.map(str::to_owned);
        Credentials { access_key: "key".into(), secret_key: "secret".into(), security_token }
    }

    /// What Java's `AclClientRPCHook` 5.5.0 gives for the same requests.
    #[test]
    fn signatures_are_those_that_java_makes() {
        let credentials = credentials(None);
        let signed = Signed::new(&GetTopicStats { topic: "orders" }, &credentials, b"body");
        assert_eq!(signed.signature, "acuhJSi1fH/CtRrRJ1GC/qfS85k=");
    }

    #[test]
    fn a_token_is_part_of_what_is_signed() {
        let credentials = credentials(Some("token"));
        assert_eq!(Signed::new(&(), &credentials, b"").signature, "hqAo5ZHOrKCXBwOHWfAzzucq9yw=");
    }

    #[test]
    fn the_secret_is_not_in_what_is_printed() {
        assert!(!format!("{:?}", credentials(None)).contains("secret"));
    }
}
