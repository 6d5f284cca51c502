import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;
import org.apache.rocketmq.filter.util.BitsArray;
import org.apache.rocketmq.filter.util.BloomFilter;

/** Writes what the published classes make of SQL92 expressions, of numbers in text, and of bloom filters. */
public class FilterRecorder {
    /** Values of property `a`, each a property string of its own. */
    static final String[] VALUES = {
        "5", "4", "6", "10", "1", "0", "-5", "+5", "--5", "-", "+", " 5", "5 ", "05", "5.0", "3.5", "5.", ".5", "0.1", "5d", "5F", "5L",
        "1e3", "1E+3", "1e", "1_0", "0x10", "0x1p4", "0x1.8P0f", "NaN", "nan", "-NaN", "Infinity", "-Infinity", "-0", "-0.0", "0.0",
        "2147483647", "2147483648", "-2147483648", "-2147483649", "3000000000", "9007199254740993", "9223372036854775807",
        "9223372036854775808", "-9223372036854775808", "1e308", "1e400", "4.9E-324", "1e-400", "true", "TRUE", "True", "false", "yes",
        "abc", "ABC", "xabc", "abcx", "it's", "null", "NULL", "\u0665", "\uff15", "\u65e5\u672c", "\ud83d\ude00x", "red", " ", "\t5\n", "\u00a05",
    };

    /** Properties of more than one name, and strings that are not quite property strings. */
    static final String[] SETS = {
        "", "a\u00015\u0002b\u00015\u0002", "a\u00015\u0002b\u00016\u0002", "a\u00015\u0002b\u00015.0\u0002", "a\u0001abc\u0002b\u0001abd\u0002",
        "a\u0001-0.0\u0002b\u00010.0\u0002", "a\u0001NaN\u0002b\u0001NaN\u0002", "a\u0001NaN\u0002b\u0001-NaN\u0002", "b\u00015\u0002",
        "b\u0001true\u0002c\u0001x\u0002", "a\u00015\u0002b\u0001red\u0002c\u0001true\u0002", "a\u00015\u0002a\u00016\u0002",
        "a\u00016\u0002a\u00015", "a\u00015", "a\u0001\u0002", "a\u00015\u0002a\u0001\u0002", "\u00015\u0002", "a\u0002", "a\u00015\u00016\u0002",
        "aa\u00015\u0002", "A\u00015\u0002", "\u0002\u0002a\u00015\u0002\u0002", "x\u0001a\u00015\u0002", "a b\u00011\u0002a\u00015\u0002", "_x\u00015\u0002$y\u00016\u0002a1\u00017\u0002",
        "TAGS\u0001TagA\u0002KEYS\u0001k1 k2\u0002UNIQ_KEY\u00017F0000010B2C\u0002WAIT\u0001true\u0002a\u00017\u0002b\u0001blue\u0002",
    };

