package gantry;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.regex.Pattern;
import org.apache.commons.cli.DefaultParser;
import org.apache.commons.cli.Options;
import org.apache.commons.cli.ParseException;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Every command of the published mqadmin against a Gantry and an Apache 5.5.0: what it prints is compared line by line. */
@Tag("mqadmin")
class MqAdminTest {
    /** Most of it is the tool's own waiting: it stays for three seconds after many a command. */
    @Test
    @Timeout(600)
    void the_published_mqadmin_prints_what_it_prints_about_apache() throws Exception {
        try (var ours = new Server("ours"); var theirs = new Server("theirs")) {
            var starting = CompletableFuture.runAsync(() -> theirs.start(Server.Kind.APACHE_5));
            ours.start(Server.DEFAULT);
            starting.join();
            var aboutApache = MqAdmin.start(theirs);
            var aboutGantry = MqAdmin.start(ours);
            var differences = MqAdmin.differences(MqAdmin.printed(aboutApache, theirs), MqAdmin.printed(aboutGantry, ours));
            Differences.check(differences, Differences.MQADMIN);
        }
    }

    /** The tool ends its process when it does not understand a line. */
    @Test
    void no_command_is_left_out_and_each_line_is_understood() throws Exception {
        MqAdmin.table().clear();
        MQAdminStartup.initCommand();
        var known = new TreeMap<String, SubCommand>();
        MqAdmin.table().forEach(command -> known.put(((SubCommand) command).commandName(), (SubCommand) command));
        var source = Files.readString(Path.of(System.getProperty("gantry.sources"), "MqAdminCommands.java"));
        var ran = new TreeSet<String>();
        var misunderstood = new ArrayList<String>();
        for (var line : Pattern.compile("tool\\.run\\(\"(.*?)\"[ )]").matcher(source).results().map(found -> found.group(1)).toList()) {
            var words = MqAdmin.words(line);
            ran.add(words.get(0));
            var options = known.get(words.get(0)).buildCommandlineOptions(ServerUtil.buildCommandlineOptions(new Options()));
            // An id that is appended has to be there.
            var rest = new ArrayList<>(words.subList(1, words.size()));
            if (line.endsWith(" ")) {
                rest.add("id");
            }
            rest.addAll(List.of("-n", "name server"));
            try {
                new DefaultParser().parse(options, rest.toArray(String[]::new));
            } catch (ParseException e) {
                misunderstood.add(line + ": " + e.getMessage());
            }
        }
        ran.addAll(MqAdminCommands.ENDLESS);
        ran.addAll(MqAdminCommands.LOCAL);
        assertEquals(List.of(), misunderstood);
        assertEquals(known.keySet(), ran);
    }
}
