//! Numbers that some peers write as text.

use std::fmt::Display;
use std::str::FromStr;

use serde::Deserialize;

/// A number or its text: other languages write some numbers as strings (Go's code set, C++'s versions and offsets), and they are numbers all
/// the same, as fastjson has it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Loose<N> {
    Number(N),
    Text(String),
}

impl<N: FromStr<Err: Display>> Loose<N> {
    fn number<E: serde::de::Error>(self) -> Result<N, E> {
        match self {
            Loose::Number(number) => Ok(number),
            Loose::Text(text) => text.parse().map_err(E::custom),
        }
    }
}

pub(super) fn loose<'de, D, N>(deserializer: D) -> Result<N, D::Error>
where
    D: serde::Deserializer<'de>,
    N: Deserialize<'de> + FromStr<Err: Display>,
{
    Loose::<N>::deserialize(deserializer)?.number()
}

pub(super) fn loose_i32s<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<i32>, D::Error> {
    Vec::<Loose<i32>>::deserialize(deserializer)?.into_iter().map(Loose::number).collect()
}
