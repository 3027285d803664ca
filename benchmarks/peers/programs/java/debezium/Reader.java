import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.connect.runtime.WorkerConfig;
import org.apache.kafka.connect.storage.MemoryOffsetBackingStore;

/**
 * Reads one stretch of a binlog with Debezium's embedded engine, as Connect records or as JSON; or
 * a table, as the Connect records of an initial snapshot.
 *
 * <p>Arguments: connect|json|snapshot HOST PORT USER PASSWORD FILE OFFSET TABLE ROWS.
 */
public final class Reader {
    private static final String NAME = "bench";

    /** Holds the offset that the stretch begins at, as if the engine had stopped there. */
    public static final class StartOffset extends MemoryOffsetBackingStore {
        static String file;
        static String position;

        @Override
        public void configure(WorkerConfig config) {
            super.configure(config);
            data.put(bytes("[\"" + NAME + "\",{\"server\":\"" + NAME + "\"}]"),
                    bytes("{\"file\":\"" + file + "\",\"pos\":" + position + "}"));
        }

        @Override
        public Set<Map<String, Object>> connectorPartitions(String name) {
            return Set.of();
        }

        private static ByteBuffer bytes(String text) {
            return ByteBuffer.wrap(text.getBytes(StandardCharsets.UTF_8));
        }
    }

    private static Properties settings(String[] a) {
        Properties found = new Properties();
        found.setProperty("name", NAME);
        found.setProperty("offset.flush.interval.ms", "60000");
        found.setProperty("schema.history.internal",
                "io.debezium.relational.history.MemorySchemaHistory");
        found.setProperty("connector.class", "io.debezium.connector.mysql.MySqlConnector");
        if (a[0].equals("snapshot")) {
            found.setProperty("offset.storage", MemoryOffsetBackingStore.class.getName());
            found.setProperty("snapshot.mode", "initial_only");
        } else {
            found.setProperty("offset.storage", StartOffset.class.getName());
            // The columns are read from the database, the log from the offset on.
            found.setProperty("snapshot.mode", "recovery");
        }
        found.setProperty("topic.prefix", NAME);
        found.setProperty("database.server.id", "4330");
        found.setProperty("database.hostname", a[1]);
        found.setProperty("database.port", a[2]);
        found.setProperty("database.user", a[3]);
        found.setProperty("database.password", a[4]);
        found.setProperty("table.include.list", a[7]);
        found.setProperty("include.schema.changes", "false");
        return found;
    }

    private static <R> void run(DebeziumEngine.Builder<R> builder, Properties settings, Clock clock) {
        builder.using(settings)
                .notifying(record -> clock.count(1))
                .using((success, message, error) -> {
                    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                        System.err.println(cause);
                    }
                    Runtime.getRuntime().halt(1);
                })
                .build()
                .run();
    }

    public static void main(String[] a) {
        StartOffset.file = a[5];
        StartOffset.position = a[6];
        Clock clock = new Clock(Long.parseLong(a[8]));
        if (a[0].equals("json")) {
            run(DebeziumEngine.create(Json.class), settings(a), clock);
        } else {
            run(DebeziumEngine.create(Connect.class), settings(a), clock);
        }
    }
}
