package gantry;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Reads the JSON that brokers write, which is not always JSON: keys may be numbers or whole objects. Gives one text for each
 * leaf, by its path. Members of an array are told apart by their contents,
 * because most arrays here are sets.
 */
final class LooseJson {
    private final String text;
    private int at;

    private LooseJson(String text) {
        this.text = text;
    }

    /** The leaves of a text by path, or null if it is no object and no array. */
    static Map<String, String> leaves(String text) {
        String trimmed = text.strip();
        if (!trimmed.startsWith("{") && !trimmed.startsWith("[")) {
            return null;
        }
        var reader = new LooseJson(trimmed);
        try {
            Object tree = reader.value();
            if (reader.at < trimmed.length()) {
                return null;
            }
            var leaves = new TreeMap<String, String>();
            flatten("", tree, leaves);
            return leaves;
        } catch (IndexOutOfBoundsException truncated) {
            return null;
        }
    }

    private Object value() {
        skip();
        char c = text.charAt(at);
        if (c == '{') {
            return object();
        }
        if (c == '[') {
            return array();
        }
        return c == '"' ? string() : literal();
    }

    private Map<String, Object> object() {
        var members = new TreeMap<String, Object>();
        at++;
        for (skip(); text.charAt(at) != '}'; skip()) {
            if (text.charAt(at) == ',') {
                at++;
                continue;
            }
            String key = canonical(value());
            skip();
            at++; // the colon
            members.put(key, value());
        }
        at++;
        return members;
    }

    private List<Object> array() {
        var items = new ArrayList<>();
        at++;
        for (skip(); text.charAt(at) != ']'; skip()) {
            if (text.charAt(at) == ',') {
                at++;
                continue;
            }
            items.add(value());
        }
        at++;
        return items;
    }

    private String string() {
        var read = new StringBuilder();
        for (at++; text.charAt(at) != '"'; at++) {
            if (text.charAt(at) == '\\') {
                read.append(text.charAt(at++));
            }
            read.append(text.charAt(at));
        }
        at++;
        return read.toString();
    }

    private String literal() {
        int start = at;
        while (at < text.length() && ",:]} \n\r\t".indexOf(text.charAt(at)) < 0) {
            at++;
        }
        return text.substring(start, at);
    }

    private void skip() {
        while (Character.isWhitespace(text.charAt(at))) {
            at++;
        }
    }

    private static String canonical(Object value) {
        if (value instanceof String text) {
            return text;
        }
        var leaves = new TreeMap<String, String>();
        flatten("", value, leaves);
        return leaves.toString();
    }

    private static void flatten(String path, Object value, Map<String, String> leaves) {
        if (value instanceof Map<?, ?> members) {
            if (members.isEmpty()) {
                leaves.put(path, "{}");
            }
            members.forEach((key, member) -> flatten(path + "." + key, member, leaves));
        } else if (value instanceof List<?> items) {
            if (items.isEmpty()) {
                leaves.put(path, "[]");
            }
            var sorted = items.stream().sorted(java.util.Comparator.comparing(LooseJson::canonical)).toList();
            for (int i = 0; i < sorted.size(); i++) {
                Object item = sorted.get(i);
                if (item instanceof Map<?, ?> members && members.size() == 1) {
                    flatten(path + "[]", item, leaves);
                } else {
                    boolean isName = item instanceof String;
                    flatten(path + "[" + (isName ? item : i) + "]", isName ? "listed" : item, leaves);
                }
            }
        } else {
            leaves.put(path, (String) value);
        }
    }
}