    static final String[] BY_HAND = {
        // Forms, spaces, letters.
        "a = 5", "a=5", "a = '5'", "a <> 5", "a<>'5'", "a < 5", "a <= 5", "a > 5", "a >= 5", "5 = a", "5 < a", "5 > a", "'5' = a", "a = b", "a <> b", "a > b",
        "a >= b", "a < b", "a <= b", "(a = 5)", "((((a)))) = 5", " \t\n\r\fa\t=\n5 ", "a = 5 and b = 5", "a = 5 AND b = 5", "a = 5 aNd b = 5", "a = 5 or b = 6",
        "a = 5 OR b = 6 AND c = 'x'", "(a = 5 OR b = 6) AND c = 'x'", "A = 5", "aa = 5", "_x = 5", "$y = 6", "a1 = 7", "$ = 1", "_ = 1", "TAGS = 'TagA'", "KEYS CONTAINS 'k1'",
        "a = 5 AND b = 'red' AND c IS NOT NULL",
        // NULL.
        "a IS NULL", "a IS NOT NULL", "a is null", "a is not null", "NOT a IS NULL", "NOT (a IS NULL)", "NULL IS NULL", "NULL IS NOT NULL", "5 IS NULL", "'x' IS NOT NULL",
        "a IS NULL IS NULL", "a IS NULL IS NOT NULL", "(a = 5) IS NULL", "(a > 5) IS NULL", "NULL", "NOT NULL", "NULL AND TRUE", "NULL AND FALSE", "NULL OR TRUE", "NULL OR FALSE", "NULL OR NULL",
        "a = NULL", "NULL = a", "a <> NULL", "a > NULL", "NULL < a", "-NULL = 5", "-NULL > 5", "a = -NULL", "a IS", "a IS NOT", "a IS 5", "a IS NOT 5", "a IS TRUE", "a IS NOT TRUE", "IS NULL",
        // Boolean.
        "a", "(a)", "NOT a", "NOT NOT a", "NOT (NOT a)", "a AND b", "a OR b", "a AND TRUE", "TRUE", "FALSE", "true", "False", "NOT TRUE", "NOT FALSE", "TRUE AND FALSE", "TRUE OR FALSE",
        "a = TRUE", "a = FALSE", "a <> TRUE", "a = true", "TRUE = a", "FALSE = a", "TRUE <> a", "TRUE = TRUE", "TRUE = FALSE", "TRUE <> FALSE", "TRUE = 1", "1 = TRUE", "1 <> TRUE", "1.5 = TRUE",
        "3000000000 = TRUE", "'true' = TRUE", "'x' = FALSE", "TRUE = 'true'", "TRUE > 1", "1 > TRUE", "a > TRUE", "a >= FALSE", "(a = 5) = TRUE", "(a = 5) = (b = 5)", "(a = 5) <> (b = 5)",
        "(a = 5) = 5", "5 = (a = 5)", "(a = 5) = b", "b = (a = 5)", "(a = 5) > 1", "1 < (a = 5)", "a = 5 = TRUE", "a = 5 = b = 5", "TRUE = (a = 5)", "a = TRUE AND b = TRUE", "a = b = c", "a = (b = c)",
        "NOT a = 5", "NOT a > 5", "NOT (a > 5)", "NOT a IS NULL", "NOT a IN ('5')", "NOT a CONTAINS 'b'", "NOT a BETWEEN 1 AND 9", "NOT 5", "NOT 'x'", "NOT -a", "-NOT a", "-(NOT a) > 5", "-(a = 5) > 5",
        "a > -(TRUE = b)", "a > -(b = 1)", "-(TRUE = b) < a", "5", "'x'", "5.5", "a AND 5", "5 AND a", "'x' OR a", "a OR 'x'", "-a", "-5", "(5)", "a AND -b",
        // Numbers.
        "a = 0", "a = 00", "a = 05", "a = 007", "a = 0x10", "a = 0X1F", "a = 010", "a = 0l", "a = 5l", "a = 5L", "a = 5l AND b = 5", "a = 5d", "a = 5f", "a = 5.0", "a = 5.", "a = .5", "a = 5.0f",
        "a = 1e3", "a = 1E3", "a = 1e+3", "a = 1e-3", "a = 1.e3", "a = .1e1", "a = 1.5e0", "a = 1e", "a = 1e+", "a = 1.5.5", "a = .", "a = 1..2", "a = 1.", "a = 0.0", "a = 0e0", "a = .0", "a = -0.0", "a = 0.", "a = 1e-400",
        "a = 4.9e-324", "a = 1e308", "a = 1e309", "a = 1e400", "a = 1.7976931348623157e308", "a = 1.7976931348623159e308", "a = 0.1", "a = 0.10000000000000001", "a > 0.1", "a < 5.5", "a < 5", "a > 3", "a <= 3.5", "5.5 > a", "3.5 = a",
        "a = 2147483647", "a = 2147483648", "a = -2147483648", "a = -2147483649", "a > 2147483647", "a > 2147483648", "a > -2147483648", "a > -2147483647", "a = 3000000000", "a < 3000000000", "a > 3000000000L",
        "a = 9223372036854775807", "a = 9223372036854775808", "a = -9223372036854775808", "a = -9223372036854775807", "a > -9223372036854775807", "a = 99999999999999999999", "a = 99999999999999999999L", "a = 9007199254740993.0", "a = 9007199254740993",
        "1 = 1", "1 = 1.0", "1.0 = 1", "1 = 3000000000", "3000000000 = 1", "3000000000 = 3000000000", "3000000000 = 3000000000.0", "9007199254740993 = 9007199254740992.0", "9007199254740993 > 9007199254740992.0", "9007199254740992.0 < 9007199254740993",
        "5 > 3", "3 > 5", "5 > 3.5", "3.5 < 5", "3000000000 > 5", "5 < 3000000000", "3000000000 > 5.5", "5.5 < 3000000000", "1 = '1'", "'1' = 1", "1.0 = '1'", "'1' = 1.0", "'1.0' = 1", "1 = '1.0'", "3000000000 = '3000000000'", "'x' = 1", "1 = 'x'",
        "'a' = 'a'", "'a' = 'b'", "'a' <> 'b'", "'a' > 'b'", "a > 'b'", "'b' < a", "a >= '5'", "1 > '1'", "NOT 1 = 1", "NOT (1 = 1)",
        // Signs.
        "a = -5", "a = - 5", "a = --5", "a = - -5", "a = -(-5)", "a = +5", "a = + 5", "a = ++5", "a = +-5", "a = -+5", "a = - + - 5", "+a = 5", "+a > 5", "-a = 5", "-a > 5", "-a = -5", "-a < 5", "a = -b", "a > -b", "-a = -b", "-a > -b", "-'5' > 5", "-'5' = 5", "a = -'5'",
        "-TRUE > 5", "-TRUE = 5", "-5 = a", "-5 < a", "-(5) < a", "- -a > 1", "a = -5.5", "a > -0.5", "-1.5 < a", "a - 5", "a + 5", "a = 5 + 5", "a = 5 - 5", "a = 5 * 5", "a +", "a -", "a = +", "a = -", "+", "-", "+(a) = 5", "+(a = 5)", "-(a", "+(a", "+(a NOT b)", "+a NOT b", "+'x' = a",
        // BETWEEN.
        "a BETWEEN 1 AND 9", "a between 1 and 9", "a NOT BETWEEN 1 AND 9", "a not between 1 and 9", "a BETWEEN 5 AND 5", "a BETWEEN 9 AND 1", "a NOT BETWEEN 9 AND 1", "a BETWEEN -9 AND -1", "a BETWEEN -1 AND -9", "a NOT BETWEEN -1 AND -9",
        "a BETWEEN 1 AND 9 AND b = 5", "a BETWEEN 1 AND 9 OR b = 5", "b = 5 AND a BETWEEN 1 AND 9", "a BETWEEN b AND 9", "a BETWEEN 1 AND b", "5 BETWEEN 1 AND 9", "5 BETWEEN a AND b", "5 BETWEEN 1 AND a", "5 NOT BETWEEN 6 AND a", "5 BETWEEN 6 AND a", "a BETWEEN 1.5 AND 9", "a BETWEEN 1 AND 9.5", "a BETWEEN 9.5 AND 1", "a BETWEEN 1 AND 0.5",
        "a BETWEEN 1 AND 3000000000", "a BETWEEN 3000000000 AND 1", "a BETWEEN 'a' AND 'b'", "a BETWEEN 1 AND 'b'", "a BETWEEN 1 AND '9'", "a BETWEEN '1' AND 9", "a NOT BETWEEN 'a' AND 'b'", "a BETWEEN NULL AND 5", "a BETWEEN 1 AND NULL", "a NOT BETWEEN NULL AND 5", "a BETWEEN TRUE AND FALSE", "a BETWEEN FALSE AND TRUE",
        "'x' BETWEEN 1 AND 9", "(a = 5) BETWEEN 1 AND 9", "a BETWEEN (b = 5) AND 9", "a BETWEEN 1 AND (b = 5)", "a BETWEEN (1) AND (9)", "a BETWEEN +1 AND +9", "a BETWEEN 1", "a BETWEEN 1 AND", "a BETWEEN 1 OR 9", "BETWEEN 1 AND 9", "a BETWEEN 1 AND 9 BETWEEN 1 AND 9", "a BETWEEN 1 AND 9 = TRUE", "a BETWEEN 1 AND 9 IS NULL", "a NOT BETWEEN 1 AND 9 IS NULL", "-a BETWEEN 1 AND 9", "a BETWEEN NOT b AND 9", "a BETWEEN -'x' AND 9", "a BETWEEN 1 AND 9.0",
        // IN.
        "a IN ('5')", "a in ('5', '6')", "a IN('5','6','abc')", "a NOT IN ('5')", "a not in ('5', 'abc')", "a IN ('a','b','c','d','5')", "a IN ('a','b','c','d','e','f','5','5')", "a NOT IN ('a','b','c','d','5')", "a IN (5)", "a IN ()", "a IN 'x'", "a IN ('x'", "a IN ('x',)", "a IN (,'x')", "a IN ('x' 'y')", "a IN (b)", "a IN ('x', 5)",
        "a IN (TRUE)", "a IN (NULL)", "a IN (('x'))", "(a) IN ('5')", "+a IN ('5')", "-a IN ('5')", "5 IN ('5')", "'a' IN ('a')", "(a = 5) IN ('5')", "a IN ('5') IN ('5')", "a IN ('5') = TRUE", "a IN ('it''s', 'red')", "a IN ('')", "a NOT IN ('')", "a IN ('5') IS NULL", "a NOT", "a NOT b", "a NOT NOT IN ('5')", "NOT a NOT IN ('5')", "IN ('5')", "TRUE IN ('5')", "a IN ('\u65e5\u672c')",
        // CONTAINS, STARTSWITH, ENDSWITH.
        "a CONTAINS 'b'", "a contains 'abc'", "a CONTAINS 'abcx'", "a CONTAINS ''", "a NOT CONTAINS 'b'", "a NOT CONTAINS ''", "a STARTSWITH 'a'", "a startswith 'abc'", "a STARTSWITH ''", "a NOT STARTSWITH 'a'", "a NOT STARTSWITH ''", "a ENDSWITH 'c'", "a endsWith 'abc'", "a ENDSWITH ''",
        "a NOT ENDSWITH 'c'", "a NOT ENDSWITH ''", "a CONTAINS '''' ", "a CONTAINS 'it''s'", "a CONTAINS '5'", "a CONTAINS 5", "a CONTAINS b", "a CONTAINS NULL", "a CONTAINS", "CONTAINS 'a'", "'abc' CONTAINS 'b'", "'abc' NOT CONTAINS 'b'", "5 CONTAINS '5'", "5 NOT CONTAINS '5'", "TRUE CONTAINS 'r'", "NULL CONTAINS 'x'", "NULL NOT CONTAINS 'x'",
        "(a = 5) CONTAINS 'x'", "(a = 5) NOT CONTAINS 'x'", "(TRUE = a) CONTAINS 'x'", "(TRUE = a) CONTAINS ''", "(TRUE = a) NOT STARTSWITH ''", "a CONTAINS 'a' CONTAINS 'b'", "a CONTAINS 'a' = TRUE", "a CONTAINS 'a' IS NULL", "a CONTAINS 'a' > 5", "-a CONTAINS 'x'", "NOT a STARTSWITH 'a'", "NOT (a STARTSWITH 'a')", "a CONTAINS ('a')", "a CONTAINS 'a' AND a ENDSWITH 'c'", "a CONTAINS '\u672c'", "a STARTSWITH '\ud83d\ude00'",
        "a STARTSWITH 'A'", "a NOT STARTSWITH", "a NOT ENDSWITH 5", "contains = 1", "startswith = '5'", "a LIKE 'a%'", "a NOT LIKE 'a'", "containsx = 1",
        // Text.
        "a = ''", "a <> ''", "a = 'it''s'", "a = ''''", "a = ' '", "a = 'abc'", "a = 'ABC'", "a = 'x\ny'", "a = \"abc\"", "a = 'abc", "a = 'abc''", "a = '", "a = ''' ", "'abc' = a", "a = 'a' 'b'", "a = 'a''' b'", "a = '\u65e5\u672c'", "a <> '\ud83d\ude00x'", "a = 'null'", "a = '\\n'", "a = '\u0665'", "a = \u0665",
        // Names and words.
        "not", "and", "a.b = 5", "a-b = 5", "a:b = 5", "a b = 5", "5a = 5", "NOTa = 5", "nota", "TRUEx = 1", "truex", "isnull", "IN = 5", "a = in", "a = and", "AND a", "OR a", "a AND", "a OR", "a AND OR b", "a AND AND b", "a OR AND b", "not a", "nOt a", "a = b AND NOT c", "a@ = 1", "@a = 1", "#", "a = 5 #", "a # 5", "a = 5 b #", "a = ?", "a = 5;", "a = 5 ; b",
        "\u00e9 = 5", "\u212a = 5", "\u017f = 5", "\u0131s = 5", "a\u00e9 = 5", "a = 5 \u00e9", "\ud83d\ude00 = 5", "a \u3000= 5", "a\u00a0= 5", "\u000ba = 5", "\u0000", "a = 5 \u0000", "[a] = 5", "`a` = 5", "a = {5}", "now = 5", "now", "now()", "a > now",
        // Operators that are none.
        "a == 5", "a != 5", "a <> <> 5", "a =! 5", "a => 5", "a =< 5", "a > = 5", "a < > 5", "a < = 5", "a >< 5", "a > < 5", "a = = 5", "a > > 5", "a || b", "a && b", "a | b", "a & b", "a ^ b", "! a", "a = 5 & b", "=", "= 5", "> 5", "a =", "a >", "a <>", "a >= ",
        "a > 5 > 6", "a > 5 = TRUE", "a > 5 < 6", "5 < a < 6", "5 < a = TRUE", "a = 5 > 6", "a = b > 6", "a > b = TRUE", "a = 5 IS NULL", "a <> 5 IS NOT NULL", "a > 5 IS NULL", "a < 5 OR a >= 5", "NOT a OR b", "NOT a AND b = 5 OR c IS NULL", "a = 5 <> b = 6", "a <> 5 = b", "a = b > c",
        // Brackets and what follows an expression.
        "", " ", "()", "(a", "a)", "(a))", "((a)", "(a = 5", "(a = 5))", ")", "(", "a = (5)", "(a) = (5)", "(a = 5) b", "a = 5 b", "a = 5 b = 6", "a b", "a 5", "a = 5 )", "a = 5 ( b", "a = 5, b = 6", ",", "a = 5 'x'", "a = 5 'x", "a = 5 5", "a = 5 NULL", "a = 5 TRUE", "a = 5 NOT", "a = 5 NOT IN ('5')", "a = 5 IN ('5')", "a = b IN ('5')", "a = 5 CONTAINS 'x'", "a = b CONTAINS 'x'", "a = b NOT CONTAINS 'x'", "a = 5 BETWEEN 1 AND 9", "a = b BETWEEN 1 AND 9",
        "a (b)", "(a)(b)", "a AND (b", "a AND b)", "a OR (b AND (c OR a))", "a = 5 --", "a = 5 - b", "a = 5 + b",
        // Comments.
        "a = 5 -- five", "a = 5 -- five\n", "a = 5 -- five\nAND b = 6", "a = 5 -- five\rAND b = 6", "a = 5 -- five\r\nAND b = 6", "-- first\na = 5", "-- first", "--\na = 5", "a = --5", "a = --5\n", "a = --5\n5", "a = 5 --\n--\nAND b = 6", "a /* of */ = 5", "/**/a = 5", "/***/a = 5", "/* * */a = 5", "/* ** / */a = 5", "/* /* */ a = 5", "/* a */ b */ = 5", "a = 5 /* x", "a = 5 /* x *", "a = 5 /* x **/", "a = 5 /* x **/ AND b = 6", "a = 5 /", "a / 5", "a = 5 */", "a = /* \n \u65e5 */ 5", "a = 5 -/**/- 5", "a = -/**/-5", "a = - --\n 5", "a --\u65e5\n = 5",
    };

