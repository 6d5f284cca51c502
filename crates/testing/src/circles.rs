//! Circles of imports: modules each of which reaches every other one.

use std::collections::BTreeSet;

use crate::imports::Imports;

/// The circles of two modules and more, the largest first.
pub fn of(imports: &Imports) -> Vec<BTreeSet<String>> {
    let reached: Vec<(&String, BTreeSet<&String>)> =
        imports.keys().map(|from| (from, reached(from, imports))).collect();
    let mut circles = Vec::<BTreeSet<String>>::new();
    for (from, to) in &reached {
        if !to.contains(*from) || circles.iter().any(|circle| circle.contains(*from)) {
            continue;
        }
        let both = reached.iter().filter(|(other, back)| to.contains(*other) && back.contains(*from));
        circles.push(both.map(|(other, _)| (*other).clone()).collect());
    }
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

fn reached<'a>(from: &String, imports: &'a Imports) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut left: Vec<&String> = imports.get(from).into_iter().flatten().collect();
    while let Some(next) = left.pop() {
        if reached.insert(next) {
            left.extend(imports.get(next).into_iter().flatten());
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_reach_each_other_are_a_circle() {
        let arrows = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "d"), ("f", "a")];
        let mut imports = Imports::new();
        for (from, to) in arrows {
            imports.entry(from.to_owned()).or_default().insert(to.to_owned());
        }
        let circles = of(&imports);
        let names = |circle: &BTreeSet<String>| circle.iter().cloned().collect::<Vec<_>>().concat();
        assert_eq!(circles.iter().map(names).collect::<Vec<_>>(), ["abc", "de"]);
    }
}
