//! What holds for every expression and every message.

#![allow(clippy::unwrap_used, reason = "what fails here fails the run")]

use filter::{DEPTH_MAX, EXPRESSION_BYTES_MAX, Expression, NODES_MAX, SyntaxErrorKind};
use proptest::prelude::*;

fn eval(text: &str, properties: &str) -> Option<bool> {
    let expression = Expression::compile(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    expression.eval(properties.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Conditions that are true, false or null, nested at will.
fn truth() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "TRUE",
        "FALSE",
        "NULL",
        "a = 5",
        "a > 5",
        "a IN ('5')",
        "b = 5",
        "b",
        "a",
        "a IS NULL",
        "b IS NULL",
        "b CONTAINS 'x'",
    ]);
    leaf.prop_map(str::to_owned).prop_recursive(4, 24, 2, |inner| {
        prop_oneof![
            inner.clone().prop_map(|x| format!("NOT ({x})")),
            (inner.clone(), inner.clone()).prop_map(|(x, y)| format!("({x}) AND ({y})")),
            (inner.clone(), inner).prop_map(|(x, y)| format!("({x}) OR ({y})")),
        ]
    })
}

fn property_string() -> impl Strategy<Value = String> {
    prop_oneof!["([ab]\u{1}(5|x|5\\.5)\u{2}){0,4}", "[ab5\u{1}\u{2}]{0,16}", ".{0,20}"]
}

/// Much of it is almost an expression.
fn text() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "a", "b", "5", "'x'", "5.5", "TRUE", "NULL", "(", ")", "=", "<>", ">", "AND", "OR", "NOT", "IS", "IN", "('x'",
        ",", "BETWEEN", "CONTAINS", "-", "+", "--", "/*", "*/", "\n", "'", ".", "1e", "é", "\0",
    ]);
    prop_oneof![prop::collection::vec(word, 0..12).prop_map(|words| words.join(" ")), ".{0,40}"]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_text_is_an_expression_or_an_error_that_points_into_it(text in text(), properties in property_string()) {
        match Expression::compile(&text) {
            Ok(expression) => {
                let _ = expression.eval(properties.as_bytes());
                prop_assert_eq!(Expression::compile(&expression.to_string()), Ok(expression));
            }
            Err(error) => {
                prop_assert!(text.is_char_boundary(error.offset));
                prop_assert!(text[error.offset..].starts_with(error.found.trim_end_matches('…')));
                prop_assert!(error.line >= 1 && error.column >= 1);
            }
        }
    }

    #[test]
    fn any_bytes_are_evaluated(text in truth(), properties in prop::collection::vec(any::<u8>(), 0..40)) {
        let _ = Expression::compile(&text).unwrap().eval(&properties);
    }

    #[test]
    fn a_look_up_and_a_property_string_give_the_same(text in truth(), a in "[5x]{0,2}", b in "[5x]{0,2}") {
        let properties = format!("a\u{1}{a}\u{2}b\u{1}{b}\u{2}");
        let expression = Expression::compile(&text).unwrap();
        let looked_up = expression.eval_with(|name| {
            let value = if name == "a" { &a } else { &b };
            if value.is_empty() { None } else { Some(value.as_bytes()) }
        });
        prop_assert_eq!(looked_up, expression.eval(properties.as_bytes()));
    }

    #[test]
    fn conditions_obey_three_valued_logic(x in truth(), y in truth(), z in truth(), properties in "(a\u{1}[56]\u{2})?(b\u{1}5\u{2})?") {
        let is = |text: &str| eval(text, &properties);
        let (left, right) = (is(&x), is(&y));
        let and = match (left, right) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            _ => None,
        };
        prop_assert_eq!(is(&format!("NOT ({x})")), left.map(|truth| !truth));
        prop_assert_eq!(is(&format!("NOT (NOT ({x}))")), left);
        prop_assert_eq!(is(&format!("({x}) AND ({y})")), and);
        prop_assert_eq!(is(&format!("({y}) AND ({x})")), and);
        prop_assert_eq!(is(&format!("NOT (NOT ({x}) OR NOT ({y}))")), and);
        prop_assert_eq!(is(&format!("(({x}) OR ({y})) OR ({z})")), is(&format!("({x}) OR ({y}) OR ({z})")));
        prop_assert_eq!(is(&format!("(({x}) AND ({y})) AND ({z})")), is(&format!("({x}) AND (({y}) AND ({z}))")));
        prop_assert_eq!(
            is(&format!("({x}) AND (({y}) OR ({z}))")),
            is(&format!("(({x}) AND ({y})) OR (({x}) AND ({z}))"))
        );
        prop_assert_eq!(is(&format!("({x}) IS NULL")), Some(left.is_none()));
        prop_assert_eq!(is(&format!("({x}) IS NOT NULL")), Some(left.is_some()));
    }
}