    static final String[] WORDS = {
        "a", "b", "c", "5", "-5", "3000000000", "5.5", "'5'", "'abc'", "''", "TRUE", "FALSE", "NULL", "(", ")", "(", ")", ",", "=", "<>", "<", "<=", ">", ">=", "AND", "OR", "NOT", "AND", "OR", "NOT", "IS NULL", "IS NOT NULL", "IS", "IN ('5', 'abc')", "NOT IN ('5')", "IN", "BETWEEN 1 AND 9",
        "NOT BETWEEN 4 AND 6", "BETWEEN", "CONTAINS 'b'", "NOT CONTAINS 'b'", "STARTSWITH '5'", "NOT STARTSWITH 'a'", "ENDSWITH 'c'", "NOT ENDSWITH 'c'", "+", "-", "=", "a", "b",
    };

    static Random random;

    public static void main(String[] args) throws Exception {
        Path folder = Path.of(args[0]);
        int invented = args.length > 1 ? Integer.parseInt(args[1]) : 1200;
        random = new Random(args.length > 2 ? Long.parseLong(args[2]) : 92);
        Files.createDirectories(folder);
        try (PrintWriter out = new PrintWriter(folder.resolve("expressions.tsv").toFile(), "US-ASCII")) {
            expressions(out, invented);
        }
        try (PrintWriter out = new PrintWriter(folder.resolve("numbers.tsv").toFile(), "US-ASCII")) {
            numbers(out, invented);
        }
        try (PrintWriter out = new PrintWriter(folder.resolve("bloom.tsv").toFile(), "US-ASCII")) {
            bloom(out);
        }
    }

