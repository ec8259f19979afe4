import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.PrintStream;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;

/** One scenario's run: its names, and the lines that tell of it. */
final class Run {
    static final ObjectMapper JSON = new ObjectMapper();
    private static final long WAIT_MS_MAX = 60_000;

    private final String scenario;
    private final Map<String, String> options;
    private final PrintStream lines;
    private final BufferedReader answers;

    Run(String scenario, Map<String, String> options, PrintStream lines, BufferedReader answers) {
        this.scenario = scenario;
        this.options = options;
        this.lines = lines;
        this.answers = answers;
    }

    String bootstrap() {
        return options.get("bootstrap");
    }

    String recordsFile() {
        return options.get("records");
    }

    /** A topic's or group's name that no other scenario has. */
    String name(String suffix) {
        return options.get("prefix") + "-" + scenario + suffix;
    }

    /** Tells a step; facts are names and values in turn. */
    void tell(String step, Object... facts) {
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("scenario", scenario);
        told.put("step", step);
        for (int at = 0; at < facts.length; at += 2) {
            told.put((String) facts[at], facts[at + 1]);
        }
        try {
            String line = JSON.writeValueAsString(told);
            synchronized (lines) {
                lines.println(line);
                lines.flush();
            }
        } catch (JsonProcessingException failed) {
            throw new IllegalStateException(failed);
        }
    }

    /** Has the runner do something, and gives its answer. */
    String await(String what, List<String> topics) throws IOException {
        tell("wait", "for", what, "topics", topics);
        return answers.readLine();
    }

    static void until(BooleanSupplier condition, Supplier<String> what) throws InterruptedException {
        long deadline = System.currentTimeMillis() + WAIT_MS_MAX;
        while (!condition.getAsBoolean()) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("not in time: " + what.get());
            }
            Thread.sleep(20);
        }
    }
}