fn kind(text: &str) -> Option<SyntaxErrorKind> {
    Expression::compile(text).err().map(|error| error.kind)
}

/// A stack that no thread of ours undercuts, so that a recursion without a bound fails here.
fn on_a_small_stack(work: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(512 << 10).spawn(work).unwrap().join().unwrap();
}

#[test]
fn nesting_beyond_the_limit_is_refused_and_up_to_it_needs_little_stack() {
    on_a_small_stack(|| {
        let nested = |open: &str, inner: &str, close: &str, depth: usize| {
            format!("{}{inner}{}", open.repeat(depth), close.repeat(depth))
        };
        let deep = DEPTH_MAX - 1;
        for (open, inner, close) in [
            ("(", "a", ")"),
            ("NOT ", "a", ""),
            ("a = (", "b", ")"),
            ("a OR (b AND NOT(", "a", "))"),
            ("-", "a", ""),
            ("+", "a", ""),
        ] {
            // Signs leave a value, so it is compared.
            let ending = if open == "-" || open == "+" { " = 5" } else { "" };
            let repeats = if open.len() > 10 {
                deep / 5
            } else if open.len() > 4 {
                deep / 2
            } else {
                deep - 1
            };
            let text = format!("{}{ending}", nested(open, inner, close, repeats));
            let expression = Expression::compile(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            let _ = expression.eval(b"a\x015\x02");
            assert_eq!(Expression::compile(&expression.to_string()), Ok(expression));

            let text = format!("{}{ending}", nested(open, inner, close, EXPRESSION_BYTES_MAX / 32));
            assert_eq!(kind(&text), Some(SyntaxErrorKind::Limit), "{open}");
        }
        for (link, first) in [(" = b", "a"), (" IS NULL", "a"), (" CONTAINS 'x'", "a")] {
            let text = format!("{first}{}", link.repeat(2000));
            assert_eq!(kind(&text), Some(SyntaxErrorKind::Limit), "{link}");
        }
    });
}

#[test]
fn a_long_chain_is_no_deep_tree() {
    on_a_small_stack(|| {
        for word in ["AND", "OR"] {
            let text = vec!["a = 5"; 2000].join(&format!(" {word} "));
            assert_eq!(eval(&text, "a\u{1}5\u{2}"), Some(true));
        }
    });
}

#[test]
fn size_is_limited() {
    let list = |texts: usize| format!("a IN ({})", vec!["'x'"; texts].join(","));
    assert_eq!(kind(&list(NODES_MAX - 2)), None);
    assert_eq!(kind(&list(NODES_MAX)), Some(SyntaxErrorKind::Limit));
    assert_eq!(kind(&format!("a = '{}'", "x".repeat(EXPRESSION_BYTES_MAX - 6))), None);
    assert_eq!(kind(&format!("a = '{}'", "é".repeat(EXPRESSION_BYTES_MAX))), Some(SyntaxErrorKind::Limit));
}

#[test]
fn more_properties_than_one_pass_finds_are_found_too() {
    let names: Vec<_> = (0..40).map(|index| format!("p{index}")).collect();
    let text = names.iter().map(|name| format!("{name} = '{name}'")).collect::<Vec<_>>().join(" AND ");
    let properties: String = names.iter().map(|name| format!("{name}\u{1}{name}\u{2}")).collect();
    assert_eq!(eval(&text, &properties), Some(true));
    assert_eq!(eval(&text, &format!("{properties}p39\u{1}x\u{2}")), Some(false));
    assert_eq!(Expression::compile(&text).unwrap().names().count(), 40);
}

#[test]
fn an_error_says_where_what_and_what_instead() {
    let error = Expression::compile("a = 5 AND\n  b NOT c").unwrap_err();
    assert_eq!((error.offset, error.line, error.column, error.found.as_str()), (18, 2, 9, "c"));
    assert_eq!(
        error.remark(),
        "org.apache.rocketmq.filter.parser.ParseException: Encountered \"c\" at line 2, column 9, \
         expected IN, BETWEEN, CONTAINS, STARTSWITH or ENDSWITH"
    );
    let error = Expression::compile("a = ").unwrap_err();
    assert_eq!(
        error.to_string(),
        "Encountered the end at line 1, column 5, expected a property, a literal, NOT, a sign or ("
    );
    assert_eq!(Expression::compile(&format!("a = '{}", "x".repeat(99))).unwrap_err().found.chars().count(), 41);
}