    static void expressions(PrintWriter out, int invented) {
        List<Map<String, String>> sets = new ArrayList<>();
        List<String> texts = new ArrayList<>(List.of(SETS));
        for (String value : VALUES) {
            texts.add("a\u0001" + value + "\u0002");
        }
        for (String text : texts) {
            out.println("properties\t" + escape(text));
            sets.add(MessageDecoder.string2messageProperties(text));
        }
        Set<String> expressions = new LinkedHashSet<>(List.of(BY_HAND));
        for (int i = 0; i < invented; i++) {
            expressions.add(i % 3 == 0 ? words() : truth(3));
        }
        for (String expression : expressions) {
            expression(out, expression, sets);
        }
    }

    /** Words in any order: most of them are no expression. */
    static String words() {
        StringBuilder text = new StringBuilder();
        for (int i = 2 + random.nextInt(6); i > 0; i--) {
            text.append(WORDS[random.nextInt(WORDS.length)]).append(' ');
        }
        return text.toString().trim();
    }

    static String any(String... of) {
        return of[random.nextInt(of.length)];
    }

    static String value(int depth) {
        if (depth > 0 && random.nextInt(6) == 0) {
            return any("(" + truth(depth - 1) + ")", "-" + value(depth - 1), "+" + value(depth - 1), "(" + value(depth - 1) + ")");
        }
        return any("a", "a", "b", "c", "5", "-5", "1", "3000000000", "5.5", "-0.5", "1e3", "'5'", "'abc'", "'true'", "TRUE", "FALSE", "NULL");
    }

