use proptest::prelude::*;

use super::*;
use crate::parser::parse;

const NAMES: [&str; 4] = ["a", "_b", "$c9", "Inn"];

fn boxed(node: Node) -> Box<Node> {
    Box::new(node)
}

fn slot() -> impl Strategy<Value = Slot> {
    0..NAMES.len()
}

fn text() -> impl Strategy<Value = Box<str>> {
    prop_oneof!["[a' \n-]{0,5}", ".{0,4}"].prop_map(Into::into)
}

fn constant() -> impl Strategy<Value = Constant> {
    prop_oneof![
        Just(Constant::Null),
        any::<bool>().prop_map(Constant::Bool),
        (0..=i32::MAX).prop_map(Constant::Int),
        (i64::from(i32::MAX) + 1..=i64::MAX).prop_map(Constant::Long),
        (f64::MIN_POSITIVE..f64::MAX).prop_map(Constant::Double),
        (1_u64..1 << 52).prop_map(|bits| Constant::Double(f64::from_bits(bits))),
        (0.001..1000.0).prop_map(Constant::Double),
        text().prop_map(Constant::Text),
    ]
}

fn comparison() -> impl Strategy<Value = Comparison> {
    use Comparison::*;
    prop::sample::select(vec![Less, LessOrEqual, Greater, GreaterOrEqual])
}

/// Conditions and values in turn, as the grammar lets them be nested. The first of a pair is a condition, the second any value.
fn conditions_and_values() -> impl Strategy<Value = (Node, Node)> {
    let leaf = (constant(), slot()).prop_flat_map(|(constant, slot)| {
        let condition = prop_oneof![Just(Node::Constant(Constant::Bool(true))), Just(Node::Condition(slot))];
        let value = prop_oneof![Just(Node::Constant(constant)), Just(Node::Property(slot))];
        (condition, value)
    });
    leaf.prop_recursive(6, 64, 4, |inner| {
        let condition = inner.clone().prop_map(|(condition, _)| condition).boxed();
        let value = inner.prop_map(|(_, value)| value).boxed();
        let ordered = prop_oneof![
            slot().prop_map(Node::Property),
            (0..=i32::MAX).prop_map(|number| Node::Constant(Constant::Int(number))),
            value.clone().prop_map(|value| Node::Negate(boxed(value))),
        ]
        .boxed();
        let is_negated = any::<bool>();
        let operator = prop_oneof![
            condition.clone().prop_map(|value| Node::Not(boxed(value))),
            prop::collection::vec(condition.clone(), 2..4).prop_map(Node::And),
            prop::collection::vec(condition.clone(), 2..4).prop_map(Node::Or),
            (any::<bool>(), value.clone(), value.clone()).prop_filter_map("types", |(is_equal, left, right)| {
                let is_null = |node: &Node| *node == Node::Constant(Constant::Null);
                let is_refused = is_null(&left)
                    || is_null(&right)
                    || matches!(left, Node::Constant(Constant::Bool(_))) && matches!(right, Node::Constant(_));
                let comparison = if is_equal { Comparison::Equal } else { Comparison::NotEqual };
                (!is_refused).then(|| Node::Compare { comparison, operands: Box::new([left, right]) })
            }),
            (comparison(), ordered.clone(), ordered.clone())
                .prop_map(|(comparison, left, right)| Node::Compare { comparison, operands: Box::new([left, right]) }),
            (is_negated, value.clone())
                .prop_map(|(is_negated, value)| Node::IsNull { is_negated, value: boxed(value) }),
            (any::<bool>(), ordered.clone(), slot(), ordered).prop_map(|(is_negated, value, low, high)| {
                Node::Between { is_negated, operands: Box::new([value, Node::Property(low), high]) }
            }),
            (any::<bool>(), slot(), prop::collection::btree_set(text(), 1..8)).prop_map(|(is_negated, slot, list)| {
                Node::In { is_negated, slot, list: list.into_iter().collect() }
            }),
            (any::<bool>(), prop::sample::select(vec![Part::Anywhere, Part::Start, Part::End]), value.clone(), text())
                .prop_map(|(is_negated, part, value, text)| Node::Match {
                    part,
                    is_negated,
                    value: boxed(value),
                    text
                }),
        ]
        .boxed();
        let negated = value.clone().prop_map(|value| Node::Negate(boxed(value)));
        let any_value = prop_oneof![operator.clone(), negated, value];
        (prop_oneof![operator, condition], any_value)
    })
}

proptest! {
    #[test]
    fn a_printed_tree_is_parsed_as_itself((condition, _) in conditions_and_values()) {
        // The names come first, so that each has the index that the tree gives it.
        let named = (0..NAMES.len()).map(|slot| Node::IsNull { is_negated: false, value: boxed(Node::Property(slot)) });
        let tree = Node::And(named.chain([condition]).collect());
        let names = NAMES.map(Box::from);
        let text = Printed { node: &tree, names: &names }.to_string();
        match parse(&text) {
            Ok(parsed) => {
                prop_assert_eq!(parsed.root, tree, "{}", text);
                prop_assert_eq!(parsed.names, names.to_vec());
            }
            Err(error) => prop_assert!(false, "{}: {}", text, error),
        }
    }
}
