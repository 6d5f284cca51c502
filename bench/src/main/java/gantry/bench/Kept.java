package gantry.bench;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.LocalDate;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** What a comparison leaves behind, for <code>keep=DIR</code> and <code>json=FILE</code>. */
final class Kept {
    /** Writes it where it was asked for, if it was: with the arguments, without those that name folders of this machine. */
    static void write(Map<String, String> args, String name, JSONObject measured) throws IOException {
        Map<String, String> shown = new LinkedHashMap<>(args);
        List.of("gantry", "lib", "work", "keep", "json").forEach(shown::remove);
        measured.fluentPut("date", LocalDate.now().toString()).fluentPut("arguments", shown).fluentPut("processors", Runtime.getRuntime().availableProcessors())
            .fluentPut("kernel", System.getProperty("os.version"));
        String text = JSON.toJSONString(measured, JSONWriter.Feature.PrettyFormat) + "\n";
        if (args.containsKey("json")) {
            Files.writeString(Path.of(args.get("json")), text);
        }
        if (args.containsKey("keep")) {
            Files.writeString(Files.createDirectories(Path.of(args.get("keep"))).resolve(LocalDate.now() + "-" + name + ".json"), text);
        }
    }
}