    static String truth(int depth) {
        switch (random.nextInt(depth > 0 ? 10 : 6)) {
            case 0: case 1:
                return value(depth) + any("=", " <> ", " = ", "<", " <= ", ">", " >= ") + value(depth);
            case 2:
                return value(depth) + any(" IS NULL", " IS NOT NULL", " is null", " IS NOT NULL");
            case 3:
                return value(depth) + any(" BETWEEN ", " NOT BETWEEN ") + value(depth) + " AND " + value(depth);
            case 4:
                return value(depth) + any(" IN ", " NOT IN ") + any("('5')", "('abc','5','x')", "('a','b','c','d','e','abc')");
            case 5:
                return value(depth) + any(" CONTAINS ", " NOT CONTAINS ", " STARTSWITH ", " NOT STARTSWITH ", " ENDSWITH ", " NOT ENDSWITH ") + any("'5'", "'b'", "'c'", "''", "'abc'");
            case 6:
                return truth(depth - 1) + " AND " + truth(depth - 1);
            case 7:
                return truth(depth - 1) + " OR " + truth(depth - 1);
            case 8:
                return "(" + truth(depth - 1) + ")";
            default:
                return "NOT " + any("(" + truth(depth - 1) + ")", truth(depth - 1));
        }
    }

    static final Pattern AT = Pattern.compile("^Encountered \" ?(.+?)\" at line (\\d+), column (\\d+)");

