//! RocketMQ's names of versions: peers send the place of their version in a list (`MQVersion`) that has two entries for each patch.

/// The versions before the list became regular.
const FIRST: [&str; 16] = [
    "V3_0_0_SNAPSHOT",
    "V3_0_0_ALPHA1",
    "V3_0_0_BETA1",
    "V3_0_0_BETA2",
    "V3_0_0_BETA3",
    "V3_0_0_BETA4",
    "V3_0_0_BETA5",
    "V3_0_0_BETA6_SNAPSHOT",
    "V3_0_0_BETA6",
    "V3_0_0_BETA7_SNAPSHOT",
    "V3_0_0_BETA7",
    "V3_0_0_BETA8_SNAPSHOT",
    "V3_0_0_BETA8",
    "V3_0_0_BETA9_SNAPSHOT",
    "V3_0_0_BETA9",
    "V3_0_0_FINAL",
];

/// The place behind the last entry (5.9.9).
const END: usize = 612;

/// RocketMQ's name of a version.
pub fn name(number: i32) -> String {
    let Ok(place) = usize::try_from(number) else { return "HIGHER_VERSION".to_owned() };
    let (major, minor, patch) = match place {
        0..16 => return FIRST[place].to_owned(),
        16..46 => (3, 0, (place - 16) / 2 + 1),
        46..86 => (3, 1 + (place - 46) / 20, (place - 46) / 2 % 10),
        // 3.3 to 3.9 have no patch 0.
        86..212 => (3, 3 + (place - 86) / 18, (place - 86) / 2 % 9 + 1),
        212..END => (4 + (place - 212) / 200, (place - 212) / 20 % 10, (place - 212) / 2 % 10),
        END.. => return "HIGHER_VERSION".to_owned(),
    };
    let snapshot = if place.is_multiple_of(2) { "_SNAPSHOT" } else { "" };
    format!("V{major}_{minor}_{patch}{snapshot}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places and names of the Java list at its seams.
    #[test]
    fn places_have_the_names_of_the_java_list() {
        for (place, expected) in [
            (0, "V3_0_0_SNAPSHOT"),
            (15, "V3_0_0_FINAL"),
            (16, "V3_0_1_SNAPSHOT"),
            (45, "V3_0_15"),
            (46, "V3_1_0_SNAPSHOT"),
            (85, "V3_2_9"),
            (86, "V3_3_1_SNAPSHOT"),
            (103, "V3_3_9"),
            (104, "V3_4_1_SNAPSHOT"),
            (211, "V3_9_9"),
            (212, "V4_0_0_SNAPSHOT"),
            (409, "V4_9_8"),
            (412, "V5_0_0_SNAPSHOT"),
            (479, "V5_3_3"),
            (513, "V5_5_0"),
            (611, "V5_9_9"),
            (612, "HIGHER_VERSION"),
            (-1, "HIGHER_VERSION"),
        ] {
            assert_eq!(name(place), expected, "{place}");
        }
    }
}
