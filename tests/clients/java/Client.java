import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/** Runs the scenarios that are asked for, all in this one process. */
public final class Client {
    private Client() {
    }

    public static void main(String[] arguments) {
        Map<String, String> options = new HashMap<>();
        for (int at = 0; at < arguments.length; at += 2) {
            options.put(arguments[at].substring(2), arguments[at + 1]);
        }
        PrintStream lines = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader answers = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Tools.takeOutput();
        for (String name : options.get("scenario").split(",")) {
            Run run = new Run(name, options, lines, answers);
            try {
                scenario(name, run);
                run.tell("end");
            } catch (Throwable failed) {
                StringWriter told = new StringWriter();
                failed.printStackTrace(new PrintWriter(told));
                run.tell("failed", "error", told.toString());
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static void scenario(String name, Run run) throws Exception {
        Scenarios scenarios = new Scenarios(run);
        switch (name) {
            case "administration" -> scenarios.administration();
            case "administration-cluster" -> scenarios.administrationCluster();
            case "administration-groups" -> new Groups(run, scenarios).administration();
            case "records" -> scenarios.records();
            case "group-eager" -> scenarios.group("eager");
            case "group-cooperative" -> scenarios.group("cooperative");
            case "group-consumer" -> scenarios.group("consumer");
            case "commit" -> scenarios.commit("eager");
            case "commit-consumer" -> scenarios.commit("consumer");
            case "reset" -> scenarios.reset();
            case "times" -> scenarios.times();
            case "static" -> new Groups(run, scenarios).statics();
            case "migration" -> new Groups(run, scenarios).migration();
            case "recreated" -> new Groups(run, scenarios).recreated();
            case "restarts" -> scenarios.restarts();
            case "tools" -> new Tools(run).all();
            case "tools-groups" -> new Tools(run).groups(scenarios);
            case "verifiable" -> new Tools(run).verifiable();
            default -> throw new IllegalArgumentException(name);
        }
    }
}