    /** `accepts`, the expression, a letter for each property set: T, F, N for null, E for an exception. Or `refuses`, the
     * expression, what was thrown, and line and column of the unexpected token where Java names one. */
    static void expression(PrintWriter out, String text, List<Map<String, String>> sets) {
        Expression expression;
        try {
            expression = SelectorParser.parse(text);
        } catch (MQFilterException e) {
            String message = String.valueOf(e.getCause().getMessage());
            Matcher at = AT.matcher(message);
            boolean isPlaced = at.find() && !at.group(1).equals("<EOF>");
            out.println("refuses\t" + escape(text) + "\t" + e.getCause().getClass().getName()
                + (isPlaced ? "\t" + at.group(2) + "\t" + at.group(3) : "\t-\t-"));
            return;
        }
        StringBuilder results = new StringBuilder();
        for (Map<String, String> properties : sets) {
            results.append(evaluate(expression, properties));
        }
        out.println("accepts\t" + escape(text) + "\t" + results);
    }

    static char evaluate(Expression expression, Map<String, String> properties) {
        try {
            Object result = expression.evaluate(new EvaluationContext() {
                public Object get(String name) {
                    return properties.get(name);
                }

                public Map<String, Object> keyValues() {
                    return Map.copyOf(properties);
                }
            });
            return result == null ? 'N' : (Boolean) result ? 'T' : 'F';
        } catch (Exception e) {
            return 'E';
        }
    }

