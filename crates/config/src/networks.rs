//! Lists of addresses, each alone or with all that begin alike (`10.0.0.0/8`).

use std::net::IpAddr;

/// Parts of one list.
const PARTS_MAX: usize = 1_000;
/// Bits before an IPv4 address that is written as IPv6 (`::ffff:10.0.0.5`).
const MAPPED_BITS: u8 = 96;

/// Addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    first: IpAddr,
    /// Bits that are alike.
    bits: u8,
}

/// A list of them (`replicaAllow`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<Network>);

impl Networks {
    /// Reads a list, joined by commas or semicolons; `none` and nothing are an empty one. An error is the end of the sentence "… is".
    pub fn parse(text: &str) -> Result<Networks, String> {
        let parts = text.split([',', ';']).map(str::trim).filter(|part| !part.is_empty());
        let parts: Vec<&str> = parts.filter(|part| !part.eq_ignore_ascii_case("none")).collect();
        if parts.len() > PARTS_MAX {
            return Err(format!("a list of {} addresses, the limit is {PARTS_MAX}", parts.len()));
        }
        parts.into_iter().map(network).collect::<Result<_, _>>().map(Networks)
    }

    /// Whether an address is in one of them. IPv4 written as IPv6 is the same address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(address))
    }
}

fn network(part: &str) -> Result<Network, String> {
    let (first, bits) = part.split_once('/').map_or((part, None), |(first, bits)| (first, Some(bits)));
    let wrong =
        || format!("no list of addresses: {part} is neither an IP address nor one with a prefix, as 10.0.0.0/8");
    let first: IpAddr = first.trim().parse().map_err(|_| wrong())?;
    let bits_max = if first.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        None => bits_max,
        Some(bits) => bits.trim().parse().map_err(|_| wrong())?,
    };
    if bits > bits_max {
        return Err(format!("no list of addresses: the prefix of {part} has {bits} bits, the limit is {bits_max}"));
    }
    // IPv4 written as IPv6 is looked for as IPv4.
    let canonical = first.to_canonical();
    if canonical.is_ipv4() == first.is_ipv4() {
        return Ok(Network { first, bits });
    }
    let Some(bits) = bits.checked_sub(MAPPED_BITS) else {
        return Err(format!(
            "no list of addresses: {part} is IPv4 written as IPv6, and its prefix has {bits} bits, {MAPPED_BITS} are the least"
        ));
    };
    Ok(Network { first: canonical, bits })
}

impl Network {
    fn contains(self, address: IpAddr) -> bool {
        let differ = match (self.first, address) {
            (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
            (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
        };
        differ >= u32::from(self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_a_list_alone_or_by_what_it_begins_with() {
        let list = Networks::parse("10.1.0.0/16; 192.168.7.9,fd00::/8 ,none").unwrap();
        let has = |address: &str| list.contains(address.parse().unwrap());
        assert!(has("10.1.255.1") && has("192.168.7.9") && has("fd12::1") && has("::ffff:10.1.2.3"));
        assert!(!has("10.2.0.1") && !has("192.168.7.8") && !has("fe80::1"));
        let all = Networks::parse("0.0.0.0/0").unwrap();
        assert!(all.contains("1.2.3.4".parse().unwrap()) && !all.contains("::1".parse().unwrap()));
        for nobody in ["", "none", " , "] {
            assert_eq!(Networks::parse(nobody), Ok(Networks::default()));
        }
    }

    #[test]
    fn an_address_of_ipv4_may_be_written_as_ipv6() {
        let list = Networks::parse("::ffff:10.0.0.5, ::ffff:10.1.0.0/112").unwrap();
        let has = |address: &str| list.contains(address.parse().unwrap());
        assert!(has("10.0.0.5") && has("::ffff:10.0.0.5") && has("10.1.7.7") && has("::ffff:10.1.7.7"));
        assert!(!has("10.0.0.6") && !has("10.2.0.1") && !has("::ffff:10.2.0.1"));
        assert!(Networks::parse("::ffff:0.0.0.0/96").unwrap().contains("1.2.3.4".parse().unwrap()));
    }

    #[test]
    fn what_is_no_address_is_named() {
        for wrong in ["10.0.0.0/33", "host", "10.0.0", "10.0.0.0/x", "::/129", "::ffff:10.0.0.0/95"] {
            let said = Networks::parse(&format!("10.0.0.1,{wrong}")).unwrap_err();
            assert!(said.contains(wrong), "{said}");
        }
    }
}
