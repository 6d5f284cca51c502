package gantry;

import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The same requests to a Gantry and to an Apache 5.5.0, answers compared leaf by leaf. */
@Tag("interop")
class DifferentialTest {
    @Test
    void gantry_answers_what_apache_answers() throws Exception {
        try (var ours = new Server("ours"); var theirs = new Server("theirs")) {
            var starting = CompletableFuture.runAsync(() -> theirs.start(Server.Kind.APACHE_5));
            ours.start(Server.DEFAULT);
            starting.join();
            try (var gantry = new Conversation(ours); var apache = new Conversation(theirs)) {
                new Questions(apache).all();
                new Questions(gantry).all();
                Differences.check(Conversation.differences(apache, gantry), Differences.ON_PURPOSE);
            }
        }
    }
}