    /** The text, then what Integer, Long and Double make of it: `-` where they throw. A double is its bits. */
    static void numbers(PrintWriter out, int invented) {
        Set<String> texts = new LinkedHashSet<>(List.of(VALUES));
        texts.addAll(List.of("", "  ", "e5", ".e5", "1e5 ", " 1e5", "1e 5", "1.e5", "1.5e+05", "1e00000000000000000001", "1e99999999999", "1e-99999999999", "0e99999999999", "-0e5", "1ee5", "1e5e", "1.2.3", "+.5", "-.5", "+-5", "5dd", "5df",
            "5e1d", "d", ".d", "infinity", "+Infinity", "Infinityd", "+NaN", "NaNf", "INF", "inf", "0x", "0x1", "0x1p", "0x1p+", "0x1p1", "0X1P1", "0x.8p1", "0x8.p1", "0x.p1", "0x1.8p-1D", "-0x1p0", " 0x1p0 ", "0x1p0x", "0xgp0", "0x1p1024", "0x1p1023",
            "0x1.fffffffffffffp1023", "0x1.fffffffffffff7p1023", "0x1.fffffffffffff8p1023", "0x1.fffffffffffff7fffffffffp1023", "0x1p-1074", "0x1p-1075", "0x1.8p-1075", "0x1.00000000000001p-1075", "0x1p-1076", "0x0.8p-1074", "0x1.8p-1074", "0x2.8p-1074", "0x0p0", "-0x0p0",
            "0x1p99999999999", "0x1p-99999999999", "0x0p99999999999", "0x0.0000000000000000000000000000001p100", "0x10000000000000000000000000000000p-100", "0x1.00000000000008p0", "0x1.000000000000080000000000000001p0", "0x1.00000000000018p0", "0x123456789abcdef0123p0", "0x1p2147483647", "0x0.0001p2147483647",
            "0x1.0p-2147483648", "0x0.8p-1022", "0x0.fffffffffffff8p-1022", "0x0.fffffffffffff4p-1022", "0x1p-1022", "2.2250738585072012e-308", "2.2250738585072011e-308", "1.7976931348623158e308", "1.7976931348623159e308", "9007199254740993.0", "9007199254740992.999999999999999999", "0.1", "123456789012345678901234567890",
            "0.000000000000000000000000000000000000000000001", "4.9e-324", "2.4703282292062327e-324", "2.4703282292062328e-324", "00000000000000000000000005", "-00", "+0", "+", "2147483646", "-2147483647", "9223372036854775806", "-9223372036854775809", "\u0661\u0662", "1\u0662", "-\uff11", "\u0967", "\ua9f5", "\ud835\udfce",
            "\u0662.5", "\u00b2", "\u2155", "5\u0000", "\u00005", "5\u001f", "\u00205", "\u20285", "\u30005", "1,000", "1 000", "$5", "0b11", "1e1.5", "five"));
        for (char c = 0; c < Character.MAX_VALUE; c++) {
            if (c > '~' && Character.digit(c, 10) == 7) {
                texts.add(String.valueOf(c));
            }
        }
        for (int i = 0; i < invented / 4; i++) {
            texts.add(number());
        }
        for (String text : texts) {
            out.println(escape(text) + "\t" + attempt(() -> String.valueOf(Integer.valueOf(text)))
                + "\t" + attempt(() -> String.valueOf(Long.valueOf(text)))
                + "\t" + attempt(() -> Long.toHexString(Double.doubleToLongBits(Double.valueOf(text)))));
        }
    }

