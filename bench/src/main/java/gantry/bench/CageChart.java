package gantry.bench;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.function.ToDoubleFunction;

/** Brokers under the same load in the same cage, as one picture: messages a second, p99 of sends, and what the cage held, second by second. */
final class CageChart {
    /** A second of a load: when it began, and what was sent and received; p99 of sends in ms, negative if none was answered; MiB in the cage. */
    record Second(double at, double sent, double received, double p99, long mib) {
    }

    /** A broker: its seconds by itself, those beside the cold reader, and what happened if that is not all. */
    record Run(String broker, List<Second> alone, List<Second> beside, String outcome) {
    }

    private static final double WIDTH = 960;
    private static final double HEIGHT = 190;
    private static final double LEFT = 74;
    private static final double RIGHT = 14;
    private static final double TOP = 30;
    private static final String[] COLOURS = {"#1f6feb", "#b3261e", "#1a7f37", "#8250df"};
    private final String title;
    private final List<Run> runs;
    private final StringBuilder out = new StringBuilder();
    private final double middle;
    private final double end;

    CageChart(String title, List<Run> runs) {
        this.title = title;
        this.runs = runs;
        this.middle = runs.stream().mapToDouble(run -> length(run.alone())).max().orElse(0);
        this.end = Math.max(1, middle + runs.stream().mapToDouble(run -> length(run.beside())).max().orElse(0));
    }

    private static double length(List<Second> seconds) {
        return seconds.isEmpty() ? 0 : seconds.get(seconds.size() - 1).at() + 1;
    }

    String svg() {
        double legend = 24 + 18.0 * runs.size();
        put("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"system-ui,sans-serif\" font-size=\"12\">", WIDTH, legend + 3 * HEIGHT + 24);
        put("<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/><text x=\"8\" y=\"17\" font-weight=\"600\">%s; grey: beside a reader of a backlog</text>", escaped(title));
        for (int i = 0; i < runs.size(); i++) {
            put("<text x=\"8\" y=\"%.0f\" fill=\"%s\">■ %s%s</text>", 36 + 18.0 * i, COLOURS[i % COLOURS.length], escaped(runs.get(i).broker()),
                runs.get(i).outcome().isEmpty() ? "" : ": " + escaped(runs.get(i).outcome()));
        }
        panel("Messages received a second", legend, Second::received);
        panel("Publish p99, ms", legend + HEIGHT, Second::p99);
        panel("In the cage, MiB", legend + 2 * HEIGHT, Second::mib);
        put("<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">seconds</text></svg>\n", WIDTH - RIGHT, legend + 3 * HEIGHT + 18);
        return out.toString();
    }

    private void panel(String name, double y, ToDoubleFunction<Second> figure) {
        double most = runs.stream().flatMap(run -> List.of(run.alone(), run.beside()).stream()).flatMap(List::stream).mapToDouble(figure).max().orElse(0);
        double step = step(most / 4);
        double top = Math.max(step, Math.ceil(most / step) * step);
        double bottom = y + HEIGHT - 18;
        double scale = (bottom - y - TOP) / top;
        put("<text x=\"%.0f\" y=\"%.0f\" font-weight=\"600\">%s</text>", LEFT, y + 20, name);
        put("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"#eee\"/>", x(middle), y + TOP, x(end) - x(middle), bottom - y - TOP);
        for (double value = 0; value <= top * 1.001; value += step) {
            put("<line x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ccc\"/>", LEFT, WIDTH - RIGHT, bottom - value * scale, bottom - value * scale);
            put("<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\" fill=\"#555\">%s</text>", LEFT - 6, bottom - value * scale + 4, number(value));
        }
        for (double at = 0; at < end; at += step(end / 10)) {
            put("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" fill=\"#555\">%s</text>", x(at), bottom + 15, number(at));
        }
        for (int i = 0; i < runs.size(); i++) {
            line(runs.get(i).alone(), 0, figure, i, bottom, scale);
            line(runs.get(i).beside(), middle, figure, i, bottom, scale);
        }
    }

    private void line(List<Second> seconds, double from, ToDoubleFunction<Second> figure, int run, double bottom, double scale) {
        List<String> points = new ArrayList<>();
        for (Second second : seconds) {
            if (figure.applyAsDouble(second) >= 0) {
                points.add(String.format(Locale.ROOT, "%.1f,%.1f", x(from + second.at()), bottom - figure.applyAsDouble(second) * scale));
            }
        }
        put("<polyline fill=\"none\" stroke-width=\"1.5\" stroke=\"%s\" points=\"%s\"/>", COLOURS[run % COLOURS.length], String.join(" ", points));
    }

    private double x(double at) {
        return LEFT + at / end * (WIDTH - LEFT - RIGHT);
    }

    /** A round number, no less than this. */
    private static double step(double rough) {
        double power = Math.pow(10, Math.floor(Math.log10(Math.max(rough, 1e-3))));
        for (double factor : new double[] {1, 2, 5}) {
            if (factor * power >= rough) {
                return factor * power;
            }
        }
        return 10 * power;
    }

    private static String number(double value) {
        return value == Math.rint(value) ? String.format(Locale.ROOT, "%,.0f", value) : String.format(Locale.ROOT, "%.3g", value);
    }

    private void put(String format, Object... arguments) {
        out.append(String.format(Locale.ROOT, format, arguments));
    }

    private static String escaped(String text) {
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;");
    }
}
