package gantry;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The same requests to a Gantry and to an Apache 5.5.0, answers compared leaf by leaf; and what both show Prometheus behind that. */
@Tag("interop")
class DifferentialTest {
    private interface Ask {
        void all(Conversation conversation) throws Exception;
    }

    private interface Look {
        void at(Server apache, Server gantry) throws Exception;
    }

    @Test
    void gantry_answers_what_apache_answers() throws Exception {
        compare(conversation -> new Questions(conversation).all(), MetricsPage::with, Differences.ON_PURPOSE, MetricsPage::compare);
    }

    @Test
    void gantry_answers_what_apache_answers_about_light_queues_batches_timers_and_pops() throws Exception {
        compare(conversation -> new LaterQuestions(conversation).all(), LaterQuestions::configure, Differences.LATER, (apache, gantry) -> {});
    }

    @Test
    void a_controller_answers_what_that_of_apache_answers() throws Exception {
        compare(conversation -> {
            try (var questions = new ControllerQuestions(conversation)) {
                questions.all();
            }
        }, ControllerQuestions::configure, Differences.CONTROLLER, (apache, gantry) -> {});
    }

    private static void compare(Ask ask, UnaryOperator<Server> with, List<Differences.Reason> reasons, Look then) throws Exception {
        try (var ours = with.apply(new Server("ours")); var theirs = with.apply(new Server("theirs"))) {
            var starting = CompletableFuture.runAsync(() -> theirs.start(Server.Kind.APACHE_5));
            ours.start(Server.DEFAULT);
            starting.join();
            try (var gantry = new Conversation(ours); var apache = new Conversation(theirs)) {
                ask.all(apache);
                ask.all(gantry);
                Differences.check(Conversation.differences(apache, gantry), reasons);
                then.at(theirs, ours);
            }
        }
    }
}