    static String number() {
        StringBuilder text = new StringBuilder(any("", "", "-", "+", " "));
        boolean isHex = random.nextInt(3) == 0;
        if (isHex) {
            text.append("0x");
        }
        for (int i = random.nextInt(20); i > 0; i--) {
            text.append(isHex ? Integer.toHexString(random.nextInt(16)) : any("0", "1", "2", "5", "9"));
        }
        text.append(any(".", ".", ""));
        for (int i = random.nextInt(20); i > 0; i--) {
            text.append(isHex ? Integer.toHexString(random.nextInt(16)) : any("0", "1", "2", "5", "9"));
        }
        if (isHex || random.nextBoolean()) {
            text.append(isHex ? "p" : "e").append(any("", "-", "+")).append(random.nextInt(isHex ? 1200 : 350));
        }
        return text.append(any("", "", "", "", "d", "f", " ", "x")).toString();
    }

    interface Attempt {
        String run();
    }

    static String attempt(Attempt attempt) {
        try {
            return attempt.run();
        } catch (NumberFormatException e) {
            return "-";
        }
    }

    /** `size` f n k m; then `bits` f n text positions bytes. */
    static void bloom(PrintWriter out) {
        for (int f = 1; f < 100; f++) {
            for (int n : new int[] {1, 2, 3, 7, 10, 31, 32, 33, 64, 100, 128, 1000, 1024, 4096, 65535, 1000000}) {
                BloomFilter filter = BloomFilter.createByFn(f, n);
                out.println("size\t" + f + "\t" + n + "\t" + filter.getK() + "\t" + filter.getM());
            }
        }
        String[] texts = {"", "a", "CGSQL#TopicTest", "CID_JODIE#TopicA", "0123456", "01234567", "012345678", "0123456789abcde", "0123456789abcdef", "0123456789abcdef0", "0123456789abcdef01234567",
            "0123456789abcdef0123456789abcdef", "\u65e5\u672c#\u8a9e", "\ud83d\ude00#x", "please_rename_unique_group_name_4#BenchmarkTest"};
        for (int[] size : new int[][] {{20, 32}, {20, 64}, {10, 128}, {1, 1000}, {99, 10}, {50, 3}}) {
            BloomFilter filter = BloomFilter.createByFn(size[0], size[1]);
            for (String text : texts) {
                StringBuilder positions = new StringBuilder();
                for (int position : filter.calcBitPositions(text)) {
                    positions.append(positions.length() == 0 ? "" : ",").append(position);
                }
                BitsArray bits = BitsArray.create(filter.getM());
                filter.hashTo(filter.generate(text), bits);
                StringBuilder hex = new StringBuilder();
                for (byte b : bits.bytes()) {
                    hex.append(String.format("%02x", b));
                }
                out.println("bits\t" + size[0] + "\t" + size[1] + "\t" + escape(text) + "\t" + positions + "\t" + hex);
            }
        }
    }

    /** A backslash is doubled; whatever is not printable ASCII becomes a UTF-16 unit in four hexadecimal digits. */
    static String escape(String text) {
        StringBuilder out = new StringBuilder();
        for (char c : text.toCharArray()) {
            if (c == '\\') {
                out.append("\\\\");
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.toString();
    }
}
